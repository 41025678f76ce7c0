"""Dimension legend, shared pytrees, statuses and errors.

Dimensions used in shapes throughout the package:

  B  batch            rows decoded together
  S  source           positions of the encoder input
  T  target           positions of the decoder, the start id at position 0
  G  drafted          tokens proposed per iteration; gamma in the paper
  V  vocabulary       width of the logits
  H  heads            K  head size            D  model width

`p` is the target's distribution and `q` the drafter's, as in the paper.
"""

import enum

import flax.struct
import jax

Array = jax.Array


class Status(enum.IntEnum):
  """How a row stands. `text` says what a user can do about it."""

  RUNNING = 0
  EOS = 1
  LENGTH = 2
  NAN = 3
  UNUSED = 4

  @property
  def text(self) -> str:
    return _STATUS_TEXT[self]

  @property
  def label(self) -> str:
    """The word that records carry."""
    return self.name.lower()


_STATUS_TEXT = {
    Status.RUNNING: "not finished; call again to go on",
    Status.EOS: "ended with an end-of-sequence id",
    Status.LENGTH: "stopped at the length limit; raise max_decode_len for more",
    Status.NAN: ("the target's logits were not finite; what was decoded before stands; "
                 "check the weights and the dtype (float16 overflows in T5)"),
    Status.UNUSED: "padding of an incomplete batch",
}


@flax.struct.dataclass
class Source:
  """What a model is conditioned on: the encoder input, or a prompt.

  Attributes:
    ids: int32 [B, S], padded with 0.
    length: int32 [B], tokens in use; a length, because id 0 may be a real token.
  """

  ids: Array
  length: Array

  @property
  def mask(self) -> Array:
    """bool [B, S], True where a token stands."""
    return jax.numpy.arange(self.ids.shape[1]) < self.length[:, None]


@flax.struct.dataclass
class Sampling:
  """How logits become a distribution; traced, one value per row.

  Attributes:
    temperature: float32 [B]; 1e-4 and below is greedy (as in T5X).
    top_k: int32 [B]; 0 is off.
    top_p: float32 [B]; 0 is off.
  """

  temperature: Array
  top_k: Array
  top_p: Array


@flax.struct.dataclass
class Limits:
  """Where a row ends; traced.

  Attributes:
    max_decode_len: int32 [B], tokens to generate, the EOS included.
    eos_ids: int32 [E], the ids that end a row; -1 entries stand for none.
  """

  max_decode_len: Array
  eos_ids: Array
