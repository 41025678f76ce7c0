"""A vocabulary out of a tokenizer.json, through the tokenizers library."""

from collections.abc import Sequence
from typing import Any

from specdec.data import base
from specdec.errors import SpecdecError

_EOS = "</s>"


class TokenizerVocabulary(base.BaseVocabulary):
  """The tokenizer that Hugging Face's fast tokenizers keep in one file.

  Args:
    content: bytes of a tokenizer.json.

  Raises:
    SpecdecError: it is none, has no EOS piece, or the library is not installed.
  """

  kind = "tokenizer.json"

  def __init__(self, content: bytes):
    try:
      import tokenizers
    except ImportError as error:
      raise SpecdecError("a vocabulary in tokenizer.json needs the tokenizers library; "
                         "pip install 'specdec-jax[hf]'") from error
    self.model = content
    try:
      self._tokenizer: Any = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:
      # tokenizers raises Exception itself; a UnicodeDecodeError is one too.
      raise SpecdecError(f"the vocabulary is not a tokenizer.json: {str(error)[:200]}") from error
    eos = self._tokenizer.token_to_id(_EOS)
    if eos is None or self._tokenizer.id_to_token(0) is None:
      raise SpecdecError(f"the vocabulary in tokenizer.json has no piece {_EOS}; expected that "
                         "of a T5, with padding as id 0")
    self._eos = eos
    # Ids may have gaps; those are pieces without a name.
    self._size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

  def __len__(self) -> int:
    return self._size

  @property
  def eos_id(self) -> int:
    return self._eos

  def piece(self, i: int) -> str:
    return self._tokenizer.id_to_token(i) or f"<id {i}>"

  def _encode(self, text: str) -> list[int]:
    return self._tokenizer.encode(text, add_special_tokens=False).ids

  def _decode(self, ids: Sequence[int]) -> str:
    return self._tokenizer.decode(list(ids), skip_special_tokens=True)
