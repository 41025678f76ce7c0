"""Mistakes that speculative decoders make, each as a plug-in for the real loop."""

import dataclasses

import jax.numpy as jnp

from specdec.core import keys
from specdec.core import probs
from specdec.core.verify import BlockVerifier
from specdec.core.verify import LenientVerifier
from specdec.core.verify import TokenVerifier
from specdec.core.verify import Verdict
from specdec.drafters.transformer import TransformerDrafter
from specdec.testing.markov import MarkovScorer


def _finish(verdict, proposal, noise, residual, bonus):
  """Replaces the token of a verdict, drawn from weights [B, V] by what happened."""
  rejected = (verdict.num_accepted < proposal.num_drafted)[:, None]
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

  def __call__(self, noise, proposal, target):
    verdict = super().__call__(noise, proposal, target)
    n = verdict.num_accepted
    p = _at(target.probs, n)
    residual = jnp.maximum(p - _at(proposal.probs, n + self.shift), 0.0)
    return _finish(verdict, proposal, noise, residual, p)


@dataclasses.dataclass(frozen=True)
class NoResidual(TokenVerifier):
  """Draws from p itself after a rejection."""

  def __call__(self, noise, proposal, target):
    verdict = super().__call__(noise, proposal, target)
    at = _at(target.probs, verdict.num_accepted)
    return _finish(verdict, proposal, noise, at, at)


@dataclasses.dataclass(frozen=True)
class BonusTooEarly(TokenVerifier):
  """Draws the bonus token from the last drafted position's p."""

  def __call__(self, noise, proposal, target):
    verdict = super().__call__(noise, proposal, target)
    n = verdict.num_accepted
    p, q = target.probs, proposal.probs
    return _finish(verdict, proposal, noise, jnp.maximum(_at(p, n) - _at(q, n), 0.0),
                   _at(p, jnp.where(proposal.num_drafted > 0, n - 1, n)))


@dataclasses.dataclass(frozen=True)
class OtherTemperature(TokenVerifier):
  """Tests and corrects with q at twice the temperature it was drawn at."""

  def __call__(self, noise, proposal, target):
    q = jnp.sqrt(proposal.probs)
    return super().__call__(
        noise, proposal.replace(probs=q / q.sum(-1, keepdims=True)), target)


@dataclasses.dataclass(frozen=True)
class NoRatio(TokenVerifier):
  """Accepts with p instead of p / q, and corrects as if it had not."""

  def __call__(self, noise, proposal, target):
    verdict = super().__call__(noise, proposal.replace(probs=None), target)
    at = _at(target.probs, verdict.num_accepted)
    return _finish(verdict, proposal, noise,
                   jnp.maximum(at - _at(proposal.probs, verdict.num_accepted), 0.0), at)


@dataclasses.dataclass(frozen=True)
class ForgetsQ(TokenVerifier):
  """Treats a token that was drawn as if the drafter could have said nothing else.

  No mistake in the law: given the token, a one-hot q is a drafter as good as any.
  """

  def __call__(self, noise, proposal, target):
    return super().__call__(noise, proposal.replace(probs=None), target)


@dataclasses.dataclass(frozen=True)
class SharedNoise(TokenVerifier):
  """Uses the noise of the first drafted token again for what follows the draft."""

  role: keys.Role = keys.Role.RESIDUAL

  def noise(self, row_keys, committed, gamma, vocab_size, needed=True):
    right = super().noise(row_keys, committed, gamma, vocab_size, needed)
    used = keys.uniforms(row_keys, committed, keys.place(keys.Role.DRAFT, jnp.arange(1)))[:, 0]
    return right.replace(**{self.role.name.lower(): used})


@dataclasses.dataclass(frozen=True)
class _ByPosition:
  """Takes the noise of a test from the position that it is about, in every iteration anew."""

  def noise(self, row_keys, committed, gamma, vocab_size, needed=True):
    position = committed[:, None] - 1 + jnp.arange(gamma + 1)
    drawn = keys.by_position(row_keys, position, jnp.arange(4))
    right = super().noise(row_keys, committed, gamma, vocab_size, needed)
    return right.replace(accept=drawn[:, :gamma, 0])


@dataclasses.dataclass(frozen=True)
class PositionKeyedTokens(_ByPosition, TokenVerifier):
  """No mistake with this rule: whether a token stands depends on no later noise."""


@dataclasses.dataclass(frozen=True)
class PositionKeyedBlocks(_ByPosition, BlockVerifier):
  """The noise of a position that was discarded has decided how many tokens stood."""


@dataclasses.dataclass(frozen=True)
class TokenwiseResidual(BlockVerifier):
  """Verifies blocks and corrects as if tokens had been verified one by one."""

  def __call__(self, noise, proposal, target):
    verdict = super().__call__(noise, proposal, target)
    n = verdict.num_accepted
    p = _at(target.probs, n)
    return _finish(verdict, proposal, noise, jnp.maximum(p - _at(proposal.probs, n), 0.0), p)


@dataclasses.dataclass(frozen=True)
class LenientNoResidual(LenientVerifier):
  """Draws from p after a lenient rejection, which breaks the bound of 1 / l."""

  def __call__(self, noise, proposal, target):
    verdict = super().__call__(noise, proposal, target)
    at = _at(target.probs, verdict.num_accepted)
    return _finish(verdict, proposal, noise, at, at)


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
