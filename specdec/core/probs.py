"""From logits to the distribution that is sampled, and from it to a token.

One function serves plain decoding, drafting and verification. The paper calls
this standardised sampling (section 2.2): argmax, temperature, top-k and nucleus
are all ordinary sampling from an adjusted distribution, so speculative sampling
is exact for each as long as p and q are adjusted alike.

The settings have T5X's meanings (`t5x/decoding.py::temperature_sample`):
temperature first, then top-k, then top-p; ties at a threshold are all kept; a
temperature of 1e-4 or less is greedy. They are traced, a value per row, and the
costly filters run only while some row asks for them.
"""

from collections.abc import Callable

import jax
from jax import lax
import jax.numpy as jnp

from specdec.types import Sampling

Array = jax.Array

# T5X's MIN_TEMPERATURE: at or below it a row is decoded greedily.
MIN_TEMPERATURE = 1e-4
_BLOCK = 128


def is_greedy(sampling: Sampling) -> Array:
  """Which rows are decoded greedily, bool [B]."""
  return sampling.temperature <= MIN_TEMPERATURE


def distribution(logits: Array, sampling: Sampling) -> Array:
  """Adjusts logits and normalises them.

  Args:
    logits: float [B, G, V]. -inf is a forbidden token.
    sampling: settings with a value per row.

  Returns:
    float32 [B, G, V], rows summing to 1. A position whose logits hold NaN or
    +inf, or forbid every token, is treated as if all its logits were equal: a
    proper q that a verifier can correct. The target's own such positions end the row (`step`).
  """
  logits = logits.astype(jnp.float32)
  peak = logits.max(-1, keepdims=True)
  # A NaN anywhere makes the maximum NaN; all -inf makes it -inf.
  logits = jnp.where(jnp.isfinite(peak), logits - peak, 0.0)
  greedy = is_greedy(sampling)[:, None, None]

  def argmax() -> Array:
    best = jnp.argmax(logits, -1)
    return (best[..., None] == jnp.arange(logits.shape[-1])).astype(jnp.float32)

  def sampled() -> Array:
    # The peak is 0 by now, so no temperature can overflow what matters.
    temperature = jnp.maximum(sampling.temperature, MIN_TEMPERATURE)
    scaled = logits / temperature[:, None, None]
    scaled = lax.cond(jnp.any(sampling.top_k > 0), _keep_top_k, lambda x, _: x,
                      scaled, sampling.top_k)
    scaled = lax.cond(jnp.any(sampling.top_p > 0), _keep_top_p, lambda x, _: x,
                      scaled, sampling.top_p)
    return jax.nn.softmax(scaled, axis=-1)

  return lax.cond(jnp.all(greedy), argmax,
                  lambda: jnp.where(greedy, argmax(), sampled()))


def _keep_top_k(scaled: Array, top_k: Array) -> Array:
  k = top_k[:, None, None]
  ordered = _ordered(scaled)
  threshold = _largest(
      lambda t: (ordered >= t).sum(-1, keepdims=True, dtype=jnp.int32) >= k, scaled)
  return jnp.where((ordered >= threshold) | (k <= 0), scaled, -jnp.inf)


def _keep_top_p(scaled: Array, top_p: Array) -> Array:
  p = top_p[:, None, None]
  ordered = _ordered(scaled)
  probs = jax.nn.softmax(scaled, axis=-1)
  threshold = _largest(
      lambda t: jnp.where(ordered >= t, probs, 0.0).sum(-1, keepdims=True) >= p, scaled)
  return jnp.where((ordered >= threshold) | (p <= 0), scaled, -jnp.inf)


def _ordered(x: Array) -> Array:
  """Maps float32 to uint32 so that order and ties are kept."""
  # The two zeros are one number in two bit patterns, and must tie.
  bits = lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.uint32)
  return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _largest(holds: Callable[[Array], Array], like: Array) -> Array:
  """Largest uint32 threshold [B, G, 1] for which a falling predicate holds.

  Bit by bit from the top: 32 passes over the vocabulary and no sort, which no
  backend does well at 32128 entries. It must hold at 0.
  """
  start = jnp.zeros((*like.shape[:-1], 1), jnp.uint32)

  def narrow(i, threshold):
    candidate = threshold | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
    return jnp.where(holds(candidate), candidate, threshold)

  return lax.fori_loop(0, 32, narrow, start)


def draw(noise: Array, weights: Array) -> Array:
  """Draws one id per row in proportion to its weight, by inverse CDF.

  Two levels: a block of 128 ids, then an id within it, each with a uniform of
  its own. Two numbers replace the V that a Gumbel draw needs, and since the grid
  of a float32 uniform applies within a block, tokens far below 2**-23 are drawn
  at their own rate. An id of weight 0 is never drawn, whatever the rounding.

  Args:
    noise: float32 [..., 2] in [0, 1).
    weights: float32 [..., V], non-negative, not all zero; need not sum to 1.

  Returns:
    int32 [...].
  """
  size = weights.shape[-1]
  blocks = -(-size // _BLOCK)
  padding = [(0, 0)] * (weights.ndim - 1) + [(0, blocks * _BLOCK - size)]
  tiled = jnp.pad(weights, padding).reshape((*weights.shape[:-1], blocks, _BLOCK))
  block = _inverse_cdf(noise[..., 0], tiled.sum(-1))
  row = jnp.take_along_axis(tiled, block[..., None, None], axis=-2)[..., 0, :]
  return block * _BLOCK + _inverse_cdf(noise[..., 1], row)


def race(noise: Array, weights: Array) -> Array:
  """Draws one id per row in proportion to its weight: the first of exponential clocks.

  An id's clock runs at its weight and on its own noise, so two distributions that share
  the noise often pick the same id: with probability (1 - d) / (1 + d) at least, at a
  total variation of d. An id of weight 0 is never drawn.

  Args:
    noise: float32 [..., V] in (0, 1).
    weights: float32 [..., V], non-negative, not all zero.

  Returns:
    int32 [...].
  """
  return jnp.argmax(weights / -jnp.log(noise), -1).astype(jnp.int32)


def draw_among(noise: Array, weights: Array) -> Array:
  """`draw` for short rows [..., K]: the index that the first uniform of `noise` picks."""
  return _inverse_cdf(noise[..., 0], weights)


def _inverse_cdf(uniform: Array, weights: Array) -> Array:
  """First index whose cumulated weight exceeds `uniform` of the total."""
  # A product with a triangle of ones: one operation where a prefix sum becomes
  # dozens, and these rows are short. Full precision, as TPUs default to less.
  triangle = jnp.triu(jnp.ones((weights.shape[-1],) * 2, jnp.float32))
  cumulated = jnp.matmul(weights, triangle, precision=lax.Precision.HIGHEST)
  positive = weights > 0
  # Sums in parallel need not be monotone in float32: asking for a positive weight
  # as well keeps rounding from choosing a forbidden id.
  hit = (cumulated > uniform[..., None] * cumulated[..., -1:]) & positive
  last = weights.shape[-1] - 1 - jnp.argmax(positive[..., ::-1], axis=-1)
  return jnp.where(hit.any(-1), jnp.argmax(hit, -1), last).astype(jnp.int32)
