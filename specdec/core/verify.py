"""Speculative sampling: which drafted tokens stand, and what follows them.

Algorithm 1 and section 2.3 of the paper. A verifier is a pure function of
distributions and of uniform noise that is handed to it, so it can be compared
with an oracle number by number.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from specdec.core import keys as keys_lib
from specdec.core import probs

Array = jax.Array


@flax.struct.dataclass
class Noise:
  """Independent uniforms in [0, 1) for one verification.

  Attributes:
    accept: float32 [B, G].
    residual: float32 [B, 2], for the token after a rejection.
    bonus: float32 [B, 2], for the token after a draft that stands whole.
  """

  accept: Array
  residual: Array
  bonus: Array


@flax.struct.dataclass
class Verdict:
  """What a verifier decided.

  Attributes:
    num_accepted: int32 [B], drafted tokens that stand; the token after them is
      not counted.
    next_token: int32 [B], the correction or the bonus.
  """

  num_accepted: Array
  next_token: Array


def noise(row_keys: Array, committed: Array, gamma: int, level: int = 0,
          needed: Array | bool = True) -> Noise:
  """The noise of one iteration, from streams that no other draw shares.

  See `keys.uniforms` for the arguments.
  """
  role = keys_lib.Role
  places = jnp.concatenate([
      keys_lib.place(role.RESIDUAL, jnp.zeros(1), level),
      keys_lib.place(role.BONUS, jnp.zeros(1), level),
      keys_lib.place(role.ACCEPT, jnp.arange(gamma), level)])
  drawn = keys_lib.uniforms(row_keys, committed, places, needed)
  return Noise(residual=drawn[:, 0], bonus=drawn[:, 1], accept=drawn[:, 2:, 0])


@dataclasses.dataclass(frozen=True)
class TokenVerifier:
  """The paper's rule: token by token, left to right. Lossless."""

  lossless = True

  def __call__(self, noise: Noise, draft_tokens: Array, draft_probs: Array | None,
               target_probs: Array, num_drafted: Array) -> Verdict:
    """Verifies a draft.

    Token i stands when `u_i q_i(x_i) < p_i(x_i)`: no division, and a token of
    p = 0 never stands, not even at u = 0. After the first rejection the next
    token comes from `norm(max(0, p - q))`, after a draft that stands whole from
    p itself.

    Args:
      noise: uniforms.
      draft_tokens: int32 [B, G].
      draft_probs: float32 [B, G, V], the very distributions the tokens were drawn
        from; None for a deterministic drafter, whose q is 1 at its token.
      target_probs: float32 [B, G + 1, V].
      num_drafted: int32 [B] in [0, G]; later tokens are no part of the draft.

    Returns:
      The verdict.
    """
    gamma = draft_tokens.shape[1]
    if gamma == 0:
      none = jnp.zeros(target_probs.shape[:1], jnp.int32)
      return Verdict(none, probs.draw(noise.bonus, target_probs[:, 0]))

    def at_tokens(distribution: Array) -> Array:
      return jnp.take_along_axis(distribution, draft_tokens[..., None], -1)[..., 0]

    p = at_tokens(target_probs[:, :gamma])
    q = 1.0 if draft_probs is None else at_tokens(draft_probs)
    stands = (noise.accept * q < p) & (jnp.arange(gamma) < num_drafted[:, None])
    num_accepted = jnp.cumprod(stands.astype(jnp.int32), axis=1).sum(1)

    def at_end(values: Array, last: int) -> Array:
      """Picks position `num_accepted`: [B, N, ...] -> [B, ...]."""
      index = jnp.minimum(num_accepted, last)
      index = index.reshape((-1,) + (1,) * (values.ndim - 1))
      return jnp.take_along_axis(values, index, 1)[:, 0]

    p_next = at_end(target_probs, gamma)
    if draft_probs is None:
      token = at_end(draft_tokens, gamma - 1)
      residual = jnp.where(jnp.arange(p_next.shape[-1]) == token[:, None], 0.0, p_next)
    else:
      residual = jnp.maximum(p_next - at_end(draft_probs, gamma - 1), 0.0)
    # In float32 the residual can vanish although a rejection happened (p and q
    # equal up to rounding): then p is the limit to draw from.
    rejected = (num_accepted < num_drafted)[:, None]
    from_residual = rejected & (residual.sum(-1, keepdims=True) > 0)
    next_token = probs.draw(jnp.where(rejected, noise.residual, noise.bonus),
                            jnp.where(from_residual, residual, p_next))
    return Verdict(num_accepted, next_token)
