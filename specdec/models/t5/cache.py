"""The decode cache: written over, rolled back by length, never by value."""

import flax.struct
import jax
from jax import lax
import jax.numpy as jnp

from specdec.core import layout

Array = jax.Array


class Cache(flax.struct.PyTreeNode):
  """Keys and values of one batch, a tuple entry per decoder layer.

  Only slots below a row's `length` are ever attended to; what stands behind them
  is left over from rejected drafts and will be overwritten.

  Attributes:
    self_key: L x [B, H, T, K].
    self_value: L x [B, H, T, K].
    cross_key: L x [B, H, S, K], computed once from the encoder output.
    cross_value: L x [B, H, S, K].
    source_mask: bool [B, S], True where a source token stands.
    length: int32 [B], tokens fed so far.
  """

  self_key: tuple[Array, ...]
  self_value: tuple[Array, ...]
  cross_key: tuple[Array, ...]
  cross_value: tuple[Array, ...]
  source_mask: Array
  length: Array

  @property
  def capacity(self) -> int:
    """Number of slots `T`, static."""
    return self.self_key[0].shape[2]


def write(buffer: Array, new: Array, offset: Array) -> Array:
  """Overwrites `G` slots of every row from its own offset on.

  Args:
    buffer: [B, H, T, K].
    new: [B, H, G, K].
    offset: int32 [B]; `offset + G <= T` is the caller's duty (the engine
      allocates gamma + 2 slots of slack). Beyond that, a batch of one would be
      clamped by XLA on accelerators; everything else drops the write.

  Returns:
    [B, H, T, K].
  """
  new = new.astype(buffer.dtype)
  if layout.size(layout.DATA) > 1:
    # Said as a batch of scatters, so that the partitioner sees that no row leaves its device.
    return jax.vmap(_row_scatter)(buffer, new, offset)
  if buffer.shape[0] > 1:
    rows = jnp.arange(buffer.shape[0])[:, None]
    slots = offset[:, None] + jnp.arange(new.shape[2])
    # Advanced indices around a slice put [B, G] first: values are [B, G, H, K].
    return buffer.at[rows, :, slots].set(new.transpose((0, 2, 1, 3)), mode="drop")
  # An update slice is one in-place copy on accelerators. The CPU compiler fuses it into
  # each of its users, once as part of the cache and once as an operand of the attention,
  # and then copies the whole buffer for both; a scatter it writes in place.
  return lax.platform_dependent(buffer, new, offset, cpu=_scatter, default=_update_slice)


def _row_scatter(buffer: Array, new: Array, offset: Array) -> Array:
  slots = offset + jnp.arange(new.shape[1])
  return buffer.at[:, slots].set(new, mode="drop", unique_indices=True)


def _update_slice(buffer: Array, new: Array, offset: Array) -> Array:
  return lax.dynamic_update_slice(buffer, new, (0, 0, offset[0], 0))


def _scatter(buffer: Array, new: Array, offset: Array) -> Array:
  heads = jnp.arange(buffer.shape[1])[:, None]
  slots = offset[0] + jnp.arange(new.shape[2])
  return buffer.at[0, heads, slots].set(new[0], mode="drop", unique_indices=True)
