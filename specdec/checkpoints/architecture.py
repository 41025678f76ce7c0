"""The architecture of a T5X checkpoint, inferred from names and shapes.

What shapes cannot tell is taken from a configuration that lies beside the checkpoint, and
otherwise from the two published variants: one feed-forward projection means ReLU (v1.0),
two mean gated GELU (v1.1).
"""

from collections.abc import Mapping
import re
from typing import Any

from specdec.checkpoints import mapping
from specdec.checkpoints.checkpoint import ArrayRef
from specdec.errors import SpecdecError

_LAYER = re.compile(r"layers_(\d{1,9})(?!\d)")
# Fields that T5X's own configurations have besides and that change no number.
_OTHER_FIELDS = ("scan_layers", "remat_policy", "param_scan_axis", "dropout_rate", "dtype",
                 "float32_attention_logits", "file")
_BY_COUNT = {1: ("relu",), 2: ("gelu", "linear")}

Arrays = dict[str, ArrayRef]


def infer(arrays: Arrays, about: Mapping[str, Any], where: str) -> tuple[dict[str, Any], Arrays,
                                                                         bool]:
  """The architecture, and the arrays named and shaped as our network wants them.

  Args:
    arrays: parameters by T5X's name, in any of its layouts.
    about: fields of a configuration beside the checkpoint; checked against the shapes.
    where: the checkpoint, for messages.

  Returns:
    Fields of `T5Config`, the parameters by our name, and whether layers were stacked.

  Raises:
    SpecdecError: the arrays are not those of one T5, or contradict the configuration.
  """
  scanned = any(name.startswith(("encoder/encoder/", "decoder/decoder/")) for name in arrays)
  if scanned:
    arrays = _unstack(arrays, where)
  arrays = _as_matrices(arrays)
  config = _config(arrays, where)
  for field, value in about.items():
    if field in config and _plain(value) != _plain(config[field]) and field != "mlp_activations":
      raise SpecdecError(f"{about['file']} says {field} {value!r}, but the arrays of {where} "
                         f"have {config[field]!r}; expected the configuration of this checkpoint")
  given = about.get("mlp_activations")
  if given is not None:
    if not isinstance(given, list | tuple) or len(given) != len(config["mlp_activations"]):
      raise SpecdecError(f"{about['file']} says mlp_activations {given!r}, but the arrays of "
                         f"{where} have {len(config['mlp_activations'])} parallel projections")
    config["mlp_activations"] = list(given)
  for field, value in about.items():
    if field not in config and field not in _OTHER_FIELDS:
      config[field] = value
  wanted = mapping.parameter_shapes(config)
  told = mapping.differences(wanted, {name: array.shape for name, array in arrays.items()})
  if told:
    raise SpecdecError(f"the arrays of {where} are not those of a T5; {told}")
  return config, {name: arrays[name] for name in wanted}, scanned


def _plain(value: Any) -> Any:
  return tuple(value) if isinstance(value, list) else value


def _unstack(arrays: Arrays, where: str) -> Arrays:
  """`encoder/encoder/x` [.., L, ..] -> `encoder/layers_i/x`; layers are axis 1."""
  out: Arrays = {}
  for name, array in arrays.items():
    stack, _, rest = name.partition("/")
    if stack in ("encoder", "decoder") and rest.startswith(f"{stack}/"):
      if array.ndim < 2:
        raise SpecdecError(f"{array.where} has the shape {array.shape}; expected layers stacked "
                           f"along its second axis, as T5X's scanned checkpoints ({where})")
      for i, layer in enumerate(array.unstacked(1)):
        out[f"{stack}/layers_{i}{rest.removeprefix(stack)}"] = layer
    else:
      out[name] = array
  return out


def _as_matrices(arrays: Arrays) -> Arrays:
  """Kernels [embed, heads, head] and [heads, head, embed] as matrices."""
  out: Arrays = {}
  for name, array in arrays.items():
    if name.endswith("/kernel") and array.ndim == 3:
      a, b, c = array.shape
      array = array.reshaped((a * b, c) if name.endswith("/out/kernel") else (a, b * c))
    out[name] = array
  return out


def _config(arrays: Arrays, where: str) -> dict[str, Any]:
  """Fields of `T5Config` that shapes decide."""
  def shape(name: str, *others: str) -> mapping.Shape:
    for candidate in (name, *others):
      if candidate in arrays and arrays[candidate].ndim == 2:
        return arrays[candidate].shape
    found = {n: a.shape for n, a in arrays.items()}
    near = mapping.differences({name: ()}, found).split(";")[0]
    raise SpecdecError(f"the arrays of {where} are not those of a T5; {near}")

  bias = "relpos_bias/rel_embedding"
  vocab_size, emb_dim = shape(mapping.EMBEDDING)
  heads, buckets = shape(f"decoder/{bias}", f"decoder/layers_0/{bias}")
  width = shape("decoder/layers_0/self_attention/query/kernel")[1]
  mlp_dim = shape("decoder/layers_0/mlp/wo/kernel")[0]
  gates = sum(name.startswith("decoder/layers_0/mlp/wi") for name in arrays)
  if width % heads or gates not in _BY_COUNT:
    raise SpecdecError(
        f"the arrays of {where} are not those of a T5: attention {width} wide for {heads} "
        f"heads, {gates} feed-forward projections; expected a multiple of the heads, and "
        "wi, or wi_0 and wi_1")
  layers = {
      stack: 1 + max((int(m[1]) for name in arrays if name.startswith(f"{stack}/")
                      and (m := _LAYER.search(name))), default=-1)
      for stack in ("encoder", "decoder")}
  if max(layers.values()) > mapping.MAX_LAYERS:
    raise SpecdecError(f"the arrays of {where} are not those of a T5; there is one of layer "
                       f"{max(layers.values()) - 1}, and expected are at most "
                       f"{mapping.MAX_LAYERS} layers")
  return {
      "vocab_size": vocab_size, "emb_dim": emb_dim, "num_heads": heads,
      "head_dim": width // heads, "mlp_dim": mlp_dim,
      "num_encoder_layers": layers["encoder"], "num_decoder_layers": layers["decoder"],
      "mlp_activations": list(_BY_COUNT[gates]),
      "logits_via_embedding": mapping.OUTPUT not in arrays,
      "relpos_num_buckets": buckets,
      "relpos_per_layer": f"decoder/layers_0/{bias}" in arrays,
  }
