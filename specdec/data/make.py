"""A vocabulary out of what a checkpoint holds."""

from specdec.data.base import BaseVocabulary
from specdec.data.byte_vocabulary import ByteVocabulary
from specdec.data.tokenizer_json import TokenizerVocabulary
from specdec.data.vocabulary import Vocabulary
from specdec.errors import SpecdecError


def make(kind: str, content: bytes, extra_ids: int = 0) -> BaseVocabulary:
  """Makes a vocabulary.

  Args:
    kind: "sentencepiece", "tokenizer" or "bytes".
    content: of its file; not looked at for bytes.
    extra_ids: sentinels behind the pieces of a sentencepiece model.

  Raises:
    SpecdecError: the content is not of that kind.
  """
  if kind == "bytes":
    return ByteVocabulary()
  if kind == "tokenizer":
    return TokenizerVocabulary(content)
  if kind == "sentencepiece":
    return Vocabulary(content, extra_ids)
  raise SpecdecError(f"unknown kind of vocabulary {kind!r}")
