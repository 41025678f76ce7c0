"""byT5's vocabulary: the bytes of UTF-8."""

from collections.abc import Sequence

from specdec.data import base

_SPECIAL = ("<pad>", "</s>", "<unk>")
_BYTES = 256


class ByteVocabulary(base.BaseVocabulary):
  """Ids 0 to 2 are pad, EOS and UNK, the next 256 are bytes, then sentinels.

  Args:
    extra_ids: sentinels; byT5 has 125, and unlike T5 it counts them upwards.
  """

  kind = "bytes"

  def __init__(self, extra_ids: int = 125):
    self._extra = [f"<extra_id_{i}>" for i in range(extra_ids)]

  def __len__(self) -> int:
    return len(_SPECIAL) + _BYTES + len(self._extra)

  @property
  def eos_id(self) -> int:
    return 1

  def piece(self, i: int) -> str:
    if i < len(_SPECIAL):
      return _SPECIAL[i]
    byte = i - len(_SPECIAL)
    if byte < _BYTES:
      return chr(byte) if 32 < byte < 127 else f"<0x{byte:02X}>"
    return self._extra[byte - _BYTES]

  def _encode(self, text: str) -> list[int]:
    return [byte + len(_SPECIAL) for byte in text.encode()]

  def _decode(self, ids: Sequence[int]) -> str:
    content = bytes(i - len(_SPECIAL) for i in ids if 0 <= i - len(_SPECIAL) < _BYTES)
    # A text that was cut may end in the middle of a letter.
    return content.decode("utf-8", "ignore")
