"""Where the decode weights of a T5 lie on a mesh of devices: pure rules, by name.

The rules are T5X's logical axes (`t5x/partitioning.py::standard_logical_axis_rules`): heads,
feed-forward and vocabulary are split over `model`, batches over `data`; the width of the
model is not split. What comes of a projection is then split as its columns are, and each
block ends in one sum over the devices.
"""

from collections.abc import Callable
from collections.abc import Mapping
import re
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

from specdec.core.layout import MODEL
from specdec.models.t5.config import T5Config

# Logical axes of the parameters [in, out] by the end of their names. What is not listed,
# which is norms and kernels of several projections in one, is held whole by every device.
_AXES = (
    (r"token_embedder/embedding", ("vocab", "embed")),
    (r"logits_dense/kernel", ("embed", "vocab")),
    (r"(query|key|value)/kernel", ("embed", "heads")),
    (r"out/kernel", ("heads", "embed")),
    (r"mlp/wi(_\d+)?/kernel", ("embed", "mlp")),
    (r"mlp/wo/kernel", ("mlp", "embed")),
    (r"rel_embedding", ("heads", "relpos_buckets")),
    (r"by_distance", ("heads", "distance")),
)
_SPLIT = ("heads", "mlp", "vocab")

# The sharding of a parameter by its name with slashes.
Places = Callable[[str], NamedSharding]


def axes(name: str) -> tuple[str, ...]:
  """Logical axes of a decode weight, by its name with slashes; () for one that is not split.

  >>> axes("decoder/layers_0/mlp/wo/kernel_out_in")
  ('embed', 'mlp')
  """
  turned = name.endswith("_out_in")
  for pattern, found in _AXES:
    if re.search(f"(^|/){pattern}$", name.removesuffix("_out_in")):
      return found[::-1] if turned else found
  return ()


def _sizes(config: T5Config) -> dict[str, int]:
  # Columns of a projection are split by heads: a head never lies on two devices.
  return {"heads": config.num_heads, "mlp": config.mlp_dim, "vocab": config.vocab_size}


def undivided(config: T5Config, devices: int) -> dict[str, int]:
  """Logical axes that so many devices do not divide, and their sizes."""
  return {name: size for name, size in _sizes(config).items() if size % devices}


def spec(name: str, config: T5Config, devices: int) -> PartitionSpec:
  """How a decode weight is split over `model`.

  Args:
    name: with slashes, as `weights.prepare` names it.
    config: the architecture.
    devices: along `model`.
  """
  whole = undivided(config, devices)
  return PartitionSpec(*[MODEL if axis in _SPLIT and axis not in whole else None
                         for axis in axes(name)])


def places(config: T5Config, mesh: Mesh, split: bool) -> Places:
  """The sharding of each decode weight on a mesh.

  Args:
    config: the architecture.
    mesh: with the axes `data` and `model`; abstract ones and those of devices that are not
      here will do.
    split: False puts all of the model on every device.
  """
  def of(name: str) -> NamedSharding:
    return NamedSharding(mesh, spec(name, config, mesh.shape[MODEL]) if split
                         else PartitionSpec())

  return of


def put(leaf: Any, dtype: Any, where: NamedSharding) -> jax.Array:
  """An array on the devices that it belongs to, each of which gets its part alone.

  Args:
    leaf: an array; or one on disk, with `shape` and `read(index, dtype)`: a part is read for
      the devices that hold it, and by the processes that have one of them. Anything else
      that `np.asarray` reads is read as a whole.
    dtype: to cast to.
    where: its sharding.
  """
  if isinstance(leaf, jax.Array):
    leaf = leaf.astype(dtype)
    # What is only being traced lies nowhere.
    return leaf if isinstance(leaf, Tracer) else jax.device_put(leaf, where)
  if hasattr(leaf, "read"):
    part = lambda index: leaf.read(index, dtype=dtype)
  else:
    values = np.asarray(leaf)
    part = lambda index: np.asarray(values[index], dtype)
  read: dict[str, np.ndarray] = {}

  def once(index: Any) -> np.ndarray:
    # Devices along `data` hold the same parts.
    key = str(index)
    if key not in read:
      read[key] = part(index)
    return read[key]

  return jax.make_array_from_callback(tuple(leaf.shape), where, once)


def abstract(weights: Any, where: Places) -> Any:
  """Shapes of decode weights with their shardings, for compiling without numbers."""
  def one(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where(name_of(path)))

  return jax.tree_util.tree_map_with_path(one, weights)


def name_of(path: Any) -> str:
  """The name with slashes of a place in a tree of dictionaries."""
  return "/".join(key.key for key in path)


def by_size(mesh: Mapping[str, int]) -> str:
  """A mesh as it is typed."""
  return ",".join(f"{name}:{size}" for name, size in mesh.items())
