"""Writes checkpoints that T5X loads: its native layout, parameters only.

A folder with `checkpoint_0`, and beside it the network's configuration and the vocabulary.
Models whose layers share a bias are written one array a layer, as T5X's `examples/t5` has
them; those with a bias per layer stacked along axis 1, as `examples/scalable_t5` does.
"""

import json
import pathlib
import re
from typing import Any

import numpy as np

from specdec.checkpoints import mapping
from specdec.checkpoints import vocabularies
from specdec.checkpoints.checkpoint import ArrayRef
from specdec.checkpoints.checkpoint import VocabularyFile
from specdec.checkpoints.checkpoint import nested
from specdec.checkpoints.streaming import Reading
from specdec.checkpoints.streaming import in_file_order
from specdec.errors import SpecdecError

_LAYER = re.compile(r"(encoder|decoder)/layers_(\d+)/(.*)")
# T5X aims at chunks of about this size.
_CHUNK_BYTES = 64 * 2**20
# What T5X's networks have written into their code.
_FIXED = {"relpos_num_buckets": 32, "relpos_max_distance": 128, "layer_norm_epsilon": 1e-6}


def write(draft: pathlib.Path, config: dict[str, Any], arrays: dict[str, ArrayRef],
          vocabulary: VocabularyFile | None, reading: Reading) -> dict[str, Any]:
  """Writes a checkpoint into an empty folder.

  Args:
    draft: the folder.
    config: fields of `T5Config`.
    arrays: every parameter by our name, in the dtype wanted on disk.
    vocabulary: written beside the checkpoint.
    reading: reads each array once.

  Returns:
    The configuration of what was written: an output layer that is tied but not scaled,
    which T5X does not know, becomes one of its own with the same numbers.

  Raises:
    SpecdecError: T5X has no network that computes this.
  """
  config, arrays = _for_t5x(config, arrays)
  folder = draft / "checkpoint_0"
  folder.mkdir()
  specs: dict[str, Any] = {}
  scanned = config.get("relpos_per_layer", False)
  if scanned:
    for name, layers in _stacks(arrays).items():
      values = reading.read(layers[0], arrays[layers[0]])
      if _LAYER.fullmatch(layers[0]):
        more = [reading.read(layer, arrays[layer]) for layer in layers[1:]]
        values = np.stack([_split(name, layer, config) for layer in (values, *more)], 1)
      specs[name] = _write_array(folder, name, values)
      for layer in layers:
        reading.done(layer, arrays[layer])
  else:
    for name, array in in_file_order(arrays):
      specs[name] = _write_array(folder, name, reading.read(name, array))
      reading.done(name, array)
  about = {**config, "scan_layers": scanned}
  for field in (*_FIXED, "relpos_per_layer", "scale_logits"):
    about.pop(field, None)
  (draft / "config.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
  vocabularies.write(draft, vocabulary)
  from flax import serialization

  # Last of all: without its index the folder is nothing that loads.
  (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(
      {"version": 3, "optimizer": {"state": {"step": np.int32(0)}, "target": nested(specs)}}))
  return config


def _for_t5x(config: dict[str, Any], arrays: dict[str, ArrayRef]
             ) -> tuple[dict[str, Any], dict[str, ArrayRef]]:
  """The same model as one that T5X has, or an error."""
  for field, value in _FIXED.items():
    if config.get(field, value) != value:
      raise SpecdecError(f"T5X's network has {field} {value}, this model {config[field]}; it "
                         "cannot be written for T5X")
  tied = config["logits_via_embedding"]
  scaled = config.get("scale_logits")
  if scaled is None or scaled == tied:
    return {**config, "scale_logits": None}, arrays
  if scaled:
    raise SpecdecError("T5X scales the decoder's output only where the output layer is tied to "
                       "the embedding, and this model has a scaled one of its own; it cannot be "
                       "written for T5X")
  output = arrays[mapping.EMBEDDING].transposed()
  return ({**config, "logits_via_embedding": False, "scale_logits": None},
          {**arrays, mapping.OUTPUT: output})


def _stacks(arrays: dict[str, ArrayRef]) -> dict[str, list[str]]:
  """Layers of every stacked array, by its name in a scanned checkpoint."""
  stacks: dict[str, list[str]] = {}
  for name in arrays:
    found = _LAYER.fullmatch(name)
    stacks.setdefault(f"{found[1]}/{found[1]}/{found[3]}" if found else name, []).append(name)
  return stacks


def _split(name: str, values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
  """Attention kernels split by heads, as `scalable_t5` has them."""
  heads, size = config["num_heads"], config["head_dim"]
  if name.endswith(("query/kernel", "key/kernel", "value/kernel")):
    return values.reshape(values.shape[0], heads, size)
  if name.endswith("out/kernel"):
    return values.reshape(heads, size, values.shape[1])
  return values


def _write_array(folder: pathlib.Path, name: str, values: np.ndarray) -> dict[str, Any]:
  """Writes one zarr array and returns its entry in the index."""
  import tensorstore as ts

  stored = mapping.t5x_name(name)
  rows = max(1, _CHUNK_BYTES * values.shape[0] // max(values.nbytes, 1))
  metadata = {"compressor": {"id": "gzip", "level": 1}, "shape": list(values.shape),
              "chunks": [min(rows, values.shape[0]), *values.shape[1:]]}
  array = ts.open({
      "driver": "zarr", "dtype": values.dtype.name, "metadata": metadata,
      "kvstore": {"driver": "file", "path": str(folder / stored) + "/"}},
      create=True, open=True).result()
  array.write(values).result()
  return {"driver": "zarr", "dtype": values.dtype.name, "metadata": metadata,
          "kvstore": {"driver": "file", "path": f"{stored}/"}}
