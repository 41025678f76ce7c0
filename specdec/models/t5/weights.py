"""From parameters named as in T5X to the decode layout, once at load."""

from typing import Any

import jax
from jax.core import Tracer
import jax.numpy as jnp
import numpy as np

from specdec.models.t5 import relpos
from specdec.models.t5 import sharding
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import T5

Params = dict[str, Any]


def prepare(params: Params, config: T5Config, out_in: bool = False, split: bool = False,
            places: sharding.Places | None = None) -> Params:
  """Returns decode weights: fused projections, tabulated bias, one dtype.

  The decoder's self-attention gets one `qkv` kernel and a gated feed-forward one
  `wi`; the decoder's relative position bias is tabulated by distance. Matrices
  are cast to `config.dtype`; norm scales and biases stay float32, as they are
  computed with. The hot path then neither concatenates, transposes nor casts.

  Args:
    params: tree in T5X's layout, kernels [in, out]. Leaves may be arrays on disk, as
      anything is that `np.asarray` reads: each is read once, when it is its turn.
    config: the architecture.
    out_in: store every `kernel` as `kernel_out_in` [out, in], which is what a CPU reads
      fastest: each output is then a product of two contiguous rows.
    split: projections keep kernels of their own: a device's share of several in one would
      not be its share of each.
    places: where each weight goes; by default to the first device. With `split` an array on
      disk is read in parts, each for the devices that hold it.

  Returns:
    The tree that `T5(config, fused=True, out_in=out_in, split=split)` reads.
  """
  decoder = {k: v for k, v in params["decoder"].items()}
  for name, layer in params["decoder"].items():
    if name.startswith("layers_"):
      decoder[name] = _fuse_layer(layer, config, split)
    elif name == "relpos_bias":
      decoder[name] = _by_distance(layer, config)
  tree = {**params, "decoder": decoder}
  if out_in:
    tree = _turned(tree, config.dtype, split)

  def cast(path, leaf):
    matrix = path[-1].key in ("kernel", "kernel_out_in", "embedding")
    dtype = config.dtype if matrix else "float32"
    if places is None:
      return _load(leaf, dtype)
    return sharding.put(leaf, dtype, places(sharding.name_of(path)))

  return jax.tree_util.tree_map_with_path(cast, tree)


def _load(leaf: Any, dtype: str) -> jax.Array:
  """A device array of a dtype out of an array, or of one that is still on disk."""
  if not isinstance(leaf, jax.Array):
    # Cast on the host: a device never holds what it does not keep.
    leaf = np.asarray(leaf, dtype)
  return jnp.asarray(leaf, dtype)


def _fuse_layer(layer: Params, config: T5Config, split: bool) -> Params:
  if config.relpos_per_layer:
    layer = {**layer, "relpos_bias": _by_distance(layer["relpos_bias"], config)}
  if split:
    return layer
  attention = layer["self_attention"]
  qkv = [_load(attention[name]["kernel"], config.dtype) for name in ("query", "key", "value")]
  layer = {**layer, "self_attention": {
      "qkv": {"kernel": jnp.concatenate(qkv, axis=1)}, "out": attention["out"]}}
  gates = len(config.mlp_activations)
  if gates > 1:
    wide = [_load(layer["mlp"][f"wi_{i}"]["kernel"], config.dtype) for i in range(gates)]
    layer["mlp"] = {"wi": {"kernel": jnp.concatenate(wide, axis=1)},
                    "wo": layer["mlp"]["wo"]}
  return layer


def _turned(tree: Params, dtype: str, lazily: bool) -> Params:
  """Replaces every `kernel` by its transpose.

  Args:
    tree: of a model.
    dtype: of the transposes.
    lazily: leave arrays on disk there.
  """
  out = {}
  for name, node in tree.items():
    if name == "kernel" and lazily and hasattr(node, "transposed"):
      out["kernel_out_in"] = node.transposed()
    elif name == "kernel":
      out["kernel_out_in"] = _load(node, dtype).T
    elif isinstance(node, dict):
      out[name] = _turned(node, dtype, lazily)
    else:
      out[name] = node
  return out


def pack(tree: Params) -> Params:
  """Moves arrays on the CPU into one buffer that the system backs with large pages.

  A call at batch 1 reads every weight once, so it meets a page as often as it can: a
  chain of matrix-vector products alone read 6 to 8 % faster with pages of 2 MiB instead
  of 4 KiB. Where the system has no such pages, or the arrays are only being traced,
  nothing is lost.
  """
  leaves, structure = jax.tree.flatten(tree)
  if any(isinstance(leaf, Tracer) for leaf in leaves):
    return tree
  del tree  # Each array is let go as soon as it has been moved.
  padded = [-(-leaf.nbytes // _PAGE) * _PAGE for leaf in leaves]
  # NumPy asks for large pages for all its large allocations.
  buffer = np.empty((sum(padded) + _LARGE_PAGE,), np.uint8)
  begin = -buffer.ctypes.data % _LARGE_PAGE
  out = []
  for i, size in enumerate(padded):
    leaf, leaves[i] = leaves[i], None
    place = buffer[begin:begin + leaf.nbytes].view(leaf.dtype).reshape(leaf.shape)
    np.copyto(place, np.asarray(leaf))
    # Aligned as it is, the array becomes a view of the buffer and keeps it alive.
    out.append(jax.device_put(place, may_alias=True))
    begin += size
  return jax.tree.unflatten(structure, out)


_PAGE, _LARGE_PAGE = 2**12, 2**21


def restore(weights: Params, config: T5Config) -> Params:
  """Takes `prepare` back: parameters named and laid out as in T5X, in the weights' dtype.

  For handing the same weights to another library; exact where `prepare` did not cast.
  """
  params = _turned_back(weights)
  width, gates = config.num_heads * config.head_dim, len(config.mlp_activations)
  if not config.relpos_per_layer:
    params["decoder"]["relpos_bias"] = _by_bucket(params["decoder"]["relpos_bias"], config)
  for name, layer in params["decoder"].items():
    if not name.startswith("layers_"):
      continue
    attention = layer["self_attention"]
    joint = "qkv" in attention
    if joint:
      qkv = jnp.split(attention.pop("qkv")["kernel"], [width, 2 * width], axis=1)
      attention.update({k: {"kernel": x} for k, x in zip(("query", "key", "value"), qkv)})
    if joint and gates > 1:
      wide = jnp.split(layer["mlp"].pop("wi")["kernel"], gates, axis=1)
      layer["mlp"].update({f"wi_{i}": {"kernel": x} for i, x in enumerate(wide)})
    if config.relpos_per_layer:
      layer["relpos_bias"] = _by_bucket(layer["relpos_bias"], config)
  return params


def _turned_back(tree: Params) -> Params:
  """A copy of the tree whose kernels are all [in, out]."""
  out = {}
  for name, node in tree.items():
    if name == "kernel_out_in":
      out["kernel"] = node.T
    else:
      out[name] = _turned_back(node) if isinstance(node, dict) else node
  return out


def bytes_per_call(weights: Params, config: T5Config) -> int:
  """Bytes of decode weights that one decoder call reads: all but the encoder's, the
  projections of its output and, unless it is the output layer too, the embedding."""
  def size(path: str, tree: Params) -> int:
    if path in ("/encoder", "/token_embedder") or path.endswith(
        ("/encoder_decoder_attention/key", "/encoder_decoder_attention/value")):
      return 0
    return sum(size(f"{path}/{name}", node) if isinstance(node, dict) else node.nbytes
               for name, node in tree.items())

  tied = weights["token_embedder"]["embedding"].nbytes if config.logits_via_embedding else 0
  return size("", weights) + tied


def _by_distance(relpos_bias: Params, config: T5Config) -> Params:
  """[H, buckets] -> [H, max_distance + 1]: the bias of a key so far back."""
  table = _load(relpos_bias["rel_embedding"], "float32")
  return {"by_distance": table[:, _bucket_of_distance(config)]}


def _by_bucket(relpos_bias: Params, config: T5Config) -> Params:
  """Takes `_by_distance` back; a bucket that no distance has is 0."""
  table = relpos_bias["by_distance"]
  empty = jnp.zeros((config.num_heads, config.relpos_num_buckets), table.dtype)
  return {"rel_embedding": empty.at[:, _bucket_of_distance(config)].set(table)}


def _bucket_of_distance(config: T5Config) -> np.ndarray:
  return relpos.bucket(-np.arange(config.relpos_max_distance + 1), False,
                       config.relpos_num_buckets, config.relpos_max_distance)


def mismatch(params: Params, config: T5Config) -> str:
  """Says how a parameter tree differs from what the network expects.

  Returns:
    Missing, unexpected and misshapen names in one line, or "" when all fit.
  """
  wanted = _shapes(abstract(config))
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
  return sum(leaf.size for leaf in jax.tree.leaves(abstract(config)))


def abstract(config: T5Config) -> Params:
  """The tree the network expects in T5X's layout, shapes only."""
  ids = jax.ShapeDtypeStruct((1, 1), np.int32)
  mask = jax.ShapeDtypeStruct((1, 1), np.bool_)
  return jax.eval_shape(T5(config).init, jax.random.key(0), ids, mask, ids)["params"]
