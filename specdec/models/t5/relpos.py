"""T5's relative position bias (T5X `t5x/examples/t5/layers.py::RelativePositionBiases`)."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from specdec.models.t5.config import T5Config

Array = jax.Array

# Added to masked attention scores. Finite, so that a row in which every key is
# masked yields a uniform softmax instead of NaN.
MASK_VALUE = -1e9


def bucket(relative_position: np.ndarray, bidirectional: bool, num_buckets: int,
           max_distance: int) -> np.ndarray:
  """Maps key position minus query position to a bucket.

  Half of the buckets stand for exact small distances, the others grow
  logarithmically up to `max_distance`; everything beyond shares the last. A
  bidirectional bias spends half of all buckets on keys to the right; a causal
  one puts those keys, which are masked anyway, into bucket 0.

  Args:
    relative_position: int array of any shape.
    bidirectional: True in the encoder.
    num_buckets: total number of buckets.
    max_distance: distance from which the last bucket is used.

  Returns:
    int32 array of the same shape, in [0, num_buckets).
  """
  relative_position = np.asarray(relative_position)
  base = np.zeros(relative_position.shape, np.int32)
  if bidirectional:
    num_buckets //= 2
    base = np.where(relative_position > 0, num_buckets, 0).astype(np.int32)
    distance = np.abs(relative_position)
  else:
    distance = np.maximum(-relative_position, 0)
  exact = num_buckets // 2
  # float32 as in T5X, with its guard against log(0), so that the boundaries
  # between buckets fall at the same distances.
  ratio = distance.astype(np.float32) / np.float32(exact) + np.finfo(np.float32).eps
  grown = exact + (np.log(ratio) / np.float32(math.log(max_distance / exact))
                   * np.float32(num_buckets - exact)).astype(np.int32)
  grown = np.minimum(grown, num_buckets - 1)
  return (base + np.where(distance < exact, distance, grown)).astype(np.int32)


class RelativePositionBias(nn.Module):
  """Bias added to self-attention scores, one value per head and bucket.

  Attributes:
    config: the architecture.
    bidirectional: True in the encoder.
    by_distance: reads the decode layout `by_distance` [H, max_distance + 1], in
      which every distance has its value already, instead of T5X's
      `rel_embedding` [H, buckets]. Causal only.
  """

  config: T5Config
  bidirectional: bool
  by_distance: bool = False

  def setup(self):
    c = self.config
    if self.by_distance:
      self.table = self.param("by_distance", nn.initializers.zeros,
                              (c.num_heads, c.relpos_max_distance + 1), jnp.float32)
    else:
      self.table = self.param(
          "rel_embedding", nn.initializers.variance_scaling(1.0, "fan_avg", "uniform"),
          (c.num_heads, c.relpos_num_buckets), jnp.float32)

  def _lookup(self, relative_position: np.ndarray) -> Array:
    """[...] positions -> [H, ...] float32."""
    c = self.config
    if self.by_distance:
      index = np.clip(-relative_position, 0, c.relpos_max_distance)
    else:
      index = bucket(relative_position, self.bidirectional, c.relpos_num_buckets,
                     c.relpos_max_distance)
    return self.table.astype(jnp.float32)[:, index]

  def square(self, size: int) -> Array:
    """Bias [1, H, size, size] between `size` queries and keys from position 0."""
    position = np.arange(size)
    return self._lookup(position[None, :] - position[:, None])[None]

  def at(self, offset: Array, num_queries: int, capacity: int) -> Array:
    """Bias and causal mask for queries that start at a row's own offset.

    Args:
      offset: int32 [B], position of the first query of every row.
      num_queries: `G`, static.
      capacity: `T`, the number of cache slots.

    Returns:
      float32 [B, H, G, T]; slots after the query carry a large negative value.
    """
    c = self.config
    query = offset[:, None] + jnp.arange(num_queries)  # [B, G]
    distance = query[:, :, None] - jnp.arange(capacity)  # [B, G, T]
    if self.by_distance:
      table = self.table.astype(jnp.float32)
    else:
      table = self._lookup(-np.arange(c.relpos_max_distance + 1))
    bias = table[:, jnp.clip(distance, 0, c.relpos_max_distance)]  # [H, B, G, T]
    bias = jnp.where(distance >= 0, bias, MASK_VALUE)
    return bias.transpose((1, 0, 2, 3))
