"""Writes checkpoints that transformers loads: safetensors, config.json, vocabulary."""

import json
import pathlib
from typing import Any

import numpy as np

from specdec.checkpoints import hf
from specdec.checkpoints import hf_config
from specdec.checkpoints import mapping
from specdec.checkpoints import vocabularies
from specdec.checkpoints.checkpoint import ArrayRef
from specdec.checkpoints.checkpoint import VocabularyFile
from specdec.checkpoints.streaming import Reading
from specdec.errors import SpecdecError

# Small, as a shard is held in memory while it is written.
SHARD_BYTES = 256 * 2**20


def write(draft: pathlib.Path, config: dict[str, Any], arrays: dict[str, ArrayRef],
          vocabulary: VocabularyFile | None, reading: Reading) -> dict[str, Any]:
  """Writes a checkpoint into an empty folder; see `t5x_write.write`.

  An output layer that is tied but not scaled is written out, so that old and new versions
  of transformers compute the same.

  Raises:
    SpecdecError: transformers has no T5 that computes this.
  """
  config, arrays = _shared_bias(config, arrays)
  about = hf_config.to_theirs(config, vocabulary.kind if vocabulary else None)
  if config["logits_via_embedding"] and not about["scale_decoder_outputs"]:
    config = {**config, "logits_via_embedding": False, "scale_logits": None}
    arrays = {**arrays, mapping.OUTPUT: arrays[mapping.EMBEDDING].transposed()}
  table = mapping.hf_table(config)
  shards = _shards(arrays)
  placed: dict[str, str] = {}
  for i, names in enumerate(shards):
    file = (hf.SAFETENSORS if len(shards) == 1 else
            f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors")
    held = {}
    for name in names:
      values = reading.read(name, arrays[name])
      held[table[name].name] = np.ascontiguousarray(values.T if table[name].transposed else values)
      placed[table[name].name] = file
    hf.safetensors("numpy").save_file(held, str(draft / file), metadata={"format": "pt"})
    for name in names:
      reading.done(name, arrays[name])
  if len(shards) > 1:
    total = sum(array.nbytes for array in arrays.values())
    _write_json(draft / f"{hf.SAFETENSORS}.index.json",
                {"metadata": {"total_size": total}, "weight_map": placed})
  vocabularies.write(draft, vocabulary)
  _write_json(draft / "generation_config.json",
              {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0})
  sizes: dict[str, int] = {}
  for array in arrays.values():
    sizes[array.dtype.name] = sizes.get(array.dtype.name, 0) + array.nbytes
  dtype = max(sizes, key=lambda name: sizes[name])
  # The second name is the one that transformers 4 reads.
  _write_json(draft / "config.json", {**about, "dtype": dtype, "torch_dtype": dtype})
  return config


def _shared_bias(config: dict[str, Any], arrays: dict[str, ArrayRef]
                 ) -> tuple[dict[str, Any], dict[str, ArrayRef]]:
  """Biases of layers as one per stack, where they are the same numbers.

  Raises:
    SpecdecError: they are not.
  """
  if not config.get("relpos_per_layer", False):
    return config, arrays
  out = dict(arrays)
  for stack in ("encoder", "decoder"):
    names = [f"{stack}/layers_{i}/relpos_bias/rel_embedding"
             for i in range(config[f"num_{stack}_layers"])]
    first, *others = (np.asarray(out.pop(name)) for name in names)
    if any(not np.array_equal(first, other) for other in others):
      raise SpecdecError(
          f"the layers of the {stack} have relative position biases of their own that differ "
          "(a scanned T5X checkpoint), and T5 in transformers has one for all; it cannot be "
          "written for Hugging Face")
    out[f"{stack}/relpos_bias/rel_embedding"] = arrays[names[0]]
  return {**config, "relpos_per_layer": False}, out


def _shards(arrays: dict[str, ArrayRef]) -> list[list[str]]:
  """Names by shard, in order, each shard of at most `SHARD_BYTES` or of one array."""
  shards: list[list[str]] = []
  room = 0
  for name, array in arrays.items():
    if array.nbytes > room:
      shards.append([])
      room = SHARD_BYTES
    shards[-1].append(name)
    room -= array.nbytes
  return shards


def _write_json(path: pathlib.Path, content: Any) -> None:
  path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
