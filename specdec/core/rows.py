"""Rows of one batch in the place of others': what refilling is made of."""

from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array
PyTree = Any


def replace(tree: PyTree, rows: Array, other: PyTree) -> PyTree:
  """A tree of arrays [B, ...] with rows out of another one's.

  Where the other's arrays are narrower (a source of fewer columns, room for fewer tokens),
  its rows are filled up with zeros, and nothing is left of what stood there: what is masked
  is still multiplied by zero, and a NaN of the row before would come through.

  Args:
    tree: arrays with the rows first.
    rows: int32 [N], where each row of `other` goes. One outside the batch, and so also a
      negative one, goes nowhere.
    other: of the same structure and dtypes, N rows, no array wider than the tree's.

  Raises:
    ValueError: an array of `other` is wider, or of another rank or dtype.
  """
  def one(old: Array, new: Array) -> Array:
    wider = old.ndim != new.ndim or any(n > o for o, n in zip(old.shape[1:], new.shape[1:]))
    if wider or old.dtype != new.dtype:
      raise ValueError(f"rows of {new.dtype}{new.shape} do not go into {old.dtype}{old.shape}; "
                       "expected the same dtype and no dimension but the first to be larger")
    if new.shape[1:] != old.shape[1:]:
      new = jnp.pad(new, [(0, 0), *((0, o - n) for o, n in zip(old.shape[1:], new.shape[1:]))])
    # A negative index would wrap around instead of being dropped.
    inside = jnp.where(rows < 0, old.shape[0], rows)
    return old.at[inside].set(new, mode="drop")

  return jax.tree.map(one, tree, other)
