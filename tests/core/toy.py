"""One toy pair and one way to run it, shared so that programs compile once."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np

from specdec.core import keys
from specdec.core import loop
from specdec.core import rules as rules_lib
from specdec.core.rules import sampling
from specdec.core.state import DecodeState
from specdec.core.state import Exits
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.core.state import capacity_for
from specdec.drafters.transformer import TransformerDrafter
from specdec.testing import goodness
from specdec.testing import markov
from specdec.testing import oracle
from specdec.types import Controls
from specdec.types import Rules
from specdec.types import Sampling
from specdec.types import Source

MAX_GAMMA = 4


def starting(method: Method) -> Method:
  """A method as far as the start of a batch goes by it: one program for all verifiers and sizes."""
  return method if method.trace else Method(
      method.scorer, method.drafter, int(method.drafter is not None))


def start(method: Method, weights: Weights, kinds, *, max_len: int, seed: int = 0,
          example_ids=None, in_use=None, prompts=None) -> DecodeState:
  """Starts rows whose sources begin with `kinds` [B]; capacity is the same for every gamma.

  Args:
    method: static settings.
    weights: of target and drafter.
    kinds: int [B].
    max_len: for the capacity.
    seed: of the rows' keys.
    example_ids: [B]; 0, 1, ... by default.
    in_use: bool [B].
    prompts: a list of ids per row, without the start id.
  """
  kinds = jnp.asarray(kinds, jnp.int32)
  batch = kinds.shape[0]
  example_ids = jnp.arange(batch) if example_ids is None else jnp.asarray(example_ids)
  in_use = jnp.ones(batch, bool) if in_use is None else jnp.asarray(in_use)
  return loop.start(
      starting(method), weights, Source(kinds[:, None], jnp.ones(batch, jnp.int32)),
      prompt(prompts or [()] * batch), keys.row_keys(seed, example_ids), in_use,
      capacity=capacity_for(max_len, MAX_GAMMA))


def prompt(prompts) -> Source:
  """Prompts behind the start id 0, padded."""
  rows = [(0, *p) for p in prompts]
  ids = np.zeros((len(rows), max(map(len, rows))), np.int32)
  for i, row in enumerate(rows):
    ids[i, :len(row)] = row
  return Source(jnp.asarray(ids), jnp.asarray([len(row) for row in rows], jnp.int32))


def rules(settings: float | Sampling, batch: int, max_len, eos=(1,), min_len=0,
          controls: Controls | None = None, **speculation) -> Rules:
  """Rules of a batch; `settings` is a temperature or a `Sampling`."""
  settings = settings if isinstance(settings, Sampling) else sampling(batch, settings)
  return Rules(settings, rules_lib.limits(batch, max_len, eos, min_len, size=2),
               controls or rules_lib.controls(batch, size=4),
               rules_lib.speculation(batch, **speculation))


def exits(max_iterations: int = 2**30, min_ended: int = 2**30) -> Exits:
  """Exits as device arrays, so that no test retraces over Python numbers."""
  return Exits(jnp.int32(max_iterations), jnp.int32(min_ended))


def sequences(state: DecodeState) -> list[tuple[int, ...]]:
  """What each row generated."""
  ids, length = np.asarray(state.ids), np.asarray(state.length)
  return [tuple(row[1:n].tolist()) for row, n in zip(ids, length)]


def fits(state: DecodeState, target, kinds, settings: Sampling, eos: int, max_len: int,
         prompts=None, adjust=None):
  """Chi-square of each group of rows with equal source and settings, for `goodness.p_value`.

  Args:
    state: ended.
    target: weights.
    kinds: int [B].
    settings: of the rows.
    eos: the id that ends a row.
    max_len: tokens at most.
    prompts: a tuple of ids per row.
    adjust: see `markov.joint_law`; or a dictionary of these, by kind.
  """
  columns = [np.asarray(x).tolist() for x in
             (kinds, settings.temperature, settings.top_k, settings.top_p)]
  groups: dict = {}
  prompts = prompts or [()] * len(kinds)
  for group, sequence in zip(zip(*columns, prompts), sequences(state)):
    groups.setdefault(group, Counter())[sequence] += 1
  return [goodness.chi_square(counts, markov.joint_law(
              markov.table(target, kind), temperature, k, p, eos, max_len, prompt=prompt,
              adjust=adjust[kind] if isinstance(adjust, dict) else adjust))
          for (kind, temperature, k, p, prompt), counts in groups.items()]


def assert_same(a, b):
  """Equal trees, keys included."""
  plain = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    np.testing.assert_array_equal(plain(x), plain(y))


def first_acceptance(target, drafter, kind: int) -> float:
  """beta = sum min(p, q) after the start id, at temperature 1."""
  p, q = (oracle.distribution(markov.table(w, kind)[0, 0], 1.0) for w in (target, drafter))
  return oracle.acceptance(p, q)


# The pair that the tests of the loop share: eight rows, one shape, one program per method.
BATCH, V, GAMMA, MAX_LEN = 8, 12, 3, 20
SCORER = markov.MarkovScorer(V)
PLAIN = Method(SCORER)
SPECULATIVE = Method(SCORER, TransformerDrafter(SCORER, V), GAMMA)
KINDS = np.arange(BATCH) % 4


def weights(target, drafter=None) -> Weights:
  """Weights on the device; without a drafter's, the target drafts for itself."""
  return jax.tree.map(jnp.asarray, Weights(target, target if drafter is None else drafter))


def disturbed(target, seed: int, scale: float = 1.5):
  """Weights of a drafter that agrees with the target now and then."""
  rng = np.random.default_rng(seed)
  return {name: x + rng.normal(0, scale, x.shape).astype(np.float32)
          for name, x in target.items()}


def chain(size: int = V, kinds: int = 4):
  """Weights that count: after token b comes b + 1, all but surely. Starts 0, 1, 2, ..."""
  after = 30 * np.eye(size, dtype=np.float32)[(np.arange(size) + 1) % size]
  return {"logits": np.broadcast_to(after, (size, size, size)).copy(),
          "by_source": np.zeros((kinds, size, size), np.float32)}


def decode(method: Method, pair: Weights, kinds=KINDS, settings=0.0, max_len=MAX_LEN, eos=(1,),
           min_len=0, controls: Controls | None = None, capacity_len: int = MAX_LEN,
           **options) -> DecodeState:
  """Decodes to the end; `options` go to `start`."""
  state = start(method, pair, kinds, max_len=capacity_len, **options)
  return loop.run(method, pair, state,
                  rules(settings, len(kinds), max_len, eos, min_len, controls), exits())


TARGET = markov.random_weights(0, V, kinds=4)
PAIR = weights(TARGET, disturbed(TARGET, 1))
# Lengths that end rows at different iterations, and an EOS that ends some of them earlier.
RAGGED = np.array([1, 20, 7, 13, 2, 20, 4, 17])
EOS = (6,)
MIXED = sampling(BATCH, [1.0, 0.0, 0.7, 1.3, 1.0, 1.0, 0.5, 1.0], [0, 0, 3, 0, 0, 4, 0, 2],
                 [0.0, 0.0, 0.0, 0.8, 0.9, 0.0, 0.0, 0.7])
