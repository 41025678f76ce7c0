"""What every vocabulary can do, and how two of them are compared."""

import abc
from collections.abc import Iterable
from collections.abc import Sequence
import functools
import hashlib
import itertools
import re

_SENTINEL = re.compile(r"<extra_id_(\d+)>")


class BaseVocabulary(abc.ABC):
  """Text to ids and back, with T5's conventions: pad 0 (also the start id), an EOS.

  Attributes:
    kind: what it is made of, in a word or two.
  """

  kind: str = ""

  @abc.abstractmethod
  def __len__(self) -> int:
    """Number of pieces, sentinels included; logits may be wider."""

  @property
  @abc.abstractmethod
  def eos_id(self) -> int:
    """Id that ends a text."""

  @abc.abstractmethod
  def piece(self, i: int) -> str:
    """The piece of an id in [0, len)."""

  @abc.abstractmethod
  def _encode(self, text: str) -> list[int]:
    """Ids of a text without sentinels."""

  @abc.abstractmethod
  def _decode(self, ids: Sequence[int]) -> str:
    """Text of ids that all have a piece and are no sentinels."""

  def encode(self, text: str) -> list[int]:
    """Ids of a text, ending in EOS. Text that is not valid Unicode is repaired.

    Sentinels of span corruption, such as `<extra_id_0>`, are one id each where the
    vocabulary has them.
    """
    text = text.encode("utf-8", "replace").decode("utf-8")
    if not self._sentinels:
      return [*self._encode(text), self.eos_id]
    ids: list[int] = []
    at = 0
    for found in _SENTINEL.finditer(text):
      sentinel = self._sentinels.get(found[0])
      if sentinel is not None:
        ids += [*self._encode(text[at:found.start()].strip()), sentinel]
        at = found.end()
    return [*ids, *self._encode(text[at:].strip() if at else text), self.eos_id]

  def decode(self, ids: Iterable[int]) -> str:
    """Text of ids up to the first EOS; padding and ids without a piece are left out."""
    kept = itertools.takewhile(lambda i: i != self.eos_id, map(int, ids))
    kept = [i for i in kept if 0 < i < len(self)]
    if not self._sentinels:
      return self._decode(kept)
    names = {i: name for name, i in self._sentinels.items()}
    parts: list[str] = []
    run: list[int] = []
    for i in kept:
      if i in names:
        parts += [self._decode(run), names[i]]
        run = []
      else:
        run.append(i)
    parts.append(self._decode(run))
    return " ".join(part for part in parts if part)

  @functools.cached_property
  def _sentinels(self) -> dict[str, int]:
    """Ids of `<extra_id_N>` by name."""
    tail = range(max(0, len(self) - 512), len(self))
    return {self.piece(i): i for i in tail if is_sentinel(self.piece(i))}

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256 of the pieces in order: equal means the same ids for the same pieces."""
    digest = hashlib.sha256()
    for i in range(len(self)):
      digest.update(self.piece(i).encode() + b"\n")
    return digest.hexdigest()

  def pieces(self, ids: Sequence[int]) -> list[str]:
    """The pieces of ids; `<id N>` where the logits are wider than the vocabulary."""
    size = len(self)
    return [self.piece(int(i)) if 0 <= i < size else f"<id {i}>" for i in ids]

  def difference(self, other: "BaseVocabulary") -> str:
    """Where two vocabularies part, in words; "" when they agree.

    They agree when every id that both have is the same piece and what one of them has
    more is sentinels: the same pieces come with and without those.
    """
    if other.kind == "none" and self.kind != "none":
      return other.difference(self)
    if self.fingerprint == other.fingerprint:
      return ""
    shared = min(len(self), len(other))
    for i in range(shared):
      if self.piece(i) != other.piece(i):
        return f"id {i} is {self.piece(i)!r} in one and {other.piece(i)!r} in the other"
    longer = self if len(self) > shared else other
    for i in range(shared, len(longer)):
      if not is_sentinel(longer.piece(i)):
        return f"id {i} is {longer.piece(i)!r} in one and nothing in the other"
    return ""


def is_sentinel(piece: str) -> bool:
  """Whether a piece is a sentinel of span corruption."""
  return _SENTINEL.fullmatch(piece.removeprefix("\u2581")) is not None


def sentinels(count: int) -> list[str]:
  """Sentinels behind T5's pieces: the first of them has the highest id."""
  return [f"<extra_id_{i}>" for i in reversed(range(count))]
