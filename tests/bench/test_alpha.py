"""alpha: rates against a law that can be worked out, intervals, and the check of real runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.analysis import estimates
from specdec.analysis.estimates import Calibration
from specdec.bench import alpha as alpha_lib
from specdec.core import rules as rules_lib
from specdec.core import verify
from specdec.core.state import Method
from specdec.drafters.cascade import CascadeDrafter
from specdec.drafters.cascade import CascadeParams
from specdec.drafters.copy import CopyDrafter
from specdec.drafters.transformer import TransformerDrafter
from specdec.drafters.uniform import UniformDrafter
from specdec.errors import SpecdecError
from specdec.testing import markov
from specdec.testing import oracle
from specdec.types import Source
from tests.core import toy

V, B, LEN, GAMMA = 12, 64, 16, 3
LENIENCES = (1.0, 0.4)
KINDS = np.arange(B) % 4
TARGET = toy.TARGET
SMALL = toy.disturbed(TARGET, 1, 1.0)
SCORER = markov.MarkovScorer(V)
# Half of the rows are greedy.
SAMPLING = rules_lib.sampling(B, np.where(np.arange(B) < B // 2, 1.0, 0.0))
DRAFTER = TransformerDrafter(SCORER, V)


class TooKind(verify.TokenVerifier):
  """Takes half of what the rule refuses."""

  name = "too kind"

  def _stands(self, noise, proposal, target):
    p, q = verify._at_tokens(proposal, target)
    return noise.accept * q < p + 0.5 * jnp.maximum(q - p, 0)


def run(verifier=None):
  """A speculative run of the toy: state with a trace."""
  method = Method(SCORER, DRAFTER, GAMMA, verifier or verify.TokenVerifier(), trace=True)
  return toy.decode(method, toy.weights(TARGET, SMALL), KINDS, SAMPLING, LEN, eos=(6,),
                    capacity_len=LEN)


@pytest.fixture(scope="module")
def state():
  return run()


def score(state):
  ids = np.asarray(state.ids)[:, :LEN + 1]
  source = Source(jnp.asarray(KINDS[:, None]), jnp.ones(B, jnp.int32))
  weights = toy.weights(TARGET).target
  return source, alpha_lib.score(SCORER, weights, source, ids, state.length - 1, SAMPLING)


@pytest.fixture(scope="module")
def outputs(state):
  return score(state)


def rates(drafter, params, outputs, depth=1):
  source, scored = outputs
  return np.asarray(alpha_lib.betas(drafter, params, source, scored,
                                    jnp.asarray(LENIENCES, jnp.float32), depth))


def by_hand(state, q_of):
  """beta [B, T, K] from the tables; `q_of` gives q from kind, the last two tokens and T."""
  out = np.full((B, LEN, len(LENIENCES)), np.nan)
  ids, length = np.asarray(state.ids), np.asarray(state.length)
  for b in range(B):
    table = markov.table(TARGET, KINDS[b])
    temperature = float(SAMPLING.temperature[b])
    for t in range(length[b] - 1):
      before, newest = ids[b, t - 1] if t else 0, ids[b, t]
      logits = table[before, newest]
      p = oracle.distribution(logits, temperature)
      q = q_of(KINDS[b], before, newest, temperature)
      for k, lenience in enumerate(LENIENCES):
        if temperature or lenience == 1:
          out[b, t, k] = np.minimum(q, p / lenience).sum()
        else:
          out[b, t, k] = q[np.exp(logits - logits.max()) >= lenience].sum()
  return out


def of_small(kind, before, newest, temperature):
  return oracle.distribution(markov.table(SMALL, kind)[before, newest], temperature)


def test_rates_of_a_model_are_those_of_the_tables(state, outputs):
  found = rates(DRAFTER, toy.weights(SMALL).target, outputs)
  np.testing.assert_allclose(found[:, :, 0], by_hand(state, of_small), atol=2e-5)


def test_a_cascade_drafts_from_its_middle_model(outputs):
  small = toy.weights(SMALL).target
  cascade = CascadeDrafter(SCORER, UniformDrafter(V), V)
  np.testing.assert_array_equal(rates(cascade, CascadeParams(small, ()), outputs),
                                rates(DRAFTER, small, outputs))


def test_drafters_that_are_asked_position_by_position(state, outputs):
  def uniform(kind, before, newest, temperature):
    return np.full(V, 1 / V) if temperature else np.eye(V)[0]

  found = rates(UniformDrafter(V), (), outputs, depth=GAMMA)
  assert found.shape == (B, LEN, 1, 2), "where a draft began makes no difference"
  np.testing.assert_allclose(found[:, :, 0], by_hand(state, uniform), atol=2e-5)
  small = toy.weights(SMALL).target
  asked = alpha_lib._of_proposals(DRAFTER, 1, small, *outputs, jnp.asarray(LENIENCES))
  np.testing.assert_allclose(asked, rates(DRAFTER, small, outputs), atol=2e-5)


def test_copies_are_one_hot_and_behind_a_wrong_token_nothing_counts(state, outputs):
  found = rates(CopyDrafter(V, max_match=1), (), outputs, depth=2)
  ids, length = np.asarray(state.ids), np.asarray(state.length)
  scored = np.asarray(outputs[1].probs)
  seen = 0
  for b in range(B):
    for t in range(1, length[b] - 1):
      before = [i for i in range(1, t) if ids[b, i] == ids[b, t]]
      if not before or ids[b, t] == KINDS[b]:
        continue
      # The latest place in the output, as the input has one token and no other place.
      token = ids[b, before[-1] + 1]
      assert found[b, t, 0, 0] == pytest.approx(scored[b, t, token], abs=1e-6)
      goes_on = ids[b, t + 1] == token and t + 1 < length[b] - 1 and before[-1] + 1 < t
      assert np.isnan(found[b, t, 1, 0]) != goes_on
      seen += 1
  assert seen > 20


def checked(state, drafter, params, verifier=None):
  source, scored = score(state)
  trace, calls = state.trace, np.asarray(state.stats.target_calls)
  trace = jax.tree.map(np.asarray, trace)
  found = rates(drafter, params, (source, scored))
  parts = [alpha_lib.tested(trace, b, calls[b], found[b, :int(state.length[b]) - 1, :, 0])
           for b in range(B)]
  return parts, Calibration.of(*(np.concatenate(x) for x in zip(*parts)))


def test_a_run_keeps_to_its_rates_and_one_that_accepts_too_much_does_not(state):
  small = toy.weights(SMALL).target
  parts, sound = checked(state, DRAFTER, small)
  assert sound.tested == int(np.asarray(state.stats.tested).sum())
  assert sound.accepted == int(np.asarray(state.stats.accepted).sum())
  assert sound.holds and sound.standard_error > 2
  greedy = Calibration.of(*(np.concatenate(x) for x in zip(*parts[B // 2:])))
  assert greedy.difference == 0 and greedy.standard_error == 0
  kind = checked(run(TooKind()), DRAFTER, small)[1]
  assert kind.difference > 3 * kind.standard_error and not kind.holds


def test_a_calibration_wants_the_rates_of_the_run():
  with pytest.raises(SpecdecError, match="no acceptance rate"):
    Calibration.of(np.array([True]), np.array([np.nan]))
  assert Calibration.of(np.array([], bool), np.array([])).holds


def test_intervals_cover_the_mean_as_often_as_they_say():
  """Sentences of unlike rates and lengths: single positions would give too narrow ones."""
  rng = np.random.default_rng(0)
  covered = 0
  for seed in range(200):
    levels = rng.beta(2, 2, 60)
    values = [rng.random(n) < level for n, level in zip(rng.integers(5, 30, 60), levels)]
    found = estimates.mean([v.astype(float) for v in values], resamples=300, seed=seed)
    covered += found.low <= 0.5 <= found.high
  assert 178 <= covered <= 199


def test_means_and_profiles_leave_out_what_was_not_drafted():
  values = [np.array([1.0, np.nan, 0.0]), np.array([np.nan]), np.array([0.5])]
  found = estimates.mean(values)
  assert found.value == 0.5 and 0 <= found.low <= 0.5 <= found.high <= 1
  assert estimates.mean([np.array([np.nan])]) is None
  assert estimates.profile(values) == [
      {"begin": 0, "end": 1, "mean": 0.75, "positions": 2},
      {"begin": 2, "end": 3, "mean": 0.0, "positions": 1}]
