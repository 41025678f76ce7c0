"""A vocabulary of a pair in the form that seqio's features take."""

from collections.abc import Sequence

import numpy as np

from specdec.data.base import BaseVocabulary
from specdec.data.tasks.extra import seqio
from specdec.data.tasks.extra import tf


class TaskVocabulary(seqio.Vocabulary):
  """Wraps any vocabulary of this package, so that a task's ids are those of its models.

  Texts of predictions are then those that `specdec generate` prints, too: ids without a
  piece are left out, where `seqio.SentencePieceVocabulary` would put an UNK.

  Args:
    vocabulary: of the models that will decode.
  """

  def __init__(self, vocabulary: BaseVocabulary):
    super().__init__(extra_ids=0)
    self.wrapped = vocabulary

  @property
  def bos_id(self) -> int | None:
    """None: T5 starts with its padding."""
    return None

  @property
  def eos_id(self) -> int:
    """Id that ends a text."""
    return self.wrapped.eos_id

  @property
  def unk_id(self) -> int | None:
    """None, for seqio puts nothing in the place of others."""
    # What has no piece is left to the vocabulary itself.
    return None

  @property
  def _base_vocab_size(self) -> int:
    return len(self.wrapped)

  def _encode(self, s: str) -> list[int]:
    return self.wrapped.encode(s)[:-1]  # seqio's preprocessors put the EOS.

  def _decode(self, ids: Sequence[int]) -> str:
    return self.wrapped.decode(ids)

  def _encode_tf(self, s):
    def encode(text):
      # Bytes in a graph, an array of them outside of one.
      text = np.asarray(text).item().decode("utf-8", "replace")
      return np.asarray(self._encode(text), np.int32)

    # Pure: the same text gives the same ids, which lets TensorFlow cache and reorder.
    ids = tf.numpy_function(encode, [s], tf.int32, stateful=False)
    return tf.ensure_shape(ids, [None])

  def _decode_tf(self, ids):
    def decode(rows) -> bytes:
      return self.decode(rows.tolist()).encode()

    if len(ids.shape) == 1:
      return tf.ensure_shape(tf.numpy_function(decode, [ids], tf.string, stateful=False), [])
    return tf.map_fn(self._decode_tf, ids, fn_output_signature=tf.string)

  def __eq__(self, other) -> bool:
    return (isinstance(other, TaskVocabulary)
            and self.wrapped.fingerprint == other.wrapped.fingerprint)

  def __hash__(self) -> int:
    return hash(self.wrapped.fingerprint)

  def __str__(self) -> str:
    return (f"TaskVocabulary({self.wrapped.kind}, {len(self.wrapped)} pieces, "
            f"{self.wrapped.fingerprint[:12]})")
