"""Writes parameters with Orbax one array at a time.

Orbax takes a tree of arrays that are all in memory. A type handler of our own lets it
take arrays that are still on disk somewhere: each is read when it is its turn, written
and forgotten, so that a conversion holds a few arrays and never a model.
"""

from collections.abc import Callable
import pathlib
from typing import Any
import zlib

import numpy as np

from specdec.checkpoints.checkpoint import ArrayRef

# Called with the name of each array that is done, and its bytes.
Progress = Callable[[str, int], None]


def checksum(values: np.ndarray) -> int:
  """CRC-32 of an array's bytes."""
  return zlib.crc32(memoryview(np.ascontiguousarray(values).reshape(-1).view(np.uint8)))


class Reading:
  """Reads arrays in the order that suits their files, and remembers their checksums.

  Attributes:
    checksums: by name, of what was read.
  """

  def __init__(self, progress: Progress | None = None):
    self.checksums: dict[str, int] = {}
    self._progress = progress

  def read(self, name: str, array: ArrayRef) -> np.ndarray:
    """The array, whose checksum is kept under the name."""
    values = array.read()
    self.checksums[name] = checksum(values)
    return values

  def done(self, name: str, array: ArrayRef) -> None:
    """Tells whoever watches that an array has been dealt with."""
    if self._progress:
      self._progress(name, array.nbytes)


def in_file_order(arrays: dict[str, ArrayRef]) -> list[tuple[str, ArrayRef]]:
  """Arrays with those of one stored array next to each other."""
  first: dict[str, int] = {}
  for i, array in enumerate(arrays.values()):
    first.setdefault(array.source, i)
  return sorted(arrays.items(), key=lambda item: first[item[1].source])


def save_with_orbax(folder: pathlib.Path, tree: dict[str, Any], reading: Reading) -> None:
  """Writes a tree of `ArrayRef`s as an Orbax checkpoint that stock Orbax restores.

  Args:
    folder: must not exist yet.
    tree: nested dictionaries.
    reading: reads each array once.
  """
  import jax
  import orbax.checkpoint as ocp
  from orbax.checkpoint import type_handlers

  class Handler(type_handlers.NumpyHandler):
    """Writes what it reads; on disk there is no difference from a NumPy array."""

    async def serialize(self, values, infos, args=None):
      args = args or [ocp.SaveArgs()] * len(values)
      entries = {info.name.replace(".", "/"): (value, info, arg)
                 for value, info, arg in zip(values, infos, args, strict=True)}
      arrays: dict[str, Any] = {name: value for name, (value, _, _) in entries.items()}
      for name, array in in_file_order(arrays):
        _, info, arg = entries[name]
        values = reading.read(name, array)
        for written in await super().serialize([values], [info], [arg]):
          written.result()
        reading.done(name, array)
      return []

  # Nobody changes what was just read: no copy is needed for safety.
  # Orbax misses a handler of device arrays, of which there are none, with a warning.
  registry = type_handlers.create_type_handler_registry(
      (ArrayRef, Handler(deepcopy_host_arrays=False)), (jax.Array, type_handlers.ArrayHandler()))
  handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
  with ocp.Checkpointer(handler) as checkpointer:
    checkpointer.save(folder, args=ocp.args.PyTreeSave(tree))
