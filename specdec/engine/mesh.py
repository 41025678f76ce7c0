"""A mesh of devices as a user names it: `--mesh=data:4,model:2`, `load_pair(mesh=...)`.

Batches are split over `data`; heads, feed-forward and vocabulary of the models over `model`.
An axis that is not named has one device.
"""

import contextlib
import difflib
import logging
import math
from typing import Any

import jax
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

from specdec.core.layout import DATA
from specdec.core.layout import MODEL
from specdec.errors import SpecdecError
from specdec.models.t5 import sharding
from specdec.models.t5.config import T5Config

AXES = (DATA, MODEL)
# How a drafter lies on a mesh: as the target does, or all of it on every device.
DRAFTER_LAYOUTS = ("split", "whole")
_EXPECTED = "expected sizes by axis, such as data:4,model:2"

_log = logging.getLogger("specdec.mesh")


def parse(text: str) -> dict[str, int]:
  """Sizes of both axes.

  Raises:
    SpecdecError: it is malformed, or names another axis.

  >>> parse("model:2")
  {'data': 1, 'model': 2}
  """
  found: dict[str, int] = {}
  for entry in str(text).split(","):
    name, colon, size = (part.strip() for part in entry.partition(":"))
    if not colon or not name:
      raise SpecdecError(f"mesh is {text!r}, and {entry.strip()!r} is no axis with a size; "
                         f"{_EXPECTED}")
    if name not in AXES:
      near = difflib.get_close_matches(name, AXES, 1)
      hint = f"; did you mean {near[0]}?" if near else ""
      raise SpecdecError(f"mesh {text!r} has an axis {name!r}, which there is not{hint}; expected "
                         "data (for batches) and model (for heads and widths), such as "
                         "data:4,model:2")
    if name in found:
      raise SpecdecError(f"mesh {text!r} names {name} twice; {_EXPECTED}")
    if not (size.isascii() and size.isdigit() and int(size) >= 1):
      raise SpecdecError(f"mesh {text!r} gives {name} the size {size!r}; expected an integer "
                         "from 1 up, such as data:4,model:2")
    found[name] = int(size)
  return {name: found.get(name, 1) for name in AXES}


def make(mesh: str | Mesh | None) -> Mesh | None:
  """The mesh of all devices that a text describes; a mesh itself and None stay as they are.

  Raises:
    SpecdecError: it is malformed, or there are not as many devices.
  """
  if mesh is None:
    return None
  if not isinstance(mesh, str):
    if not isinstance(mesh, Mesh) or set(mesh.shape) != set(AXES):
      raise SpecdecError(f"mesh is {mesh!r}; expected a text such as data:4,model:2, or a "
                         "jax.sharding.Mesh with the axes data and model")
    # Of automatic axes: what is said about arrays are wishes, and the partitioner does the rest.
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(AXES))
  sizes, devices = parse(mesh), jax.devices()
  count = math.prod(sizes.values())
  if count != len(devices):
    some = len(devices)
    more = "" if devices[0].platform != "cpu" else (
        f" (or XLA_FLAGS=--xla_force_host_platform_device_count={count} to have so many on a CPU)")
    raise SpecdecError(f"mesh {mesh!r} is for {count} devices, and there "
                       f"{'is 1' if some == 1 else f'are {some}'}; expected sizes whose product "
                       f"is {some}, such as data:{some}{more}")
  return jax.make_mesh(tuple(sizes.values()), tuple(sizes), (AxisType.Auto,) * len(sizes))


def check(mesh: str | None, drafter_layout: str) -> None:
  """Refuses what `make` would, and a layout that there is not.

  Raises:
    SpecdecError: either is wrong.
  """
  if drafter_layout not in DRAFTER_LAYOUTS:
    raise SpecdecError(f"drafter_layout is {drafter_layout!r}; expected one of "
                       f"{', '.join(DRAFTER_LAYOUTS)}")
  make(mesh)


def is_split(mesh: Mesh | None) -> bool:
  """Whether models are split, and not only batches."""
  return mesh is not None and mesh.shape[MODEL] > 1


def rows_multiple(mesh: Mesh | None) -> int:
  """What the inputs of a batch must be a multiple of, to be split evenly."""
  return 1 if mesh is None else mesh.shape[DATA]


def scope(mesh: Mesh | None) -> contextlib.AbstractContextManager:
  """In which programs of the mesh are traced and run."""
  return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def tell(name: str, config: T5Config, mesh: Mesh) -> None:
  """Logs what of a model cannot be split over a mesh."""
  devices = mesh.shape[MODEL]
  whole = sharding.undivided(config, devices)
  if whole:
    listed = ", ".join(f"{axis} ({size})" for axis, size in whole.items())
    _log.warning("mesh: model:%d does not divide %s of %s; every device holds the whole of %s",
                 devices, listed, name, "it" if len(whole) == 1 else "them")


def replicate(tree: Any, mesh: Mesh | None) -> Any:
  """Puts arrays on every device, but for those that lie on the mesh already."""
  if mesh is None:
    return tree

  def one(x: Any) -> jax.Array:
    there = getattr(x, "sharding", None)
    if isinstance(there, NamedSharding) and there.mesh == mesh:
      return x
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec()))

  return jax.tree.map(one, tree)


def place_rows(tree: Any, mesh: Mesh | None, rows: int) -> Any:
  """Puts a batch where its rows belong: arrays of `rows` rows are split over `data`."""
  if mesh is None:
    return tree

  def one(x: Any) -> jax.Array:
    split = np.ndim(x) > 0 and x.shape[0] == rows
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(DATA) if split
                                           else PartitionSpec()))

  return jax.tree.map(one, tree)
