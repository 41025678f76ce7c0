"""Checkpoints that T5X wrote, read without T5X.

Three generations of layouts, all found by what is in the folder:

* native: `checkpoint` (a msgpack index, with small arrays in it) and one zarr array per
  parameter, `target.encoder...kernel/`;
* Orbax, the tree in `_METADATA`, arrays in one OCDBT database or as zarr folders, below
  `state/` or not;
* either with `target` and optimizer states side by side, or parameters alone; layers one
  by one or stacked along axis 1 (scanned), kernels as matrices or split by heads.

Only what is under `target` is looked at; `state`, `flax_mutables` and the like are not.
Source: T5X `t5x/checkpoints.py`, `t5x/examples/scalable_t5/network.py`.
"""

import json
import pathlib
import re
from typing import Any

import numpy as np

from specdec.checkpoints import architecture
from specdec.checkpoints import stores
from specdec.checkpoints import vocabularies
from specdec.checkpoints.checkpoint import FLOATS
from specdec.checkpoints.checkpoint import ArrayRef
from specdec.checkpoints.checkpoint import Checkpoint
from specdec.checkpoints.checkpoint import told
from specdec.errors import SpecdecError

_STEP = re.compile(r"checkpoint_(\d+)")
# Parts of the tree that hold no parameters.
_OTHERS = ("state", "flax_mutables", "step", "opt_state")
# Where the parameters may hang in the tree, the likeliest first.
_ROOTS = ("target", "optimizer/target", "state/target", "params", "target/params", "")


def open_checkpoint(path: str | pathlib.Path) -> Checkpoint:
  """Looks at a T5X checkpoint without reading its arrays.

  Args:
    path: a `checkpoint_N` folder, or a folder of several, of which the last counts;
      local or gs://.

  Raises:
    SpecdecError: it is not a T5X checkpoint of a T5, or is incomplete.
  """
  folder = _newest(str(path))
  arrays, layout = _open_arrays(folder)
  root = next((r for r in _ROOTS if _below(r, "token_embedder/embedding") in arrays), None)
  if root is None:
    raise SpecdecError(_no_t5(folder, arrays))
  prefix = _below(root, "")
  params = {name.removeprefix(prefix): array for name, array in arrays.items()
            if name.startswith(prefix)}
  about = _sidecar(folder)
  config, params, scanned = architecture.infer(params, about, folder)
  others = sum(not name.startswith(prefix) for name in arrays)
  return Checkpoint(
      path=str(path), layout=f"T5X, {layout}, {'scanned' if scanned else 'one array a layer'}",
      config=config, arrays=params,
      vocabulary=vocabularies.find(_beside(folder), config["vocab_size"]),
      source=f"T5X checkpoint {_name(folder)}",
      ignored=f"{others} array{'s' * (others > 1)} outside {root} (optimizer and the like)"
      if others else "")


def looks_like(path: str) -> bool:
  """Whether a folder is laid out as T5X does."""
  found = stores.names(path)
  return bool({"checkpoint", "_METADATA", "manifest.ocdbt", "state"} & set(found)
              or any(_STEP.fullmatch(name) for name in found)
              or any(name.startswith("target.") for name in found))


def _newest(path: str) -> str:
  """The folder with the arrays: the one given, or its checkpoint of the highest step."""
  found = stores.names(path)
  steps = {int(m[1]): m[0] for m in map(_STEP.fullmatch, found) if m}
  return stores.join(path, steps[max(steps)]) if steps else path.rstrip("/")


def _beside(folder: str) -> list[str]:
  """Folders in which what belongs to a checkpoint may stand: its own and the one above."""
  if "://" in folder:
    return [folder, folder.rpartition("/")[0]]
  # Made absolute, as "." has no parent in its name.
  return [folder, str(pathlib.Path(folder).resolve().parent)]


def _name(folder: str) -> str:
  return folder.rpartition("/")[2] if "://" in folder else pathlib.Path(folder).resolve().name


def _below(root: str, name: str) -> str:
  return f"{root}/{name}" if root else name


def _open_arrays(folder: str) -> tuple[dict[str, ArrayRef], str]:
  """Every array of the folder by name with slashes, and the layout in a word."""
  index = stores.read_file(folder, "checkpoint")
  if index is not None:
    return _open_indexed(folder, index), "native"
  for below in (stores.join(folder, "state"), folder):
    metadata = stores.read_file(below, "_METADATA")
    if metadata is not None:
      return open_orbax(below, metadata), "Orbax"
  if any(name.startswith("target.") for name in stores.names(folder)):
    raise SpecdecError(f"{stores.join(folder, 'checkpoint')} is missing; expected the index of a "
                       "T5X checkpoint beside its arrays: copy the folder again")
  raise SpecdecError(f"{folder} is not a T5X checkpoint; expected a file named checkpoint "
                     "(native), or _METADATA (Orbax), in it or in its folder state")


def _open_indexed(folder: str, index: bytes) -> dict[str, ArrayRef]:
  """The arrays of a msgpack index; those outside the parameters are not opened."""
  from flax import serialization

  where = stores.join(folder, "checkpoint")
  with told(where, "T5X's msgpack index"):
    tree = serialization.msgpack_restore(index)
  if not isinstance(tree, dict) or not isinstance(tree.get("optimizer", tree), dict):
    raise SpecdecError(f"{where} is not T5X's msgpack index; expected a table with \"optimizer\"")
  arrays: dict[str, ArrayRef] = {}
  places: dict[str, stores.ZarrPlace] = {}
  leaves = dict(_leaves(tree.get("optimizer", tree)))
  for name, leaf in leaves.items():
    if name.split("/")[0] in _OTHERS:
      arrays[name] = _unread(name)
    elif isinstance(leaf, str | dict):
      stored = stores.join(folder, _stored_name(where, name, leaf))
      places[name] = stores.ZarrPlace(stores.kvstore(stored), stored)
    else:
      arrays[name] = _inline(where, name, leaf)
  for name, array in stores.zarr_arrays(places).items():
    noted = leaves[name].get("metadata") if isinstance(leaves[name], dict) else None
    shape = noted.get("shape") if isinstance(noted, dict) else None
    shape = tuple(shape) if isinstance(shape, list) else shape
    if shape is not None and shape != array.shape:
      raise SpecdecError(f"{array.where} has the shape {array.shape}; expected {shape}, "
                         f"as {where} says: copy the folder again")
    arrays[name] = array
  return arrays


def _leaves(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
  """Leaves by name; tensorstore specs are dictionaries too, and are leaves here."""
  out: list[tuple[str, Any]] = []
  for key, value in tree.items():
    if isinstance(value, dict) and "driver" not in value:
      out += _leaves(value, f"{prefix}{key}/")
    elif value is not None:
      out.append((f"{prefix}{key}", value))
  return out


def _stored_name(where: str, name: str, leaf: str | dict[str, Any]) -> str:
  """Folder of an array that the index refers to.

  Whatever machine wrote it, and wherever: only the last part of its path counts, so that
  an index cannot point out of its own folder.
  """
  if isinstance(leaf, str):
    path = leaf.removeprefix("PLACEHOLDER://")
  else:
    store = leaf.get("kvstore")
    path = (store.get("path") if isinstance(store, dict) else None) or leaf.get("path")
  last = str(path or "").rstrip("/").rpartition("/")[2]
  if last in ("", ".", ".."):
    raise SpecdecError(f"{where} names no folder for {name}; expected a path such as "
                       "target.token_embedder.embedding")
  return last


def _inline(where: str, name: str, leaf: Any) -> ArrayRef:
  """An array that stands in the index itself."""
  with told(where, f"an array or the name of one under {name}"):
    value = np.asarray(leaf)
  if value.dtype.name not in FLOATS:
    return _unread(name)
  return ArrayRef(value.shape, value.dtype, where, lambda index: value[index], name)


def open_orbax(folder: str, metadata: bytes) -> dict[str, ArrayRef]:
  """The arrays of an Orbax checkpoint; those of optimizers are not opened.

  Args:
    folder: with `_METADATA`.
    metadata: content of that file.

  Raises:
    SpecdecError: the metadata is no such thing, or names an array that is not there.
  """
  where = stores.join(folder, "_METADATA")
  with told(where, "Orbax's metadata, JSON with a tree_metadata"):
    about = json.loads(metadata)
    tree = about["tree_metadata"]
    keys = [tuple(str(key["key"]) for key in entry["key_metadata"]) for entry in tree.values()]
    ocdbt = bool(about.get("use_ocdbt", False)) or "manifest.ocdbt" in stores.names(folder)
    zarr3 = bool(about.get("use_zarr3", False))
  arrays: dict[str, ArrayRef] = {}
  places: dict[str, stores.ZarrPlace] = {}
  for parts in keys:
    name, stored = "/".join(parts), ".".join(parts)
    if stored.strip(".") == "" or any(c in stored for c in "/\0"):
      raise SpecdecError(f"{where} names an array {name!r}; expected names of parameters: the "
                         "checkpoint is damaged, copy it again")
    if parts[0] in _OTHERS and "target" not in parts:
      arrays[name] = _unread(name)
    else:
      below = stores.join(folder, stored)
      places[name] = stores.ZarrPlace(
          {"driver": "ocdbt", "base": stores.kvstore(folder), "path": stored + "/"} if ocdbt
          else stores.kvstore(below), below, zarr3)
  return {**arrays, **stores.zarr_arrays(places)}


def _unread(name: str) -> ArrayRef:
  """Stands for an array that nobody wants."""
  def fetch(index):
    raise AssertionError(f"{name} is not a parameter")

  return ArrayRef((), np.dtype(np.float32), name, fetch)


def _no_t5(folder: str, arrays: dict[str, ArrayRef]) -> str:
  names = list(arrays)
  if any("decoder/" in name for name in names) and not any("encoder/" in n for n in names):
    kind = "a decoder-only model"
  elif names:
    kind = f"another model (its first array is {names[0]})"
  else:
    kind = "empty"
  return (f"{folder} holds {kind}; expected a T5 encoder-decoder, with the array "
          "target.token_embedder.embedding")


def _sidecar(folder: str) -> dict[str, Any]:
  """Fields of the network's configuration from a config.json beside a checkpoint."""
  for place in _beside(folder):
    content = stores.read_file(place, "config.json")
    if content is None:
      continue
    where = stores.join(place, "config.json")
    with told(where, "JSON with fields of T5X's T5Config"):
      about = json.loads(content)
    if isinstance(about, dict) and "emb_dim" in about:
      return {**about, "file": where}
  return {}
