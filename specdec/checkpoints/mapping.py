"""Names and shapes of T5's parameters: ours (which are T5X's) and Hugging Face's.

Pure tables, from an architecture alone; no array is touched. A name is a path with
slashes, `encoder/layers_0/attention/query/kernel`; T5X writes the same path with dots
behind `target.`. What Hugging Face does otherwise:

* a projection is stored [out, in], so every kernel is transposed; so is the relative
  position bias, [buckets, heads] there and [heads, buckets] here;
* a stack's shared bias stands in its first layer;
* a tied output layer is not stored, or stored as a second name of the embedding.

`wi_0` carries the activation and `wi_1` is linear in both. Sources: T5X's
`t5x/examples/t5/network.py` and `t5x/examples/scalable_t5/network.py`, transformers'
`models/t5/modeling_t5.py`.
"""

from collections.abc import Iterable
from collections.abc import Mapping
import difflib
from typing import Any
from typing import NamedTuple

Shape = tuple[int, ...]

# Far above any T5: no file with a number in it makes a table of parameters endless.
MAX_LAYERS = 4096

EMBEDDING = "token_embedder/embedding"
OUTPUT = "decoder/logits_dense/kernel"

# Other names under which Hugging Face files carry the shared embedding, and a bias
# that early conversions of T5 wrote although no attention to the encoder uses one.
HF_EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
HF_OUTPUT = "lm_head.weight"
HF_IGNORED = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)


class HfParameter(NamedTuple):
  """Where a parameter of ours is in a Hugging Face state dict.

  Attributes:
    name: key of the state dict.
    transposed: whether the array there has its two axes the other way round.
  """

  name: str
  transposed: bool


def parameter_shapes(config: Mapping[str, Any]) -> dict[str, Shape]:
  """Shape of every parameter of an architecture, by our name.

  Args:
    config: fields of `T5Config`; those with a default may be absent.

  Returns:
    Shapes in the order in which a model computes; kernels are [in, out].
  """
  d, mlp = config["emb_dim"], config["mlp_dim"]
  width = config["num_heads"] * config["head_dim"]
  bias = (config["num_heads"], config.get("relpos_num_buckets", 32))
  per_layer = config.get("relpos_per_layer", False)
  activations = config.get("mlp_activations", ("gelu", "linear"))
  attention = {"query": (d, width), "key": (d, width), "value": (d, width), "out": (width, d)}
  shapes: dict[str, Shape] = {EMBEDDING: (config["vocab_size"], d)}

  for stack in ("encoder", "decoder"):
    if not per_layer:
      shapes[f"{stack}/relpos_bias/rel_embedding"] = bias
    for i in range(config[f"num_{stack}_layers"]):
      layer = f"{stack}/layers_{i}"
      if per_layer:
        shapes[f"{layer}/relpos_bias/rel_embedding"] = bias
      for norm, block in _ATTENTIONS[stack]:
        shapes[f"{layer}/{norm}/scale"] = (d,)
        for name, shape in attention.items():
          shapes[f"{layer}/{block}/{name}/kernel"] = shape
      shapes[f"{layer}/pre_mlp_layer_norm/scale"] = (d,)
      for name in mlp_names(len(activations)):
        shapes[f"{layer}/mlp/{name}/kernel"] = (d, mlp)
      shapes[f"{layer}/mlp/wo/kernel"] = (mlp, d)
    shapes[f"{stack}/{stack}_norm/scale"] = (d,)
  if not config.get("logits_via_embedding", False):
    shapes[OUTPUT] = (d, config["vocab_size"])
  return shapes


# Norm before, and name, of the attention blocks of a layer.
_ATTENTIONS = {
    "encoder": (("pre_attention_layer_norm", "attention"),),
    "decoder": (("pre_self_attention_layer_norm", "self_attention"),
                ("pre_cross_attention_layer_norm", "encoder_decoder_attention")),
}


def mlp_names(activations: int) -> list[str]:
  """Names of a feed-forward block's parallel projections: `wi`, or `wi_0`, `wi_1`, ..."""
  return ["wi"] if activations == 1 else [f"wi_{i}" for i in range(activations)]


def hf_table(config: Mapping[str, Any]) -> dict[str, HfParameter]:
  """Hugging Face's place of every parameter of an architecture, by our name.

  Args:
    config: fields of `T5Config`. `relpos_per_layer` gives the names of umT5, whose
      layers have biases of their own; T5 and mT5 share one per stack.

  Returns:
    A one-to-one table: read it backwards for the other direction.
  """
  return {name: hf_parameter(name) for name in parameter_shapes(config)}


def hf_parameter(name: str) -> HfParameter:
  """Hugging Face's place of one parameter.

  >>> hf_parameter("decoder/layers_3/self_attention/query/kernel").name
  'decoder.block.3.layer.0.SelfAttention.q.weight'

  Raises:
    KeyError: T5 has no such parameter.
  """
  whole = {EMBEDDING: HfParameter("shared.weight", False), OUTPUT: HfParameter(HF_OUTPUT, True)}
  if name in whole:
    return whole[name]
  stack, *rest = name.split("/")
  if rest == [f"{stack}_norm", "scale"]:
    return HfParameter(f"{stack}.final_layer_norm.weight", False)
  if rest == ["relpos_bias", "rel_embedding"]:
    rest = ["layers_0", *rest]
  layer, block, *rest = rest
  part, hf_block = _HF_BLOCKS[stack][block]
  where = f"{stack}.block.{int(layer.removeprefix('layers_'))}.layer.{part}"
  if rest == ["scale"]:
    return HfParameter(f"{where}.layer_norm.weight", False)
  if block == "relpos_bias":
    return HfParameter(f"{where}.{hf_block}.relative_attention_bias.weight", True)
  projection = rest[0] if block == "mlp" else _HF_PROJECTIONS[rest[0]]
  return HfParameter(f"{where}.{hf_block}.{projection}.weight", True)


_HF_PROJECTIONS = {"query": "q", "key": "k", "value": "v", "out": "o"}
_HF_BLOCKS = {
    "encoder": {
        "relpos_bias": (0, "SelfAttention"),
        "pre_attention_layer_norm": (0, ""), "attention": (0, "SelfAttention"),
        "pre_mlp_layer_norm": (1, ""), "mlp": (1, "DenseReluDense")},
    "decoder": {
        "relpos_bias": (0, "SelfAttention"),
        "pre_self_attention_layer_norm": (0, ""), "self_attention": (0, "SelfAttention"),
        "pre_cross_attention_layer_norm": (1, ""),
        "encoder_decoder_attention": (1, "EncDecAttention"),
        "pre_mlp_layer_norm": (2, ""), "mlp": (2, "DenseReluDense")},
}


def t5x_name(name: str) -> str:
  """T5X's name of a parameter's array: `target.encoder...kernel`."""
  return "target." + name.replace("/", ".")


def differences(wanted: Mapping[str, Shape], found: Mapping[str, Shape]) -> str:
  """Says in one line how the parameters found differ from those wanted.

  Args:
    wanted: shapes by name.
    found: likewise.

  Returns:
    Missing names (with the nearest one that is there to spare), unexpected names and
    other shapes, a few of each; "" when all agree.
  """
  missing = [name for name in wanted if name not in found]
  spare = [name for name in found if name not in wanted]
  told = []
  for name in missing:
    near = difflib.get_close_matches(name, spare, 1, 0.8)
    told.append(f"{name} (there is {near[0]})" if near else name)
  other = [f"{name} {found[name]}, expected {wanted[name]}" for name in wanted
           if name in found and tuple(found[name]) != tuple(wanted[name])]
  parts = (("missing", told), ("unexpected", spare), ("of another shape", other))
  return "; ".join(f"{label}: {_few(names)}" for label, names in parts if names)


def _few(names: Iterable[str], most: int = 6) -> str:
  names = list(names)
  more = f" and {len(names) - most} more" if len(names) > most else ""
  return ", ".join(names[:most]) + more
