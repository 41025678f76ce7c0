"""Hugging Face's config.json and ours, both ways.

Two things are apart in transformers that T5X joins: whether the output layer is tied to the
embedding, and whether the decoder output is scaled. What transformers 5 computes is what
counts: the output layer is its own where `lm_head.weight` is stored, T5 and umT5 scale
unless `scale_decoder_outputs` (or `tie_word_embeddings`, in older files) is false, and mT5
never does. Source: transformers `models/{t5,mt5,umt5}/{configuration,modeling}_*.py`.
"""

from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

from specdec.checkpoints import mapping
from specdec.errors import SpecdecError

FAMILIES = ("t5", "mt5", "umt5")

# feed_forward_proj by our activations. transformers' plain "gelu" is the exact one, which
# no T5 was trained with; its "gated-gelu" is the tanh approximation, as ours.
_ACTIVATIONS = {
    "relu": ("relu",), "gelu_new": ("gelu",), "silu": ("silu",),
    "gated-gelu": ("gelu", "linear"), "gated-gelu_new": ("gelu", "linear"),
    "gated-relu": ("relu", "linear"), "gated-silu": ("silu", "linear"),
    "gated-swish": ("silu", "linear"),
}
_SIZES = {
    "vocab_size": "vocab_size", "emb_dim": "d_model", "num_heads": "num_heads",
    "head_dim": "d_kv", "mlp_dim": "d_ff", "num_encoder_layers": "num_layers",
    "relpos_num_buckets": "relative_attention_num_buckets",
    "relpos_max_distance": "relative_attention_max_distance",
}
_DEFAULTS = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}


def to_ours(about: Any, names: Collection[str], where: str) -> dict[str, Any]:
  """Fields of `T5Config` for a Hugging Face model.

  Args:
    about: content of config.json.
    names: keys of the state dict; they tell whether the output layer is tied.
    where: the file, for messages.

  Raises:
    SpecdecError: the model is of another family, or lacks a size.
  """
  if not isinstance(about, Mapping):
    raise SpecdecError(f"{where} is not a table; expected the configuration of a T5 model")
  family = about.get("model_type")
  if family not in FAMILIES:
    raise SpecdecError(f"{where} is of a {family or 'nameless'} model; expected an "
                       f"encoder-decoder of the T5 family (model_type {', '.join(FAMILIES)})")
  if about.get("is_encoder_decoder") is False:
    raise SpecdecError(f"{where} is of an encoder alone (is_encoder_decoder is false); expected "
                       "a T5 with encoder and decoder")
  start = about.get("decoder_start_token_id", 0)
  if start not in (0, None):
    raise SpecdecError(f"{where} has decoder_start_token_id {start!r}; expected 0, which T5 "
                       "models start with")
  config: dict[str, Any] = {}
  for ours, theirs in _SIZES.items():
    value = about.get(theirs, _DEFAULTS.get(theirs))
    most = mapping.MAX_LAYERS if theirs == "num_layers" else 2**31 - 1
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
      raise SpecdecError(f"{where} has {theirs} {value!r}; expected a positive integer, at most "
                         f"{most}")
    config[ours] = value
  layers = about.get("num_decoder_layers")
  layers = config["num_encoder_layers"] if layers is None else layers
  if not isinstance(layers, int) or isinstance(layers, bool) \
      or not 1 <= layers <= mapping.MAX_LAYERS:
    raise SpecdecError(f"{where} has num_decoder_layers {layers!r}; expected a positive integer, "
                       f"at most {mapping.MAX_LAYERS}")
  config["num_decoder_layers"] = layers
  projection = about.get("feed_forward_proj", "relu" if family == "t5" else "gated-gelu")
  if not isinstance(projection, str) or projection not in _ACTIVATIONS:
    raise SpecdecError(f"{where} has feed_forward_proj {projection!r}; expected one of "
                       f"{', '.join(_ACTIVATIONS)}")
  config["mlp_activations"] = list(_ACTIVATIONS[projection])
  epsilon = about.get("layer_norm_epsilon", 1e-6)
  if not isinstance(epsilon, float | int) or not 0 < epsilon < 1:
    raise SpecdecError(f"{where} has layer_norm_epsilon {epsilon!r}; expected a small number")
  config["layer_norm_epsilon"] = epsilon
  config["relpos_per_layer"] = family == "umt5"
  tied = mapping.HF_OUTPUT not in names
  if tied and about.get("tie_word_embeddings") is False:
    raise SpecdecError(f"{where} has tie_word_embeddings false, but the weights have no "
                       f"{mapping.HF_OUTPUT}; expected an output layer of its own")
  scaled = about.get("scale_decoder_outputs")
  if not isinstance(scaled, bool):
    scaled = about.get("tie_word_embeddings") is not False
  scaled = scaled and family != "mt5"
  config["logits_via_embedding"] = tied
  # T5X's two cases need no further word.
  config["scale_logits"] = None if scaled == tied else scaled
  return config


def to_theirs(config: Mapping[str, Any], vocabulary_kind: str | None) -> dict[str, Any]:
  """The config.json of a model that is exported.

  Args:
    config: fields of `T5Config`.
    vocabulary_kind: "bytes" makes it a byT5.

  Raises:
    SpecdecError: transformers has no such feed-forward block.
  """
  activations = tuple(config["mlp_activations"])
  projection = next((theirs for theirs, ours in _ACTIVATIONS.items() if ours == activations), None)
  if projection is None:
    raise SpecdecError(f"transformers has no T5 with the activations {', '.join(activations)}; "
                       f"expected one of {', '.join(_ACTIVATIONS)}")
  tied = config["logits_via_embedding"]
  scaled = config.get("scale_logits")
  scaled = tied if scaled is None else scaled
  about = {theirs: config[ours] for ours, theirs in _SIZES.items()}
  return {
      "architectures": ["T5ForConditionalGeneration"], "model_type": "t5",
      "is_encoder_decoder": True, "use_cache": True,
      **about,
      "num_decoder_layers": config["num_decoder_layers"],
      "feed_forward_proj": projection, "dropout_rate": config.get("dropout_rate", 0.0),
      "layer_norm_epsilon": config.get("layer_norm_epsilon", 1e-6),
      # False where either is, for transformers 4, in which one word says both.
      "tie_word_embeddings": tied and scaled, "scale_decoder_outputs": scaled,
      "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
      **({"tokenizer_class": "ByT5Tokenizer"} if vocabulary_kind == "bytes" else
         {"tokenizer_class": "T5Tokenizer"}),
  }
