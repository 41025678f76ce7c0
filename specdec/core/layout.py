"""How a batch lies on several devices.

A mesh of devices has two axes: `data`, which rows are split over, and `model`, which heads
and widths of a model are. The program is the same on one device and on many: the mesh it
runs on is the ambient one (`jax.set_mesh`), what is said here about arrays is left out
where there is none, and XLA's partitioner adds the communication (GSPMD). An axis that does
not divide is not split.
"""

from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec

Array = jax.Array
PyTree = Any

DATA = "data"
MODEL = "model"

# Left to the partitioner.
_OPEN = PartitionSpec.UNCONSTRAINED


def size(axis: str) -> int:
  """Devices along an axis of the ambient mesh; 1 without a mesh."""
  return jax.sharding.get_abstract_mesh().shape.get(axis, 1)


def constrain(x: Array, *axes: Any) -> Array:
  """Says how an array lies on the ambient mesh.

  Args:
    x: an array of any kind.
    *axes: for each dimension the mesh axis it is split over, or None; dimensions that are
      not named are not split.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return x
  divides = lambda i, axis: axis in (None, _OPEN) or x.shape[i] % size(axis) == 0
  spec = [axis if divides(i, axis) else None for i, axis in enumerate(axes)]
  return lax.with_sharding_constraint(x, PartitionSpec(*spec))


def rows(tree: PyTree, batch: int, rest_open: bool = False) -> PyTree:
  """Splits every array of `batch` rows over `data`; the others have no rows and stay.

  Args:
    tree: of arrays.
    batch: number of rows.
    rest_open: leave the other dimensions to the partitioner, or to who knows better.
  """
  if jax.sharding.get_abstract_mesh().empty:
    return tree

  def one(x: Array) -> Array:
    if not x.ndim:
      return constrain(x)
    if x.shape[0] != batch:
      return x
    return constrain(x, DATA, *[_OPEN if rest_open else None] * (x.ndim - 1))

  return jax.tree.map(one, tree)
