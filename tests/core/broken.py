"""Mistakes that speculative decoders make, each as a plug-in for the real loop."""

import dataclasses

import jax.numpy as jnp

from specdec.core import probs
from specdec.core.verify import TokenVerifier
from specdec.core.verify import Verdict
from specdec.drafters.transformer import TransformerDrafter
from specdec.testing.markov import MarkovScorer


def _finish(verdict, num_drafted, noise, residual, bonus):
  """Replaces the token of a verdict, drawn from weights [B, V] by what happened."""
  rejected = (verdict.num_accepted < num_drafted)[:, None]
  residual = jnp.where(residual.sum(-1, keepdims=True) > 0, residual, bonus)
  return Verdict(verdict.num_accepted, probs.draw(
      jnp.where(rejected, noise.residual, noise.bonus),
      jnp.where(rejected, residual, bonus)))


def _at(values, index):
  index = jnp.clip(index, 0, values.shape[1] - 1)
  return jnp.take_along_axis(values, index[:, None, None], 1)[:, 0]


@dataclasses.dataclass(frozen=True)
class ResidualShifted(TokenVerifier):
  """Takes the residual's q from a neighbour of the rejected position."""

  shift: int = 1

  def __call__(self, noise, draft, q, p, num_drafted):
    verdict = super().__call__(noise, draft, q, p, num_drafted)
    n = verdict.num_accepted
    residual = jnp.maximum(_at(p, n) - _at(q, n + self.shift), 0.0)
    return _finish(verdict, num_drafted, noise, residual, _at(p, n))


@dataclasses.dataclass(frozen=True)
class NoResidual(TokenVerifier):
  """Draws from p itself after a rejection."""

  def __call__(self, noise, draft, q, p, num_drafted):
    verdict = super().__call__(noise, draft, q, p, num_drafted)
    at = _at(p, verdict.num_accepted)
    return _finish(verdict, num_drafted, noise, at, at)


@dataclasses.dataclass(frozen=True)
class BonusTooEarly(TokenVerifier):
  """Draws the bonus token from the last drafted position's p."""

  def __call__(self, noise, draft, q, p, num_drafted):
    verdict = super().__call__(noise, draft, q, p, num_drafted)
    n = verdict.num_accepted
    return _finish(verdict, num_drafted, noise, jnp.maximum(_at(p, n) - _at(q, n), 0.0),
                   _at(p, jnp.where(num_drafted > 0, n - 1, n)))


@dataclasses.dataclass(frozen=True)
class OtherTemperature(TokenVerifier):
  """Tests and corrects with q at twice the temperature it was drawn at."""

  def __call__(self, noise, draft, q, p, num_drafted):
    q = jnp.sqrt(q)
    return super().__call__(noise, draft, q / q.sum(-1, keepdims=True), p, num_drafted)


@dataclasses.dataclass(frozen=True)
class NoRatio(TokenVerifier):
  """Accepts with p instead of p / q, and corrects as if it had not."""

  def __call__(self, noise, draft, q, p, num_drafted):
    verdict = super().__call__(noise, draft, None, p, num_drafted)
    at = _at(p, verdict.num_accepted)
    return _finish(verdict, num_drafted, noise,
                   jnp.maximum(at - _at(q, verdict.num_accepted), 0.0), at)


@dataclasses.dataclass(frozen=True)
class ForgetsQ(TokenVerifier):
  """Treats a token that was drawn as if the drafter could have said nothing else.

  No mistake in the law: given the token, a one-hot q is a drafter as good as any.
  """

  def __call__(self, noise, draft, q, p, num_drafted):
    return super().__call__(noise, draft, None, p, num_drafted)


@dataclasses.dataclass(frozen=True)
class SharedNoise(TransformerDrafter):
  """Draws its first token with the noise of another role.

  A place is `(level * 4 + role) * 4096 + offset`, so half a level below the
  drafter's own lies RESIDUAL and three quarters below lies BONUS.
  """

  level: float = 0.5

  def propose(self, params, state, context, gamma):
    return super().propose(params, state, context.replace(level=self.level), gamma)


@dataclasses.dataclass(frozen=True)
class DropsUnlikelyDraws(TransformerDrafter):
  """Ends its draft before a token that it drew although it thought it unlikely."""

  def propose(self, params, state, context, gamma):
    proposal, state = super().propose(params, state, context, gamma)
    chance = jnp.take_along_axis(proposal.probs, proposal.tokens[..., None], -1)[..., 0]
    kept = jnp.cumprod((chance > 0.25).astype(jnp.int32), 1).sum(1)
    return proposal.replace(num_drafted=kept), state


@dataclasses.dataclass(frozen=True)
class RollsBackTooLittle(MarkovScorer):
  """Keeps one rejected token in its cache."""

  def rollback(self, cache, length):
    return super().rollback(cache, jnp.minimum(length + 1, cache.length))
