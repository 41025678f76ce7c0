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
from typing import Any

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
  FORBIDDEN = 5

  @property
  def text(self) -> str:
    """What it means, and what a user can do about it."""
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
                 "check the weights, the dtype (float16 overflows in T5) and the logits_fn, "
                 "if there is one"),
    Status.UNUSED: "padding of an incomplete batch",
    Status.FORBIDDEN: ("every id was forbidden at the next position; what was decoded before "
                       "stands; loosen forbidden_ids, min_decode_len, no_repeat_ngram_size or "
                       "the logits_fn"),
}


class Source(flax.struct.PyTreeNode):
  """What a model is conditioned on: the encoder input, or a prompt.

  Attributes:
    ids: int32 [B, S], padded with 0.
    length: int32 [B], tokens in use; a length, because id 0 may be a real token.
    begin: int32 [B], the first token of the text itself, behind a task's prefix; None for
      no prefixes.
  """

  ids: Array
  length: Array
  begin: Array | None = None

  @property
  def mask(self) -> Array:
    """bool [B, S], True where a token stands."""
    return jax.numpy.arange(self.ids.shape[1]) < self.length[:, None]


class Sampling(flax.struct.PyTreeNode):
  """How logits become a distribution; traced, one value per row.

  Attributes:
    temperature: float32 [B]; 1e-4 and below is greedy (as in T5X).
    top_k: int32 [B]; 0 is off.
    top_p: float32 [B]; 0 is off.
  """

  temperature: Array
  top_k: Array
  top_p: Array


class Limits(flax.struct.PyTreeNode):
  """Where a row ends; traced.

  Attributes:
    max_decode_len: int32 [B], most tokens after the start id, those of a prompt and
      the EOS included.
    eos_ids: int32 [E], the ids that end a row; -1 entries stand for none.
    min_decode_len: int32 [B], fewest tokens, counted likewise: until then the EOS
      ids are forbidden. 0 and 1 are off.
  """

  max_decode_len: Array
  eos_ids: Array
  min_decode_len: Array


class Controls(flax.struct.PyTreeNode):
  """What is done to logits before they become a distribution; traced.

  Positions are absolute: the first token after the start id is at 0, whether it
  was generated or is part of a prompt.

  Attributes:
    repetition_penalty: float32 [B], divides positive logits of tokens that the row
      has already, and multiplies negative ones; 1 is off.
    no_repeat_ngram: int32 [B], no n-gram of this size occurs twice in a row; 0 is
      off.
    forbidden_ids: int32 [F]; -1 entries stand for none.
    forbidden_from: int32 [F], first position at which the id is forbidden.
    forbidden_until: int32 [F], first position after that at which it is not.
    logits_fn: a callable pytree `(logits [N, V], ids [N, T], lengths [N]) -> logits`,
      see `core.controls.adjust`, or None. Its arrays are arguments of the program.
  """

  repetition_penalty: Array
  no_repeat_ngram: Array
  forbidden_ids: Array
  forbidden_from: Array
  forbidden_until: Array
  logits_fn: Any = None


class Speculation(flax.struct.PyTreeNode):
  """How far a row speculates; traced. Nothing here changes its law, but for the lenience.

  Attributes:
    gamma: int32 [B], most tokens drafted per iteration; the compiled size bounds it too.
    confidence: float32 [B], a position is drafted only while the drafter gives its
      likeliest token at least this much; 0 is off.
    lenience: float32 [B] in (0, 1], the paper's l; looked at by the lenient verifier alone.
  """

  gamma: Array
  confidence: Array
  lenience: Array


class Rules(flax.struct.PyTreeNode):
  """All that a user asks of a batch; the same for plain decoding, drafts and target."""

  sampling: Sampling
  limits: Limits
  controls: Controls
  speculation: Speculation
