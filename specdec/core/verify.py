"""Which drafted tokens stand, and what follows them.

Algorithm 1 and section 2.3 of the paper, and what has been found since. A verifier is a
pure function of distributions and of uniform noise that is handed to it, so it can be
compared with an oracle number by number.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from specdec.core import keys as keys_lib
from specdec.core import probs
from specdec.core.contracts import Proposal

Array = jax.Array


class Noise(flax.struct.PyTreeNode):
  """Independent uniforms in [0, 1) for one verification.

  Attributes:
    accept: float32 [B, G].
    residual: float32 [B, 2], for the token after a rejection.
    bonus: float32 [B, 2], for the token after a draft that stands whole.
    race: float32 [B, G + 1, V], in (0, 1), for coupled decoding; None elsewhere.
  """

  accept: Array
  residual: Array
  bonus: Array
  race: Array | None = None


class Target(flax.struct.PyTreeNode):
  """What the target says of G + 1 positions.

  Attributes:
    probs: float32 [B, G + 1, V], p.
    logits: float32 [B, G + 1, V], after controls, before temperature and filters.
    greedy: bool [B], rows whose p is one-hot for that reason.
    lenience: float32 [B], see `types.Speculation`.
  """

  probs: Array
  logits: Array
  greedy: Array
  lenience: Array


class Verdict(flax.struct.PyTreeNode):
  """What a verifier decided.

  Attributes:
    num_accepted: int32 [B], drafted tokens that stand; the token after them is
      not counted.
    next_token: int32 [B], the correction or the bonus.
  """

  num_accepted: Array
  next_token: Array


def noise(row_keys: Array, committed: Array, gamma: int, needed: Array | bool = True) -> Noise:
  """The noise of one iteration, from streams that no other draw shares.

  See `keys.uniforms` for the arguments.
  """
  role = keys_lib.Role
  places = jnp.concatenate([
      keys_lib.place(role.RESIDUAL, jnp.zeros(1)),
      keys_lib.place(role.BONUS, jnp.zeros(1)),
      keys_lib.place(role.ACCEPT, jnp.arange(gamma))])
  drawn = keys_lib.uniforms(row_keys, committed, places, needed)
  return Noise(residual=drawn[:, 0], bonus=drawn[:, 1], accept=drawn[:, 2:, 0])


@dataclasses.dataclass(frozen=True)
class TokenVerifier:
  """The paper's rule: token by token, left to right. Lossless.

  Attributes:
    name: as in settings.
    lossless: outputs follow the target's law.
    coupled: its noise goes by absolute position, and so must the drafts'.
  """

  name = "token"
  lossless = True
  coupled = False

  def noise(self, row_keys: Array, committed: Array, gamma: int, vocab_size: int,
            needed: Array | bool = True) -> Noise:
    """What `__call__` wants for the iteration that begins at `committed` [B] tokens."""
    del vocab_size
    return noise(row_keys, committed, gamma, needed)

  def __call__(self, noise: Noise, proposal: Proposal, target: Target) -> Verdict:
    """Verifies a draft.

    Token i stands when `u_i q_i(x_i) < p_i(x_i)`: no division, and a token of
    p = 0 never stands, not even at u = 0. After the first rejection the next
    token comes from `norm(max(0, p - q))`, after a draft that stands whole from
    p itself.

    Args:
      noise: uniforms.
      proposal: tokens behind `num_drafted` are no part of the draft, and may be anything;
        a `probs` of None is a deterministic drafter, whose q is 1 at its token.
      target: its distributions.

    Returns:
      The verdict.
    """
    if proposal.tokens.shape[1] == 0:
      return _plain(noise, target)
    stands = self._stands(noise, proposal, target)
    drafted = jnp.arange(stands.shape[1]) < proposal.num_drafted[:, None]
    num_accepted = jnp.cumprod((stands & drafted).astype(jnp.int32), axis=1).sum(1)
    return _finish(noise, proposal, target, num_accepted, 1.0)

  def _stands(self, noise: Noise, proposal: Proposal, target: Target) -> Array:
    p, q = _at_tokens(proposal, target)
    return noise.accept * q < p

  def chances(self, proposal: Proposal, target: Target) -> Array:
    """How likely each drafted token is to stand, given the draft and that those before it do.

    For traces alone: verifying does without. Over the noise of `__call__`; here it is
    `min(1, p / q)`.

    Returns:
      float32 [B, G]; anything behind `num_drafted`.
    """
    return _share(*_at_tokens(proposal, target))


@dataclasses.dataclass(frozen=True)
class LenientVerifier(TokenVerifier):
  """The paper's lenience (section A.5): q counts l times in the test. NOT lossless.

  No token is more than 1 / l times as likely as under p, given what is before it: the
  residual stays `norm(max(0, p - q))`. A greedy row accepts what the target gives at least
  l times the probability of its favourite, at temperature 1; drafts of a greedy row are
  deterministic, so no noise is used.
  """

  name = "lenient"
  lossless = False

  def _stands(self, noise: Noise, proposal: Proposal, target: Target) -> Array:
    p, q = _at_tokens(proposal, target)
    return jnp.where(target.greedy[:, None], self._close(proposal, target),
                     noise.accept * target.lenience[:, None] * q < p)

  def _close(self, proposal: Proposal, target: Target) -> Array:
    """Which drafted tokens of a greedy row stand."""
    logits = target.logits[:, :-1]
    drafted = jnp.take_along_axis(logits, proposal.tokens[..., None], -1)[..., 0]
    # As a difference of logits: the softmax of both would be divided by one sum.
    return drafted - logits.max(-1) >= jnp.log(target.lenience[:, None])

  def chances(self, proposal: Proposal, target: Target) -> Array:
    """See `TokenVerifier.chances`."""
    p, q = _at_tokens(proposal, target)
    return jnp.where(target.greedy[:, None], self._close(proposal, target),
                     _share(p, target.lenience[:, None] * q))


@dataclasses.dataclass(frozen=True)
class BlockVerifier(TokenVerifier):
  """Verifies a draft as a block (Sun et al. 2024, algorithm 2). Lossless.

  Accepts at least as many tokens in expectation as going token by token, and no verifier
  accepts more: an unlucky token can be made up for by those after it.
  """

  name = "block"

  def __call__(self, noise: Noise, proposal: Proposal, target: Target) -> Verdict:
    """See `TokenVerifier`.

    With `w_0 = 1` and `w_i = min(1, w_{i-1} p_i(x_i) / q_i(x_i))`, the first i tokens
    stand when `u_i < h_i`, for the largest such i. `h_i = s_i / (s_i + 1 - w_i)`, where
    `s_i` is the sum of `max(0, w_i p_{i+1} - q_{i+1})`; after a whole draft `h = w`. Where a
    draft ends may depend on its tokens and on the q after them. The next token comes from
    `norm(max(0, w_n p_{n+1} - q_{n+1}))`, or from p.
    """
    gamma = proposal.tokens.shape[1]
    if gamma == 0:
      return _plain(noise, target)
    weights, passing = self._tests(proposal, target)
    stands = noise.accept < passing
    num_accepted = (gamma - jnp.argmax(stands[:, ::-1], 1)) * stands.any(1)
    weight = jnp.take_along_axis(weights, num_accepted[:, None], 1)
    return _finish(noise, proposal, target, num_accepted.astype(jnp.int32), weight)

  def _tests(self, proposal: Proposal, target: Target) -> tuple[Array, Array]:
    """`w` [B, G + 1] and `h` [B, G], which is 0 where nothing was drafted."""
    q_probs, gamma = proposal.probs, proposal.tokens.shape[1]
    p, q = _at_tokens(proposal, target)
    place = jnp.arange(gamma)
    drafted = place < proposal.num_drafted[:, None]
    # A token was drawn, so q is positive; it may be anything where there is no draft.
    ratio = jnp.where(drafted, p / jnp.where(drafted, q, 1.0), 0.0)

    def carry_on(weight: Array, ratio: Array) -> tuple[Array, Array]:
      weight = jnp.minimum(weight * ratio, 1.0)
      return weight, weight

    _, weights = jax.lax.scan(carry_on, jnp.ones_like(ratio[:, 0]), ratio.T)
    # Before the draft, and behind each of its tokens: [B, G + 1].
    weights = jnp.concatenate([jnp.ones_like(ratio[:, :1]), weights.T], 1)
    # What is left of p for a position after `weights`: [B, G].
    before, p_next = weights[:, :gamma], target.probs[:, :gamma]
    if q_probs is None:
      excess = jnp.maximum(before * (1 - p), 0.0)
    else:
      # Rows without a draft at a position may hold anything there.
      safe = jnp.where(drafted[..., None], q_probs, 0.0)
      excess = jnp.maximum(before[..., None] * p_next - safe, 0.0).sum(-1)
    # After the first i tokens of a draft that goes on, i = 1 ... G - 1.
    going_on = excess / jnp.maximum(excess + 1 - before, jnp.finfo(jnp.float32).tiny)
    going_on = jnp.concatenate([going_on[:, 1:], jnp.zeros_like(going_on[:, :1])], 1)
    last = place == proposal.num_drafted[:, None] - 1
    return weights, jnp.where(drafted, jnp.where(last, weights[:, 1:], going_on), 0.0)

  def chances(self, proposal: Proposal, target: Target) -> Array:
    """See `TokenVerifier.chances`.

    The first i tokens stand unless this test and all behind it fail.
    """
    _, passing = self._tests(proposal, target)
    reach = 1 - jnp.cumprod((1 - passing)[:, ::-1], 1)[:, ::-1]
    before = jnp.concatenate([jnp.ones_like(reach[:, :1]), reach[:, :-1]], 1)
    return _share(reach, before)


@dataclasses.dataclass(frozen=True)
class CoupledVerifier(TokenVerifier):
  """One stream of noise by position for plain decoding, drafts and target. Lossless.

  The target's own draw at a position is decided by that position's noise; a drafted token
  stands when it is that draw. So the output is the same ids whatever drafted them, gamma 0
  included: for regression tests and audits. It accepts less than `TokenVerifier`.
  """

  name = "coupled"
  coupled = True

  def noise(self, row_keys: Array, committed: Array, gamma: int, vocab_size: int,
            needed: Array | bool = True) -> Noise:
    position = committed[:, None] - 1 + jnp.arange(gamma + 1)
    race = keys_lib.by_position(row_keys, position, jnp.arange(vocab_size), needed)
    empty = jnp.zeros((committed.shape[0], 2), jnp.float32)
    return Noise(jnp.zeros((committed.shape[0], gamma), jnp.float32), empty, empty, race)

  def __call__(self, noise: Noise, proposal: Proposal, target: Target) -> Verdict:
    assert noise.race is not None  # It is of this verifier.
    own = probs.race(noise.race, target.probs)
    gamma = proposal.tokens.shape[1]
    drafted = jnp.arange(gamma) < proposal.num_drafted[:, None]
    same = (proposal.tokens == own[:, :gamma]) & drafted
    num_accepted = jnp.cumprod(same.astype(jnp.int32), axis=1).sum(1)
    return Verdict(num_accepted, jnp.take_along_axis(own, num_accepted[:, None], 1)[:, 0])

  def chances(self, proposal: Proposal, target: Target) -> Array:
    """See `TokenVerifier.chances`.

    Both clocks of a race ring first for x with probability 1 / sum_v max(p_v / p_x, q_v / q_x),
    and the drafter's does with probability q_x. A deterministic draft is the target's own draw
    with probability p_x.
    """
    p, q = _at_tokens(proposal, target)
    if proposal.probs is None:
      return p
    both = jnp.maximum(target.probs[:, :-1] * jnp.asarray(q)[..., None],
                       proposal.probs * p[..., None])
    return _share(p, both.sum(-1))


VERIFIERS = {kind.name: kind() for kind in (
    TokenVerifier, BlockVerifier, LenientVerifier, CoupledVerifier)}


def _plain(noise: Noise, target: Target) -> Verdict:
  """Without a draft."""
  none = jnp.zeros(target.probs.shape[:1], jnp.int32)
  return Verdict(none, probs.draw(noise.bonus, target.probs[:, 0]))


def _at_tokens(proposal: Proposal, target: Target) -> tuple[Array, Array | float]:
  """p and q of the drafted tokens, [B, G] each."""
  at = lambda x: jnp.take_along_axis(x, proposal.tokens[..., None], -1)[..., 0]
  return at(target.probs[:, :-1]), 1.0 if proposal.probs is None else at(proposal.probs)


def _share(part: Array, whole: Array | float) -> Array:
  """min(1, part / whole), and 0 where both are."""
  return part / jnp.maximum(jnp.maximum(part, whole), jnp.finfo(jnp.float32).tiny)


def _finish(noise: Noise, proposal: Proposal, target: Target, num_accepted: Array,
            weight: Array | float) -> Verdict:
  """Draws the token after the accepted ones.

  Args:
    noise: uniforms.
    proposal: the draft.
    target: its distributions.
    num_accepted: int32 [B].
    weight: [B, 1] or a scalar, what p counts against q after a rejection.
  """
  gamma = proposal.tokens.shape[1]

  def at_end(values: Array, last: int) -> Array:
    """Picks position `num_accepted`: [B, N, ...] -> [B, ...]."""
    index = jnp.minimum(num_accepted, last)
    index = index.reshape((-1,) + (1,) * (values.ndim - 1))
    return jnp.take_along_axis(values, index, 1)[:, 0]

  p = at_end(target.probs, gamma)
  if proposal.probs is None:
    token = at_end(proposal.tokens, gamma - 1)
    residual = jnp.where(jnp.arange(p.shape[-1]) == token[:, None], 0.0, p)
  else:
    residual = jnp.maximum(weight * p - at_end(proposal.probs, gamma - 1), 0.0)
  # In float32 the residual can vanish although a rejection happened (p and q
  # equal up to rounding): then p is the limit to draw from.
  rejected = (num_accepted < proposal.num_drafted)[:, None]
  from_residual = rejected & (residual.sum(-1, keepdims=True) > 0)
  next_token = probs.draw(jnp.where(rejected, noise.residual, noise.bonus),
                          jnp.where(from_residual, residual, p))
  return Verdict(num_accepted, next_token)
