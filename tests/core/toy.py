"""One toy pair and one way to run it, shared so that programs compile once."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np

from specdec.core import keys
from specdec.core import loop
from specdec.core.state import DecodeState
from specdec.core.state import Exits
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.core.state import capacity_for
from specdec.testing import goodness
from specdec.testing import markov
from specdec.testing import oracle
from specdec.types import Limits
from specdec.types import Sampling
from specdec.types import Source

MAX_GAMMA = 4


def start(method: Method, weights: Weights, kinds, *, max_len: int, seed: int = 0,
          example_ids=None, in_use=None) -> DecodeState:
  """Starts rows whose sources begin with `kinds` [B]; capacity is the same for every gamma."""
  kinds = jnp.asarray(kinds, jnp.int32)
  batch = kinds.shape[0]
  example_ids = jnp.arange(batch) if example_ids is None else jnp.asarray(example_ids)
  in_use = jnp.ones(batch, bool) if in_use is None else jnp.asarray(in_use)
  return loop.start(
      method, weights, Source(kinds[:, None], jnp.ones(batch, jnp.int32)),
      jnp.zeros(batch, jnp.int32), keys.row_keys(seed, example_ids), in_use,
      capacity=capacity_for(max_len, MAX_GAMMA))


def limits(batch: int, max_len, eos=(1,)) -> Limits:
  """Limits of a batch; `eos` is padded with -1 to two ids."""
  eos = (*eos, -1, -1)[:2]
  return Limits(jnp.broadcast_to(jnp.asarray(max_len, jnp.int32), (batch,)),
                jnp.asarray(eos, jnp.int32))


def exits(max_iterations: int = 2**30, min_ended: int = 2**30) -> Exits:
  """Exits as device arrays, so that no test retraces over Python numbers."""
  return Exits(jnp.int32(max_iterations), jnp.int32(min_ended))


def sequences(state: DecodeState) -> list[tuple[int, ...]]:
  """What each row generated."""
  ids, length = np.asarray(state.ids), np.asarray(state.length)
  return [tuple(row[1:n].tolist()) for row, n in zip(ids, length)]


def fits(state: DecodeState, target, kinds, settings: Sampling, eos: int, max_len: int):
  """Chi-square of each group of rows with equal source and settings, for `goodness.p_value`."""
  columns = [np.asarray(x).tolist() for x in
             (kinds, settings.temperature, settings.top_k, settings.top_p)]
  groups: dict = {}
  for group, sequence in zip(zip(*columns), sequences(state)):
    groups.setdefault(group, Counter())[sequence] += 1
  return [goodness.chi_square(counts, markov.joint_law(
              markov.table(target, kind), temperature, k, p, eos, max_len))
          for (kind, temperature, k, p), counts in groups.items()]


def assert_same(a, b):
  """Equal trees, keys included."""
  plain = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    np.testing.assert_array_equal(plain(x), plain(y))


def first_acceptance(target, drafter, kind: int) -> float:
  """beta = sum min(p, q) after the start id, at temperature 1."""
  p, q = (oracle.distribution(markov.table(w, kind)[0, 0], 1.0) for w in (target, drafter))
  return oracle.acceptance(p, q)
