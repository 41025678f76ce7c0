"""T5 in NumPy float64, written from its definition, for one sequence at a time.

Independent of `specdec.models.t5`: no cache, no batch, no padding, loops over
heads. Slow and easy to check by eye against Raffel et al. 2020 and Shazeer 2020.
"""

import math
from typing import Any

import numpy as np

from specdec.models.t5.config import T5Config

Array = np.ndarray


def _norm(x: Array, scale: Array, epsilon: float) -> Array:
  return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * scale


def _softmax(x: Array) -> Array:
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def _gelu(x: Array) -> Array:
  return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_ACTIVATIONS = {"gelu": _gelu, "relu": lambda x: np.maximum(x, 0), "linear": lambda x: x}


def bucket(offset: int, bidirectional: bool, num_buckets: int, max_distance: int) -> int:
  """Bucket of one key at `offset` = key position - query position."""
  base = 0
  if bidirectional:
    num_buckets //= 2
    if offset > 0:
      base = num_buckets
    distance = abs(offset)
  else:
    distance = max(-offset, 0)
  exact = num_buckets // 2
  if distance < exact:
    return base + distance
  steps = math.log(distance / exact) / math.log(max_distance / exact) * (num_buckets - exact)
  # A hair above, as T5X adds an epsilon: exact powers fall into the upper bucket.
  return base + min(exact + int(steps + 1e-6), num_buckets - 1)


def _attention(params: Any, config: T5Config, x: Array, memory: Array, bias: Array) -> Array:
  q, k, v = (s @ np.asarray(params[n]["kernel"], np.float64)
             for n, s in (("query", x), ("key", memory), ("value", memory)))
  heads = []
  for h in range(config.num_heads):
    part = slice(h * config.head_dim, (h + 1) * config.head_dim)
    heads.append(_softmax(q[:, part] @ k[:, part].T + bias[h]) @ v[:, part])
  return np.concatenate(heads, -1) @ np.asarray(params["out"]["kernel"], np.float64)


def _mlp(params: Any, config: T5Config, x: Array) -> Array:
  names = config.mlp_activations
  keys = ["wi"] if len(names) == 1 else [f"wi_{i}" for i in range(len(names))]
  hidden = np.ones(())
  for name, key in zip(names, keys):
    hidden = hidden * _ACTIVATIONS[name](x @ np.asarray(params[key]["kernel"], np.float64))
  return hidden @ np.asarray(params["wo"]["kernel"], np.float64)


def _bias(params: Any, config: T5Config, size: int, bidirectional: bool) -> Array:
  table = np.asarray(params["rel_embedding"], np.float64)
  index = [[bucket(k - q, bidirectional, config.relpos_num_buckets, config.relpos_max_distance)
            for k in range(size)] for q in range(size)]
  return table[:, np.array(index)]


def logits(params: Any, config: T5Config, encoder_ids: list[int],
           decoder_ids: list[int]) -> Array:
  """Teacher-forced logits of one unpadded sequence, float64 [T, V].

  Args:
    params: parameters in T5X's layout.
    config: the architecture.
    encoder_ids: ids of the source.
    decoder_ids: decoder inputs, beginning with the start id.
  """
  epsilon = config.layer_norm_epsilon
  norm = lambda x, p: _norm(x, np.asarray(p["scale"], np.float64), epsilon)
  embedding = np.asarray(params["token_embedder"]["embedding"], np.float64)

  encoder = params["encoder"]
  x = embedding[encoder_ids]
  for i in range(config.num_encoder_layers):
    layer = encoder[f"layers_{i}"]
    owner = layer if config.relpos_per_layer else encoder
    bias = _bias(owner["relpos_bias"], config, len(encoder_ids), True)
    y = norm(x, layer["pre_attention_layer_norm"])
    x = x + _attention(layer["attention"], config, y, y, bias)
    x = x + _mlp(layer["mlp"], config, norm(x, layer["pre_mlp_layer_norm"]))
  encoded = norm(x, encoder["encoder_norm"])

  decoder = params["decoder"]
  x = embedding[decoder_ids]
  size = len(decoder_ids)
  none = np.zeros((config.num_heads, 1, 1))
  for i in range(config.num_decoder_layers):
    layer = decoder[f"layers_{i}"]
    owner = layer if config.relpos_per_layer else decoder
    bias = _bias(owner["relpos_bias"], config, size, False)
    bias = bias + np.where(np.tri(size, dtype=bool), 0, -np.inf)
    y = norm(x, layer["pre_self_attention_layer_norm"])
    x = x + _attention(layer["self_attention"], config, y, y, bias)
    y = norm(x, layer["pre_cross_attention_layer_norm"])
    x = x + _attention(layer["encoder_decoder_attention"], config, y, encoded, none)
    x = x + _mlp(layer["mlp"], config, norm(x, layer["pre_mlp_layer_norm"]))
  x = norm(x, decoder["decoder_norm"])
  if config.scaled_logits:
    x = x / math.sqrt(config.emb_dim)
  if config.logits_via_embedding:
    return x @ embedding.T
  return x @ np.asarray(decoder["logits_dense"]["kernel"], np.float64)
