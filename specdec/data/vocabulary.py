"""A sentencepiece vocabulary with T5's conventions."""

from collections.abc import Sequence
import pathlib

import sentencepiece

from specdec.data import base
from specdec.errors import SpecdecError


class Vocabulary(base.BaseVocabulary):
  """Text to ids and back. T5's ids: pad 0 (also the start id), EOS 1, UNK 2.

  Args:
    model: bytes of a sentencepiece model file.
    extra_ids: sentinels behind the pieces, `<extra_id_0>` the last of them.

  Raises:
    SpecdecError: the bytes are no sentencepiece model.
  """

  kind = "sentencepiece"

  def __init__(self, model: bytes, extra_ids: int = 0):
    self._processor = sentencepiece.SentencePieceProcessor()
    try:
      loaded = self._processor.LoadFromSerializedProto(model)
    except RuntimeError:
      loaded = False
    if not loaded or self._processor.eos_id() < 0 or not self._readable():
      raise SpecdecError(
          "the vocabulary is not a sentencepiece model with an EOS piece; expected the "
          "file that T5 calls spiece.model")
    self.model = model
    self.extra_ids = extra_ids
    self._size = self._processor.GetPieceSize()
    self._extra = base.sentinels(extra_ids)

  @classmethod
  def load(cls, path: str | pathlib.Path) -> "Vocabulary":
    """Reads a sentencepiece model file.

    Raises:
      SpecdecError: the file cannot be read or is no sentencepiece model.
    """
    try:
      model = pathlib.Path(path).read_bytes()
    except OSError as error:
      raise SpecdecError(f"cannot read the vocabulary {path}: {error.strerror}") from error
    try:
      return cls(model)
    except SpecdecError as error:
      raise SpecdecError(f"{path}: {error}") from error

  def _readable(self) -> bool:
    """Whether every piece is a text; in a damaged file one need not be."""
    try:
      self._processor.IdToPiece(list(range(self._processor.GetPieceSize())))
    except (UnicodeDecodeError, RuntimeError, IndexError):
      return False
    return True

  def __len__(self) -> int:
    return self._size + len(self._extra)

  @property
  def eos_id(self) -> int:
    return self._processor.eos_id()

  def piece(self, i: int) -> str:
    return self._processor.IdToPiece(i) if i < self._size else self._extra[i - self._size]

  def _encode(self, text: str) -> list[int]:
    return self._processor.EncodeAsIds(text)

  def _decode(self, ids: Sequence[int]) -> str:
    return self._processor.DecodeIds(list(ids))
