"""The vocabulary files that lie in or beside a checkpoint."""

from collections.abc import Sequence
import json
import pathlib
from typing import Any

from specdec.checkpoints import stores
from specdec.checkpoints.checkpoint import VocabularyFile
from specdec.checkpoints.checkpoint import told
from specdec.errors import SpecdecError

_SENTENCEPIECE = ("spiece.model", "vocab.model", "sentencepiece.model")
_TOKENIZER = "tokenizer.json"
BYTES = "bytes"
# Sentinels of span corruption, `<extra_id_N>`, in T5's own vocabularies.
_EXTRA_IDS = 100
# Far more than anybody has: no number in a file makes names without an end.
MOST_EXTRA_IDS = 2**16
_REACHABLE = "a file that can be read: download it, and give its local path"


def find(folders: Sequence[str], width: int) -> VocabularyFile | None:
  """The vocabulary in the first of some folders that has one.

  Args:
    folders: local or gs://.
    width: of the logits; tells how many sentinels stand behind the pieces where no file
      does.

  Raises:
    SpecdecError: a file cannot be read.
  """
  for folder in folders:
    settings = _settings(folder)
    if settings.get("tokenizer_class") == "ByT5Tokenizer":
      return VocabularyFile("bytes")
    tokenizer = stores.read_file(folder, _TOKENIZER)
    if tokenizer is not None and _has_tokens_of_its_own(tokenizer):
      return VocabularyFile("tokenizer", tokenizer)
    for name in _SENTENCEPIECE:
      content = stores.read_file(folder, name)
      if content is not None:
        return sentencepiece(content, width, settings.get("extra_ids"))
    if tokenizer is not None:
      return VocabularyFile("tokenizer", tokenizer)
  return None


def _has_tokens_of_its_own(tokenizer: bytes) -> bool:
  """Whether a tokenizer.json has tokens that were added to the sentencepiece model beside it."""
  try:
    added = json.loads(tokenizer).get("added_tokens") or []
    names = {token["content"] for token in added}
  except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
    return False  # Whoever reads it says what is wrong.
  usual = {"<pad>", "</s>", "<unk>"}
  return any(name not in usual and not name.startswith("<extra_id_") for name in names)


def sentencepiece(content: bytes, width: int, extra_ids: Any = None) -> VocabularyFile:
  """A sentencepiece model with the sentinels that its logits leave room for."""
  if type(extra_ids) is not int or not 0 <= extra_ids <= MOST_EXTRA_IDS:
    # T5's logits are as wide as pieces and sentinels, padded to a multiple of 128.
    spare = width - pieces(content)
    extra_ids = _EXTRA_IDS if _EXTRA_IDS <= spare < _EXTRA_IDS + 128 else 0
  return VocabularyFile("sentencepiece", content, extra_ids)


def pieces(content: bytes) -> int:
  """Number of pieces of a sentencepiece model; 0 when it is none."""
  import sentencepiece as sp

  processor = sp.SentencePieceProcessor()
  try:
    return processor.GetPieceSize() if processor.LoadFromSerializedProto(content) else 0
  except RuntimeError:
    return 0


def write(folder: pathlib.Path, vocabulary: VocabularyFile | None) -> None:
  """Writes a vocabulary under the names that Hugging Face gives it; T5X takes any."""
  if vocabulary is None:
    return
  settings: dict[str, Any] = {"tokenizer_class": "T5Tokenizer", "eos_token": "</s>",
                              "unk_token": "<unk>", "pad_token": "<pad>"}
  if vocabulary.kind == "bytes":
    settings["tokenizer_class"] = "ByT5Tokenizer"
  elif vocabulary.kind == "sentencepiece":
    (folder / _SENTENCEPIECE[0]).write_bytes(vocabulary.content)
    settings["extra_ids"] = vocabulary.extra_ids
  else:
    (folder / _TOKENIZER).write_bytes(vocabulary.content)
  (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n",
                                                encoding="utf-8")


def given(value: str, width: int) -> VocabularyFile:
  """The vocabulary that a user names: a file (gs:// too), a folder with one, or `bytes`.

  Raises:
    SpecdecError: there is none.
  """
  if value == BYTES:
    return VocabularyFile("bytes")
  if stores.is_remote(value):
    folder, _, name = value.rpartition("/")
    content = stores.read_file(folder, name, _REACHABLE)
    if content is None:
      raise SpecdecError(f"there is no vocabulary {value}; expected {_REACHABLE}")
    return _of_file(value, content, width)
  path = pathlib.Path(value)
  if path.is_dir():
    found = find([value], width)
    if found is None:
      raise SpecdecError(f"{value} has no vocabulary; expected one of "
                         f"{', '.join((*_SENTENCEPIECE, _TOKENIZER))} in it")
    return found
  content = stores.read_file(str(path.parent), path.name)
  if content is None:
    raise SpecdecError(f"there is no vocabulary {value}; expected a sentencepiece model, a "
                       "tokenizer.json, a folder with one of them, or the word bytes")
  return _of_file(value, content, width)


def _of_file(name: str, content: bytes, width: int) -> VocabularyFile:
  if name.endswith(".json"):
    return VocabularyFile("tokenizer", content)
  return sentencepiece(content, width)


def _settings(folder: str) -> dict[str, Any]:
  content = stores.read_file(folder, "tokenizer_config.json")
  if content is None:
    return {}
  with told(stores.join(folder, "tokenizer_config.json"), "JSON"):
    settings = json.loads(content)
  return settings if isinstance(settings, dict) else {}
