"""A checkpoint of a few kilobytes, in the layouts of T5X and of Hugging Face."""

import json

import numpy as np

from specdec.checkpoints import mapping
from specdec.checkpoints import t5x_write
from specdec.checkpoints.checkpoint import in_memory
from specdec.checkpoints.streaming import Reading
from specdec.models.t5.config import T5Config

CONFIG = T5Config(vocab_size=40, emb_dim=8, num_heads=2, head_dim=4, mlp_dim=12,
                  num_encoder_layers=1, num_decoder_layers=1).to_dict()
HF_CONFIG = {
    "model_type": "t5", "vocab_size": 40, "d_model": 8, "num_heads": 2, "d_kv": 4, "d_ff": 12,
    "num_layers": 1, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def params():
  rng = np.random.default_rng(0)
  return {name: rng.standard_normal(shape).astype(np.float32)
          for name, shape in mapping.parameter_shapes(CONFIG).items()}


def save_t5x(path, config=CONFIG, arrays=None):
  path.mkdir()
  refs = {name: in_memory(values) for name, values in (arrays or params()).items()}
  t5x_write.write(path, config, refs, None, Reading())
  return path / "checkpoint_0"


def save_hf(path, config=HF_CONFIG, arrays=None, shards=1):
  path.mkdir()
  table = mapping.hf_table(CONFIG)
  stored = {table[name].name: np.ascontiguousarray(v.T if table[name].transposed else v)
            for name, v in (arrays or params()).items()}
  (path / "config.json").write_text(json.dumps(config))
  from safetensors.numpy import save_file

  if shards == 1:
    save_file(stored, path / "model.safetensors")
    return path
  placed = {key: f"model-{i % shards}.safetensors" for i, key in enumerate(stored)}
  for file in set(placed.values()):
    save_file({k: v for k, v in stored.items() if placed[k] == file}, path / file)
  (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
  return path
