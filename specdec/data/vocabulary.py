"""A sentencepiece vocabulary with T5's conventions."""

from collections.abc import Iterable
from collections.abc import Sequence
import functools
import hashlib
import pathlib

import sentencepiece

from specdec.errors import SpecdecError


class Vocabulary:
  """Text to ids and back. T5's ids: pad 0 (also the start id), EOS 1, UNK 2.

  Args:
    model: bytes of a sentencepiece model file.

  Raises:
    SpecdecError: the bytes are no sentencepiece model.
  """

  def __init__(self, model: bytes):
    self._processor = sentencepiece.SentencePieceProcessor()
    try:
      loaded = self._processor.LoadFromSerializedProto(model)
    except RuntimeError:
      loaded = False
    if not loaded or self._processor.eos_id() < 0:
      raise SpecdecError(
          "the vocabulary is not a sentencepiece model with an EOS piece; expected the "
          "file that T5 calls spiece.model")
    self.model = model

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

  def __len__(self) -> int:
    """Number of pieces; logits may be wider."""
    return self._processor.GetPieceSize()

  @property
  def eos_id(self) -> int:
    return self._processor.eos_id()

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256 of the pieces in order: equal means the same ids for the same pieces."""
    digest = hashlib.sha256()
    for i in range(len(self)):
      digest.update(self._processor.IdToPiece(i).encode() + b"\n")
    return digest.hexdigest()

  def encode(self, text: str) -> list[int]:
    """Ids of a text, ending in EOS. Text that is not valid Unicode is repaired."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return [*self._processor.EncodeAsIds(text), self.eos_id]

  def decode(self, ids: Iterable[int]) -> str:
    """Text of ids up to the first EOS; padding and ids without a piece are left out."""
    kept: list[int] = []
    for i in ids:
      if i == self.eos_id:
        break
      if 0 < i < len(self):
        kept.append(int(i))
    return self._processor.DecodeIds(kept)

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """The pieces of ids; `<id N>` where the logits are wider than the vocabulary."""
    size = len(self)
    return [self._processor.IdToPiece(int(i)) if 0 <= i < size else f"<id {i}>" for i in ids]
