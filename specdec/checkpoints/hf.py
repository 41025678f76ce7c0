"""Hugging Face checkpoints of T5, mT5, umT5, Flan-T5 and byT5, read without transformers.

A folder with `config.json`, the weights in `model.safetensors`, in shards named by
`model.safetensors.index.json`, or in `pytorch_model.bin` (which alone needs torch), and a
vocabulary: `spiece.model`, `tokenizer.json`, or none for byT5.
"""

import importlib
import json
import os
import pathlib
from typing import Any

from specdec.checkpoints import hf_config
from specdec.checkpoints import mapping
from specdec.checkpoints import stores
from specdec.checkpoints import torch_bin
from specdec.checkpoints import vocabularies
from specdec.checkpoints.checkpoint import FLOATS
from specdec.checkpoints.checkpoint import ArrayRef
from specdec.checkpoints.checkpoint import Checkpoint
from specdec.checkpoints.checkpoint import block_rows
from specdec.checkpoints.checkpoint import told
from specdec.errors import SpecdecError

SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


def looks_like(names: set[str]) -> bool:
  """Whether a folder with these files is laid out as Hugging Face does."""
  return bool(names & {SAFETENSORS, TORCH, f"{SAFETENSORS}.index.json", f"{TORCH}.index.json"})


def open_checkpoint(path: str | pathlib.Path) -> Checkpoint:
  """Looks at a Hugging Face checkpoint without reading its arrays.

  Args:
    path: a local folder.

  Raises:
    SpecdecError: it is not a T5, or files are missing, damaged or contradict each other.
  """
  folder = pathlib.Path(path)
  where = str(folder / "config.json")
  content = stores.read_file(folder, "config.json")
  if content is None:
    raise SpecdecError(f"{where} is missing; expected the configuration of a Hugging Face T5")
  with told(where, "JSON"):
    about = json.loads(content)
  # The family is told before weights of another one are looked at.
  hf_config.to_ours(about, (mapping.HF_OUTPUT,), where)
  stored, layout = _open_arrays(folder)
  config = hf_config.to_ours(about, stored, where)
  arrays, ignored = _named_as_ours(config, stored, folder, where)
  name = about.get("_name_or_path") or folder.resolve().name
  return Checkpoint(
      path=str(path), layout=f"Hugging Face {about['model_type']}, {layout}", config=config,
      arrays=arrays, vocabulary=vocabularies.find([str(folder)], config["vocab_size"]),
      source=f"Hugging Face {name}",
      writer=f"transformers {about['transformers_version']}"
      if "transformers_version" in about else "",
      ignored=", ".join(ignored))


def _named_as_ours(config: dict[str, Any], stored: dict[str, ArrayRef], folder: pathlib.Path,
                   where: str) -> tuple[dict[str, ArrayRef], list[str]]:
  """Arrays by our name, [in, out], and the names of those that are not needed."""
  embedding = next((n for n in mapping.HF_EMBEDDINGS if n in stored), None)
  if embedding is not None:
    stored = {**stored, "shared.weight": stored[embedding]}
  table = mapping.hf_table(config)
  shapes = mapping.parameter_shapes(config)
  wanted = {place.name: shapes[name][::-1] if place.transposed else shapes[name]
            for name, place in table.items()}
  spare = [n for n in stored if n in (*mapping.HF_EMBEDDINGS, *mapping.HF_IGNORED)
           and n not in wanted]
  problem = mapping.differences(
      wanted, {name: array.shape for name, array in stored.items() if name not in spare})
  if problem:
    raise SpecdecError(f"the weights in {folder} are not those that {where} describes; {problem}")
  arrays = {name: stored[place.name].transposed() if place.transposed else stored[place.name]
            for name, place in table.items()}
  return arrays, spare


def _open_arrays(folder: pathlib.Path) -> tuple[dict[str, ArrayRef], str]:
  """Every array by its key in the state dict, and the layout in words."""
  for name, reader in ((SAFETENSORS, _open_safetensors), (TORCH, torch_bin.open_arrays)):
    index = stores.read_file(folder, f"{name}.index.json")
    if index is not None:
      files, listed = _shards(folder, f"{name}.index.json", index)
    elif (folder / name).exists():
      files, listed = [folder / name], None
    else:
      continue
    arrays: dict[str, ArrayRef] = {}
    for file in files:
      arrays.update(reader(file))
    if listed is not None:
      missing = [key for key in listed if key not in arrays]
      if missing:
        raise SpecdecError(f"{folder / listed[missing[0]]} lacks {missing[0]}, which "
                           f"{folder / name}.index.json places there; copy the folder again")
    return arrays, name if listed is None else f"{name} in {len(files)} shards"
  raise SpecdecError(f"{folder} has no weights; expected {SAFETENSORS}, its sharded "
                     f"{SAFETENSORS}.index.json, or {TORCH}")


def _shards(folder: pathlib.Path, name: str,
            index: bytes) -> tuple[list[pathlib.Path], dict[str, str]]:
  """Files of a sharded index, all of them there, and the file of every array."""
  where = folder / name
  with told(str(where), 'JSON with a "weight_map"'):
    listed = dict(json.loads(index)["weight_map"])
  files = []
  for file in sorted(set(map(str, listed.values()))):
    if pathlib.PurePath(file).name != file or file in (".", ".."):
      raise SpecdecError(f"{where} names the file {file!r}; expected names in the same folder")
    if not os.path.isfile(folder / file):
      raise SpecdecError(f"{folder / file} is missing, which {where} names; expected every "
                         "shard: copy the folder again")
    files.append(folder / file)
  return files, listed


def _open_safetensors(file: pathlib.Path) -> dict[str, ArrayRef]:
  safe_open = safetensors().safe_open
  arrays: dict[str, ArrayRef] = {}
  with told(str(file), "safetensors"), safe_open(str(file), framework="np") as opened:
    for key in opened.keys():
      part = opened.get_slice(key)
      shape, dtype = tuple(part.get_shape()), _DTYPES.get(part.get_dtype())
      if dtype is None:
        raise SpecdecError(f"{key} in {file} is {part.get_dtype()}; expected floating point "
                           f"numbers, one of {', '.join(_DTYPES)}")

      def fetch(index, key=key):
        # Opened anew, so that what was read does not stay mapped into memory.
        with safe_open(str(file), framework="np") as again:
          return again.get_slice(key)[index]

      arrays[key] = ArrayRef(shape, FLOATS[dtype], str(file), fetch, f"{file}:{key}",
                             block_rows(shape, FLOATS[dtype]))
  return arrays


def safetensors(part: str = "") -> Any:
  """The safetensors library, or a part of it.

  Raises:
    SpecdecError: it is not installed.
  """
  try:
    return importlib.import_module(f"safetensors.{part}" if part else "safetensors")
  except ImportError as error:
    raise SpecdecError("Hugging Face checkpoints need the safetensors library; "
                       "pip install 'specdec-jax[hf]'") from error
