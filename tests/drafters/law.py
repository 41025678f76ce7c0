"""The Markov toy with an input to copy from, for the exact joint law under any drafter.

See `tests/core/test_lossless.py` for what the p-values mean.
"""

import jax
import jax.numpy as jnp
import numpy as np

from specdec.core import keys
from specdec.core import loop
from specdec.core.rules import sampling
from specdec.core.state import DecodeState
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.core.state import capacity_for
from specdec.core.verify import BlockVerifier
from specdec.core.verify import CoupledVerifier
from specdec.core.verify import TokenVerifier
from specdec.testing import goodness
from specdec.testing import markov
from specdec.types import Source
from tests.core import toy

BATCH, V, EOS = 1 << 15, 4, 1
LENGTH = 6
KINDS = np.arange(BATCH) % 2
RIGHT, WRONG = 1e-4, 1e-6
VERIFIERS = [TokenVerifier(), BlockVerifier(), CoupledVerifier()]

TARGET = markov.random_weights(0, V, kinds=2)
MIDDLE = toy.disturbed(TARGET, 4, scale=1.0)
SMALL = toy.disturbed(TARGET, 5, scale=1.5)
SCORER = markov.MarkovScorer(V)
# Each of them for rows of both kinds: temperature, top-k, top-p.
MIXED = sampling(BATCH, *(np.resize(np.repeat(column, 2), BATCH) for column in zip(
    (1.0, 0, 0.0), (0.0, 0, 0.0), (0.7, 3, 0.0), (1.5, 0, 0.9), (1.2, 2, 0.95))))


def source(kinds, size: int = 8, vocab_size: int = V, seed: int = 0) -> Source:
  """Inputs that begin with the row's kind, behind which stands a text of its own."""
  batch = len(kinds)
  rng = np.random.default_rng(seed)
  ids = rng.integers(0, vocab_size, (batch, size)).astype(np.int32)
  ids[:, 0] = kinds
  length = rng.integers(1, size + 1, batch).astype(np.int32)
  ids = np.where(np.arange(size) < length[:, None], ids, 0)
  return Source(jnp.asarray(ids), jnp.asarray(length), jnp.ones(batch, jnp.int32))


def start(method: Method, weights: Weights, inputs: Source, max_len: int, seed: int = 0,
          example_ids=None, gamma: int = 8) -> DecodeState:
  """Starts a row per input."""
  batch = inputs.length.shape[0]
  example_ids = np.arange(batch) if example_ids is None else np.asarray(example_ids)
  return loop.start(toy.starting(method), weights, inputs, toy.prompt([()] * batch),
                    keys.row_keys(seed, example_ids), np.ones(batch, bool),
                    capacity=capacity_for(max_len, gamma))


def device(tree):
  return jax.tree.map(jnp.asarray, tree)


def measure(method: Method, params, inputs: Source | None = None, settings=MIXED, seed: int = 0,
            controls=None, adjust=None, **speculation) -> tuple[float, DecodeState]:
  """P-value of the outputs against the exact law, and the final state."""
  weights = Weights(device(TARGET), device(params))
  inputs = source(KINDS) if inputs is None else inputs
  state = start(method, weights, inputs, LENGTH, seed)
  rules = toy.rules(settings, BATCH, LENGTH, (EOS,), controls=controls, **speculation)
  state = loop.run(method, weights, state, rules, toy.exits())
  fits = toy.fits(state, TARGET, KINDS, settings, EOS, LENGTH, adjust=adjust)
  return goodness.p_value(*fits), state
