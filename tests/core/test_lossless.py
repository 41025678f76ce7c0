"""The decoding loop returns the target's own joint law, and the tests would notice if not.

Each row of a large batch is an example of its own, so its output is an independent
sample of whole sequences; their counts are compared with the exact law of a
second-order Markov target by chi-square. Keys are fixed, so every p-value below is a
constant: right programs must exceed 1e-4 and wrong ones stay below 1e-6. When a
change of the random streams moves them, a right program still fails once in ten
thousand times.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import loop
from specdec.core.keys import Role
from specdec.core.rules import sampling
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.core.verify import BlockVerifier
from specdec.core.verify import CoupledVerifier
from specdec.core.verify import LenientVerifier
from specdec.core.verify import TokenVerifier
from specdec.drafters.transformer import TransformerDrafter
from specdec.testing import goodness
from specdec.testing import markov
from tests.core import broken
from tests.core import toy

BATCH, V, EOS = 1 << 15, 4, 1
# Long enough for a whole draft of four, its bonus, and what depends on both.
LENGTH = 6
KINDS = np.arange(BATCH) % 2
RIGHT, WRONG = 1e-4, 1e-6

TARGET = markov.random_weights(0, V, kinds=2)


def _near_target(width: int):
  """Drafter weights at another vocabulary width: cut or padded, then disturbed."""
  rng = np.random.default_rng(width)

  def resize(x, axes):
    for axis in axes:
      x = x.take(range(min(width, V)), axis)
      pad = [(0, 0)] * x.ndim
      pad[axis] = (0, width - x.shape[axis])
      x = np.pad(x, pad)
    return x + rng.normal(0, 1.0, x.shape).astype(np.float32)

  return {"logits": resize(TARGET["logits"], (0, 1, 2)),
          "by_source": resize(TARGET["by_source"], (1, 2))}


WEIGHTS = {width: jax.tree.map(jnp.asarray, Weights(TARGET, _near_target(width)))
           for width in (V - 1, V, V + 2)}
SCORER = markov.MarkovScorer(V)
DRAFTER = TransformerDrafter(SCORER, V)
NARROW = TransformerDrafter(markov.MarkovScorer(V - 1), V)
WIDE = TransformerDrafter(markov.MarkovScorer(V + 2), V)

# Temperature, top-k, top-p: one value for all rows, or one per row.
SETTINGS = {
    "plain": (1.0, 0, 0.0),
    "cool": (0.7, 0, 0.0),
    "top_k": (1.0, 2, 0.0),
    "top_p": (1.3, 0, 0.8),
    # Each of them for rows of both kinds.
    "mixed": tuple(np.resize(np.repeat(column, 2), BATCH) for column in zip(
        (1.0, 0, 0.0), (0.0, 0, 0.0), (0.7, 3, 0.0), (1.5, 0, 0.9), (1.2, 2, 0.95))),
}


@dataclasses.dataclass(frozen=True)
class Deterministic(TransformerDrafter):
  """Drafts its likeliest tokens and says so."""

  def propose(self, params, state, context, gamma):
    rules = context.rules.replace(sampling=sampling(context.length.shape[0], 0.0))
    proposal, state = super().propose(params, state, context.replace(rules=rules), gamma)
    return proposal.replace(probs=None), state


@dataclasses.dataclass(frozen=True)
class StopsWhenUnsure(TransformerDrafter):
  """Drafts position i only while q_i, as a distribution, is peaked; often nothing at all."""

  def propose(self, params, state, context, gamma):
    proposal, state = super().propose(params, state, context, gamma)
    sure = jnp.cumprod((proposal.probs.max(-1) > 0.6).astype(jnp.int32), 1)
    return proposal.replace(num_drafted=sure.sum(1)), state


@functools.cache
def measure(method: Method, settings: str = "plain", width: int = V, seed: int = 0, **speculation):
  """P-value of the outputs against the exact law, and the final state."""
  chosen = sampling(BATCH, *SETTINGS[settings])
  weights = WEIGHTS[width]
  speculation = {"lenience": 0.5, **speculation}  # Which nobody but the lenient looks at.
  state = toy.start(method, weights, KINDS, max_len=LENGTH, seed=seed)
  state = loop.run(method, weights, state,
                   toy.rules(chosen, BATCH, LENGTH, (EOS,), **speculation), toy.exits())
  found = goodness.p_value(*toy.fits(state, TARGET, KINDS, chosen, EOS, LENGTH))
  return found, state


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("gamma", [0, 1, 2, 4])
def test_joint_law(gamma, settings):
  method = Method(SCORER, DRAFTER if gamma else None, gamma)
  found, _ = measure(method, settings)
  assert found > RIGHT


@pytest.mark.parametrize("settings", ["plain", "mixed"])
@pytest.mark.parametrize("drafter, width", [(NARROW, V - 1), (WIDE, V + 2)])
def test_joint_law_with_another_vocabulary_width(drafter, width, settings):
  found, _ = measure(Method(SCORER, drafter, 2), settings, width)
  assert found > RIGHT


@pytest.mark.parametrize("settings", ["plain", "mixed"])
@pytest.mark.parametrize("drafter", [Deterministic(SCORER, V), StopsWhenUnsure(SCORER, V)])
def test_joint_law_of_other_drafts(drafter, settings):
  found, state = measure(Method(SCORER, drafter, 2), settings)
  assert found > RIGHT
  assert np.asarray(state.stats.accepted).sum() > BATCH


@pytest.mark.parametrize("settings", ["plain", "mixed"])
@pytest.mark.parametrize("verifier", [BlockVerifier(), CoupledVerifier()])
@pytest.mark.parametrize("drafter, gamma", [(DRAFTER, 1), (DRAFTER, 2), (DRAFTER, 4),
                                            (StopsWhenUnsure(SCORER, V), 3),
                                            (Deterministic(SCORER, V), 3)])
def test_joint_law_of_other_verifiers(drafter, gamma, verifier, settings):
  found, state = measure(Method(SCORER, drafter, gamma, verifier), settings)
  assert found > RIGHT
  assert np.asarray(state.stats.accepted).sum() > BATCH / 2


@pytest.mark.parametrize("verifier", [TokenVerifier(), BlockVerifier()])
def test_joint_law_where_the_drafter_must_be_confident(verifier):
  """Rows that stop by themselves, and rows with a gamma of their own, in one batch."""
  # Each of them for rows of both kinds.
  settings = np.tile(np.repeat([0.0, 0.5, 0.6, 0.0], 2), BATCH // 8)
  gamma = np.tile(np.repeat([3, 3, 2, 1], 2), BATCH // 8)
  # Compiled for one more, as others are.
  method = Method(SCORER, DRAFTER, 4, verifier)
  chosen, weights = sampling(BATCH, 1.0), WEIGHTS[V]
  state = toy.start(method, weights, KINDS, max_len=LENGTH)
  rules = toy.rules(chosen, BATCH, LENGTH, (EOS,), confidence=settings, gamma=gamma)
  state = loop.run(method, weights, state, rules, toy.exits())
  assert goodness.p_value(*toy.fits(state, TARGET, KINDS, chosen, EOS, LENGTH)) > RIGHT
  per_call = np.asarray(state.stats.drafted / state.stats.target_calls)
  drafted = per_call.reshape(-1, 4, 2).mean((0, 2))
  assert (drafted <= [3, 3, 2, 1]).all() and drafted[0] > drafted[2] > 0.1


def test_block_verification_accepts_more():
  """With the same drafts at the first iteration; in expectation, never less."""
  calls = [np.asarray(measure(Method(SCORER, DRAFTER, 4, verifier))[1].stats.target_calls)
           for verifier in (BlockVerifier(), TokenVerifier())]
  gain = calls[1].mean() / calls[0].mean() - 1
  assert gain > 0.01, gain


def test_coupled_ids_do_not_depend_on_drafter_or_gamma():
  said = []
  for drafter, gamma in ((None, 0), (DRAFTER, 1), (DRAFTER, 2), (DRAFTER, 4),
                         (StopsWhenUnsure(SCORER, V), 3), (Deterministic(SCORER, V), 3)):
    _, state = measure(Method(SCORER, drafter, gamma, CoupledVerifier()), "mixed")
    said.append(toy.sequences(state))
  assert all(s == said[0] for s in said)


@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_acceptance_is_the_expected_one(gamma):
  """alpha = E[sum min(p, q)] over the prefixes that are tested; at the first position, exactly."""
  method = Method(SCORER, DRAFTER, gamma)
  weights = WEIGHTS[V]
  state = toy.start(method, weights, KINDS, max_len=LENGTH)
  state = loop.run(method, weights, state, toy.rules(sampling(BATCH, 1.0), BATCH,
                   LENGTH, (EOS,)), toy.exits(max_iterations=1))
  accepted = np.asarray(state.stats.accepted) > 0
  for kind in (0, 1):
    beta = toy.first_acceptance(TARGET, _near_target(V), kind)
    seen = accepted[kind == KINDS].mean()
    # Five standard errors of a proportion, with fixed keys.
    assert abs(seen - beta) < 5 * np.sqrt(beta * (1 - beta) / (BATCH / 2))


def test_forgetting_q_altogether_is_exact_and_costs_acceptance():
  """Each drawn token as a one-hot q: a valid drafter, at sum p q instead of sum min(p, q)."""
  found, state = measure(Method(SCORER, DRAFTER, 2, broken.ForgetsQ()))
  _, usual = measure(Method(SCORER, DRAFTER, 2))
  rate = lambda s: np.asarray(s.stats.accepted).sum() / np.asarray(s.stats.tested).sum()
  assert found > RIGHT
  assert rate(state) < rate(usual) - 0.1


# A control shows the mistake in the same test that the real program passes.
CONTROLS = {
    "residual's q one position late": Method(SCORER, DRAFTER, 2, broken.ResidualShifted(1)),
    "residual's q one position early": Method(SCORER, DRAFTER, 2, broken.ResidualShifted(-1)),
    "p after a rejection": Method(SCORER, DRAFTER, 2, broken.NoResidual()),
    "bonus from the wrong position": Method(SCORER, DRAFTER, 2, broken.BonusTooEarly()),
    "q at another temperature": Method(SCORER, DRAFTER, 2, broken.OtherTemperature()),
    "q left out of the ratio": Method(SCORER, DRAFTER, 2, broken.NoRatio()),
    "noise of draft and residual shared": Method(
        SCORER, DRAFTER, 2, broken.SharedNoise(Role.RESIDUAL)),
    "noise of draft and bonus shared": Method(SCORER, DRAFTER, 2, broken.SharedNoise(Role.BONUS)),
    "block: noise by position": Method(SCORER, DRAFTER, 2, broken.PositionKeyedBlocks()),
    "block: residual of single tokens": Method(SCORER, DRAFTER, 4, broken.TokenwiseResidual()),
    "lenient": Method(SCORER, DRAFTER, 2, LenientVerifier()),
    "unlikely draws dropped": Method(SCORER, broken.DropsUnlikelyDraws(SCORER, V), 2),
    "rejected token left in the cache": Method(broken.RollsBackTooLittle(V), DRAFTER, 2),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_negative_control_fails(control):
  found, _ = measure(CONTROLS[control])
  assert found < WRONG


def test_noise_by_position_is_exact_token_by_token():
  """So it is no control there: whether a token stands depends on no later position's noise."""
  found, _ = measure(Method(SCORER, DRAFTER, 2, broken.PositionKeyedTokens()))
  assert found > RIGHT
