"""The chance of each drafted token to stand, which traces carry, against what happened."""

import functools

import jax
import numpy as np
import pytest

from specdec.core import loop
from specdec.core.state import Method
from specdec.core.verify import VERIFIERS
from tests.core import toy
from tests.core.test_lossless import Deterministic

BATCH, GAMMA, LENGTH = 4096, 3, 10
KINDS = np.arange(BATCH) % 4
DRAFTERS = {"drawn": toy.SPECULATIVE.drafter, "certain": Deterministic(toy.SCORER, toy.V)}


@functools.cache
def run(verifier: str, drafter: str = "drawn", temperature: float = 1.0):
  """Trace of a decoded batch."""
  method = Method(toy.SCORER, DRAFTERS[drafter], GAMMA, VERIFIERS[verifier], trace=True)
  state = toy.start(method, toy.PAIR, KINDS, max_len=LENGTH)
  rules = toy.rules(temperature, BATCH, LENGTH, toy.EOS, lenience=0.5)
  state = loop.run(method, toy.PAIR, state, rules, toy.exits())
  return jax.tree.map(np.asarray, state.trace)


def stood_and(values, trace):
  """Which tested tokens stood, and their entries in `values` [B, I, G]."""
  place = np.arange(GAMMA)
  accepted, drafted = trace.num_accepted[..., None], trace.num_drafted[..., None]
  tested = (place <= accepted) & (place < drafted)
  return (place < accepted)[tested].astype(np.float64), values[tested].astype(np.float64)


def errors_off(values, trace, weights=None):
  """By how many standard errors the tokens that stood differ from what was promised.

  Weights [B, I, G] look where two promises differ.
  """
  stood, promised = stood_and(values, trace)
  assert len(stood) > 10_000 and ((promised >= 0) & (promised <= 1)).all()
  weight = 1.0 if weights is None else stood_and(weights, trace)[1]
  deviation = np.sqrt((weight**2 * promised * (1 - promised)).sum())
  return abs((weight * (stood - promised)).sum()) / deviation


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_as_many_tokens_stand_as_their_chances_say(verifier, drafter):
  trace = run(verifier, drafter)
  assert errors_off(trace.accept_probs, trace) < 4


@pytest.mark.parametrize("verifier", ["block", "lenient", "coupled"])
def test_the_chance_of_one_verifier_is_not_that_of_another(verifier):
  trace = run(verifier)
  other = np.minimum(1, trace.target_probs / np.maximum(trace.draft_probs, 1e-30))
  difference = trace.accept_probs - other
  assert errors_off(other, trace, difference) > 6
  assert errors_off(trace.accept_probs, trace, difference) < 4


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_at_temperature_0_the_chance_is_what_happened(verifier):
  trace = run(verifier, temperature=0.0)
  stood, promised = stood_and(trace.accept_probs, trace)
  np.testing.assert_array_equal(stood, promised)


def test_the_token_verifiers_chance_is_p_over_q():
  trace = run("token")
  expected = np.minimum(1, trace.target_probs / np.maximum(trace.draft_probs, 1e-30))
  np.testing.assert_allclose(stood_and(trace.accept_probs, trace)[1],
                             stood_and(expected, trace)[1], rtol=1e-6)


def test_plain_decoding_keeps_p_of_every_token():
  method = Method(toy.SCORER, trace=True)
  state = toy.start(method, toy.PAIR, KINDS[:8], max_len=LENGTH)
  state = loop.run(method, toy.PAIR, state, toy.rules(1.0, 8, LENGTH, toy.EOS), toy.exits())
  trace, log_prob = jax.tree.map(np.asarray, (state.trace, state.adjusted_log_prob))
  assert trace.accept_probs.shape[2] == 0
  for row, sequence in enumerate(toy.sequences(state)):
    found = trace.next_probs[row, :len(sequence)]
    np.testing.assert_allclose(np.log(found).sum(), log_prob[row], rtol=1e-5)
