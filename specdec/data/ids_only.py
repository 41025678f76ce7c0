"""Stands in for the vocabulary that a checkpoint does not carry."""

from collections.abc import Sequence

from specdec.data import base
from specdec.errors import SpecdecError


class IdsOnly(base.BaseVocabulary):
  """Ids without pieces: a model that has it scores and decodes ids, and no text.

  Args:
    width: number of ids, those of the logits.
  """

  kind = "none"

  def __init__(self, width: int):
    self._width = width

  def __len__(self) -> int:
    return self._width

  @property
  def eos_id(self) -> int:
    return 1

  def piece(self, i: int) -> str:
    return f"<id {i}>"

  def _encode(self, text: str) -> list[int]:
    raise SpecdecError("the model carries no vocabulary, so it takes ids and no text; give one "
                       "(--vocab=spiece.model, or load_model(path, vocabulary=...))")

  def _decode(self, ids: Sequence[int]) -> str:
    return " ".join(map(self.piece, ids))

  def difference(self, other: base.BaseVocabulary) -> str:
    """Ids can only be compared with ids, by their number."""
    if isinstance(other, IdsOnly) and len(self) == len(other):
      return ""
    if isinstance(other, IdsOnly):
      return f"neither carries its pieces, and they have {len(self)} and {len(other)} ids"
    return "one of them carries no vocabulary: name it (--vocab, or vocabulary=...)"
