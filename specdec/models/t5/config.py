"""Architecture of a T5 model, as data."""

import dataclasses
import json
import pathlib
from typing import Any

_ACTIVATIONS = ("gelu", "relu", "silu", "linear")
# What goes into loops and tables; far above any T5, so that no file makes them endless.
_MOST = {"num_encoder_layers": 4096, "num_decoder_layers": 4096, "relpos_num_buckets": 2**16,
         "relpos_max_distance": 2**16}


@dataclasses.dataclass(frozen=True)
class T5Config:
  """Shape and variant of a T5 encoder-decoder.

  Field names are those of T5X's `t5x/examples/t5/network.py::T5Config`, so that
  a T5X configuration carries over word by word. Hashable: it is a static
  argument of every compiled function.

  Attributes:
    vocab_size: width of the embedding and of the logits (pieces plus padding).
    emb_dim: model width `D`.
    num_heads: attention heads `H`.
    head_dim: size of one head (64 in every public T5 v1.x).
    mlp_dim: hidden width of the feed-forward block.
    num_encoder_layers: encoder depth.
    num_decoder_layers: decoder depth.
    mlp_activations: `("gelu", "linear")` for v1.1, `("relu",)` for v1.0. Several
      activations are applied to parallel projections and multiplied (gated).
    logits_via_embedding: v1.0 ties the output layer to the embedding and scales
      the decoder output by `D ** -0.5`; v1.1 has its own output layer, unscaled.
    scale_logits: whether the decoder output is scaled by `D ** -0.5`; None scales it
      where the output layer is tied, as T5X does. Hugging Face knows all four cases.
    dropout_rate: used in training only.
    relpos_num_buckets: buckets of the relative position bias.
    relpos_max_distance: distance from which all positions share a bucket.
    relpos_per_layer: every layer has a bias of its own, as in T5X's scanned models and
      umT5, instead of one that the layers of a stack share.
    layer_norm_epsilon: epsilon of the RMS norm.
    used_vocab_size: the logits of ids from here on are -inf: they fill a matrix up and mean
      nothing. None for none; T5's own padding is not masked, as nobody else does.
    dtype: computation dtype, "float32" or "bfloat16". Norms, softmax and logits
      are float32 in both.
  """

  vocab_size: int
  emb_dim: int
  num_heads: int
  head_dim: int
  mlp_dim: int
  num_encoder_layers: int
  num_decoder_layers: int
  mlp_activations: tuple[str, ...] = ("gelu", "linear")
  logits_via_embedding: bool = False
  dropout_rate: float = 0.0
  relpos_num_buckets: int = 32
  relpos_max_distance: int = 128
  relpos_per_layer: bool = False
  scale_logits: bool | None = None
  layer_norm_epsilon: float = 1e-6
  used_vocab_size: int | None = None
  dtype: str = "float32"

  def __post_init__(self):
    object.__setattr__(self, "mlp_activations", tuple(self.mlp_activations))
    for name in (
        "vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim",
        "num_encoder_layers", "num_decoder_layers", "relpos_num_buckets",
        "relpos_max_distance",
    ):
      value = getattr(self, name)
      most = _MOST[name] if name in _MOST else 2**31 - 1
      if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"T5Config.{name} is {value!r}; expected a positive integer, at most "
                         f"{most}")
    used = self.used_vocab_size
    if used is not None and not (isinstance(used, int) and 1 <= used <= self.vocab_size):
      raise ValueError(f"T5Config.used_vocab_size is {used!r}; expected None or an integer from "
                       f"1 to vocab_size, which is {self.vocab_size}")
    rate = self.dropout_rate
    if isinstance(rate, bool) or not isinstance(rate, float | int) or not 0 <= rate < 1:
      raise ValueError(f"T5Config.dropout_rate is {rate!r}; expected a number from 0 to below 1")
    epsilon = self.layer_norm_epsilon
    if not isinstance(epsilon, float | int) or not 0 < epsilon < 1:
      raise ValueError(f"T5Config.layer_norm_epsilon is {epsilon!r}; expected a small number")
    unknown = [a for a in self.mlp_activations if a not in _ACTIVATIONS]
    if unknown or not self.mlp_activations:
      raise ValueError(
          f"T5Config.mlp_activations is {self.mlp_activations!r}; "
          f"expected names out of {', '.join(_ACTIVATIONS)}")
    for name, known in (("relpos_per_layer", (False, True)),
                        ("logits_via_embedding", (False, True)),
                        ("scale_logits", (None, False, True))):
      if not any(getattr(self, name) is value for value in known):
        raise ValueError(f"T5Config.{name} is {getattr(self, name)!r}; expected one of {known}")
    if self.dtype not in ("float32", "bfloat16"):
      raise ValueError(
          f"T5Config.dtype is {self.dtype!r}; expected 'float32' or 'bfloat16' "
          "(float16 overflows in T5's feed-forward output)")

  @property
  def scaled_logits(self) -> bool:
    """Whether the decoder output is scaled by `D ** -0.5` before the output layer."""
    return self.logits_via_embedding if self.scale_logits is None else self.scale_logits

  def replace(self, **changes: Any) -> "T5Config":
    """Returns a copy with some fields changed."""
    return dataclasses.replace(self, **changes)

  def to_dict(self) -> dict[str, Any]:
    """Returns a JSON-ready dictionary; `from_dict` reads it back."""
    out = dataclasses.asdict(self)
    out["mlp_activations"] = list(self.mlp_activations)
    # What hardly any model has stays out of its file, which older readers then take.
    if self.used_vocab_size is None:
      del out["used_vocab_size"]
    return out

  @classmethod
  def from_dict(cls, fields: dict[str, Any]) -> "T5Config":
    """Builds a configuration from a dictionary and refuses unknown fields.

    Raises:
      ValueError: a field is unknown, missing or out of range.
    """
    known = {f.name for f in dataclasses.fields(cls)}
    unknown = sorted(set(fields) - known)
    if unknown:
      raise ValueError(
          f"unknown T5Config fields {', '.join(unknown)}; "
          f"expected some of {', '.join(sorted(known))}")
    required = {f.name for f in dataclasses.fields(cls)
                if f.default is dataclasses.MISSING}
    missing = sorted(required - set(fields))
    if missing:
      raise ValueError(f"T5Config lacks the fields {', '.join(missing)}")
    return cls(**fields)

  @classmethod
  def from_json(cls, path: str | pathlib.Path) -> "T5Config":
    """Reads a configuration from a JSON file."""
    with open(path, encoding="utf-8") as f:
      return cls.from_dict(json.load(f))
