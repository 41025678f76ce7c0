"""From parameters named as in T5X to the decode layout, once at load."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec.models.t5 import relpos
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import T5

Params = dict[str, Any]


def prepare(params: Params, config: T5Config) -> Params:
  """Returns decode weights: fused projections, tabulated bias, one dtype.

  The decoder's self-attention gets one `qkv` kernel and a gated feed-forward one
  `wi`; the decoder's relative position bias is tabulated by distance. Matrices
  are cast to `config.dtype`; norm scales and biases stay float32, as they are
  computed with. The hot path then neither concatenates, transposes nor casts.

  Args:
    params: tree in T5X's layout, kernels [in, out]. Leaves may be arrays on disk, as
      anything is that `np.asarray` reads: each is read once, when it is its turn.
    config: the architecture.

  Returns:
    The tree that `T5(config, fused=True)` reads.
  """
  decoder = {k: v for k, v in params["decoder"].items()}
  for name, layer in params["decoder"].items():
    if name.startswith("layers_"):
      decoder[name] = _fuse_layer(layer, config)
    elif name == "relpos_bias":
      decoder[name] = _by_distance(layer, config)
  tree = {**params, "decoder": decoder}

  def cast(path, leaf):
    return _load(leaf, config.dtype if path[-1].key in ("kernel", "embedding") else "float32")

  return jax.tree_util.tree_map_with_path(cast, tree)


def _load(leaf: Any, dtype: str) -> jax.Array:
  """A device array of a dtype out of an array, or of one that is still on disk."""
  if not isinstance(leaf, jax.Array):
    # Cast on the host: a device never holds what it does not keep.
    leaf = np.asarray(leaf, dtype)
  return jnp.asarray(leaf, dtype)


def _fuse_layer(layer: Params, config: T5Config) -> Params:
  attention = layer["self_attention"]
  qkv = [_load(attention[name]["kernel"], config.dtype) for name in ("query", "key", "value")]
  layer = {**layer, "self_attention": {
      "qkv": {"kernel": jnp.concatenate(qkv, axis=1)}, "out": attention["out"]}}
  gates = len(config.mlp_activations)
  if gates > 1:
    wide = [_load(layer["mlp"][f"wi_{i}"]["kernel"], config.dtype) for i in range(gates)]
    layer["mlp"] = {"wi": {"kernel": jnp.concatenate(wide, axis=1)},
                    "wo": layer["mlp"]["wo"]}
  if config.relpos_per_layer:
    layer["relpos_bias"] = _by_distance(layer["relpos_bias"], config)
  return layer


def _by_distance(relpos_bias: Params, config: T5Config) -> Params:
  """[H, buckets] -> [H, max_distance + 1]: the bias of a key so far back."""
  buckets = relpos.bucket(-np.arange(config.relpos_max_distance + 1), False,
                          config.relpos_num_buckets, config.relpos_max_distance)
  return {"by_distance": _load(relpos_bias["rel_embedding"], "float32")[:, buckets]}


def mismatch(params: Params, config: T5Config) -> str:
  """Says how a parameter tree differs from what the network expects.

  Returns:
    Missing, unexpected and misshapen names in one line, or "" when all fit.
  """
  wanted = _shapes(_abstract(config))
  got = _shapes(params)
  reshaped = sorted(k for k in wanted.keys() & got.keys() if wanted[k] != got[k])
  parts = (
      ("missing", sorted(wanted.keys() - got.keys())),
      ("unexpected", sorted(got.keys() - wanted.keys())),
      ("of another shape", [f"{k} {got[k]}, expected {wanted[k]}" for k in reshaped]))
  return "; ".join(f"{label}: {', '.join(names)}" for label, names in parts if names)


def _shapes(tree: Params) -> dict[str, tuple[int, ...]]:
  return {"/".join(key.key for key in keys): tuple(leaf.shape)
          for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def count(config: T5Config) -> int:
  """Number of parameters of the network, from shapes alone."""
  return sum(leaf.size for leaf in jax.tree.leaves(_abstract(config)))


def _abstract(config: T5Config) -> Params:
  """The tree the network expects, shapes only."""
  ids = jax.ShapeDtypeStruct((1, 1), np.int32)
  mask = jax.ShapeDtypeStruct((1, 1), np.bool_)
  return jax.eval_shape(T5(config).init, jax.random.key(0), ids, mask, ids)["params"]
