"""specdec's own model folder.

    model.json      format, architecture, vocabulary and its fingerprint, source, writer,
                    and size and SHA-256 of every other file
    params/         parameters named as in T5X, written by Orbax
    vocab.model     sentencepiece vocabulary, or
    tokenizer.json  a vocabulary of the tokenizers library; byT5 needs no file

A folder is written under another name and moved into place when it is complete, so what
has the right name is whole. A copy of it need not be: sizes and checksums are compared
before any number is used.
"""

from concurrent import futures
import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

from specdec.checkpoints import drafts
from specdec.checkpoints import stores
from specdec.checkpoints import streaming
from specdec.checkpoints import t5x
from specdec.checkpoints import vocabularies
from specdec.checkpoints.checkpoint import ArrayRef
from specdec.checkpoints.checkpoint import Checkpoint
from specdec.checkpoints.checkpoint import VocabularyFile
from specdec.checkpoints.checkpoint import flat
from specdec.checkpoints.checkpoint import in_memory
from specdec.checkpoints.checkpoint import nested
from specdec.errors import SpecdecError
from specdec.version import __version__

FORMAT = "specdec-bundle"
# 2 added checksums and kinds of vocabulary.
VERSION = 2

_VOCABULARIES = {"sentencepiece": "vocab.model", "tokenizer": "tokenizer.json"}


@dataclasses.dataclass(frozen=True)
class Bundle:
  """A model to be written, or as it stands on disk.

  Attributes:
    config: the architecture, fields of `T5Config`.
    params: tree of parameters in T5X's layout; arrays, or `ArrayRef`s that are read
      one at a time.
    vocabulary: its file; bytes stand for a sentencepiece model without sentinels.
    fingerprint: of the vocabulary.
    source: where the parameters come from, one line.
  """

  config: dict[str, Any]
  params: dict[str, Any]
  vocabulary: bytes | VocabularyFile | None
  fingerprint: str
  source: str = ""

  def __post_init__(self):
    if isinstance(self.vocabulary, bytes):
      object.__setattr__(self, "vocabulary", VocabularyFile("sentencepiece", self.vocabulary))


def save(path: str | pathlib.Path, bundle: Bundle, dtype: str | None = None,
         progress: streaming.Progress | None = None) -> dict[str, int]:
  """Writes a bundle.

  Args:
    path: the folder; must not exist yet.
    bundle: what to write.
    dtype: dtype of the matrices on disk, or None to keep theirs. Norm scales and
      position biases are always float32.
    progress: called with the name and the bytes of each array that is written.

  Returns:
    Checksums of the arrays by name, for whoever reads them back.

  Raises:
    SpecdecError: the folder exists or cannot be written.
  """
  with drafts.whole_folder(path) as draft:
    return write(draft, bundle, dtype, progress)


def write(draft: pathlib.Path, bundle: Bundle, dtype: str | None = None,
          progress: streaming.Progress | None = None) -> dict[str, int]:
  """Writes a bundle into an empty folder; see `save`."""
  arrays = {name: _stored(name, leaf, dtype) for name, leaf in flat(bundle.params).items()}
  reading = streaming.Reading(progress)
  streaming.save_with_orbax(draft / "params", nested(arrays), reading)
  # Orbax notes where it wrote; only that the file exists matters, and the path of the
  # draft would be wrong by now.
  marker = draft / "params" / "commit_success.txt"
  if marker.exists():
    marker.write_text("complete\n", encoding="utf-8")
  vocabulary = bundle.vocabulary
  assert not isinstance(vocabulary, bytes)
  if vocabulary and vocabulary.kind in _VOCABULARIES:
    (draft / _VOCABULARIES[vocabulary.kind]).write_bytes(vocabulary.content)
  about = {
      "format": FORMAT, "version": VERSION, "writer": f"specdec {__version__}",
      "source": bundle.source, "vocabulary": bundle.fingerprint,
      "vocabulary_kind": vocabulary.kind if vocabulary else None,
      "extra_ids": vocabulary.extra_ids if vocabulary else 0, "config": bundle.config,
      "files": {p.relative_to(draft).as_posix(): p.stat().st_size for p in _files(draft)},
      "sha256": {p.relative_to(draft).as_posix(): digest
                 for p, digest in zip(_files(draft), _digests(_files(draft)), strict=True)}}
  # Last of all: without it the folder is nothing that loads.
  (draft / "model.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
  return reading.checksums


def _stored(name: str, leaf: Any, dtype: str | None) -> ArrayRef:
  array = leaf if isinstance(leaf, ArrayRef) else in_memory(leaf)
  matrix = name.endswith(("/kernel", "/embedding"))
  return array.cast((dtype or array.dtype) if matrix else "float32")


def load(path: str | pathlib.Path, verify: bool = True) -> Bundle:
  """Looks at a bundle; its arrays are read when they are used.

  Args:
    path: the folder.
    verify: False compares sizes alone and spares reading the files for a checksum.

  Raises:
    SpecdecError: the folder is not a complete bundle.
  """
  found = open_checkpoint(path, verify)
  return Bundle(found.config, found.tree(), found.vocabulary, found.fingerprint, found.source)


def open_checkpoint(path: str | pathlib.Path, verify: bool = True) -> Checkpoint:
  """`load`, as the other layouts' readers give it."""
  folder = str(path) if stores.is_remote(path) else str(pathlib.Path(path).absolute())
  about = _read_about(folder)
  if not stores.is_remote(folder):
    _check_files(pathlib.Path(folder), about, verify)
  metadata = stores.read_file(stores.join(folder, "params"), "_METADATA")
  if metadata is None:
    raise SpecdecError(f"{stores.join(folder, 'params')} holds no parameters; the bundle is "
                       "incomplete: copy the folder again")
  return Checkpoint(
      path=str(path), layout="specdec bundle", config=about.get("config", {}),
      arrays=t5x.open_orbax(stores.join(folder, "params"), metadata),
      vocabulary=_vocabulary(folder, about), source=str(about.get("source", "")),
      writer=str(about.get("writer", "")), fingerprint=str(about.get("vocabulary", "")))


def _vocabulary(folder: str, about: dict[str, Any]) -> VocabularyFile | None:
  kind = about.get("vocabulary_kind", "sentencepiece")
  if kind is None:
    return None
  if kind == "bytes":
    return VocabularyFile(kind)
  if not isinstance(kind, str) or kind not in _VOCABULARIES:
    raise SpecdecError(f'"vocabulary_kind" in {stores.join(folder, "model.json")} is {kind!r}; '
                       f"expected one of bytes, {', '.join(_VOCABULARIES)}")
  content = stores.read_file(folder, _VOCABULARIES[kind])
  if content is None:
    raise SpecdecError(f"cannot read {stores.join(folder, _VOCABULARIES[kind])}: there is no "
                       "such file; the bundle is incomplete: copy the folder again")
  extra = about.get("extra_ids", 0)
  if type(extra) is not int or not 0 <= extra <= vocabularies.MOST_EXTRA_IDS:
    raise SpecdecError(f'"extra_ids" in {stores.join(folder, "model.json")} is {extra!r}; expected '
                       f"a whole number from 0 to {vocabularies.MOST_EXTRA_IDS}: copy the folder "
                       "again")
  return VocabularyFile(kind, content, extra)


def _read_about(folder: str) -> dict[str, Any]:
  where = stores.join(folder, "model.json")
  try:
    content = stores.read_file(folder, "model.json")
    problem = "No such file or directory"
  except SpecdecError as error:
    content, problem = None, str(error)
  if content is None:
    raise SpecdecError(f"{folder} is not a specdec model: {where} cannot be read ({problem}); "
                       "expected a folder with model.json, params/ and vocab.model")
  try:
    about = json.loads(content)
  except (ValueError, RecursionError) as error:
    raise SpecdecError(f"{where} is not JSON: {error}") from error
  if not isinstance(about, dict) or about.get("format") != FORMAT:
    raise SpecdecError(f"{where} is not of format {FORMAT!r}")
  if about.get("version") not in range(1, VERSION + 1):
    raise SpecdecError(f"{folder} has bundle version {about.get('version')!r}; this specdec "
                       f"reads versions up to {VERSION}: install a newer one")
  for name in ("config", "files", "sha256"):
    if not isinstance(about.get(name, {}), dict):
      raise SpecdecError(f'"{name}" in {where} is {about[name]!r}; expected a table: copy the '
                         "folder again")
  return about


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
  return sorted(p for p in folder.rglob("*") if p.is_file())


def _digests(files: list[pathlib.Path]) -> list[str]:
  """SHA-256 of files, several at a time."""
  def digest(file: pathlib.Path) -> str:
    with open(file, "rb") as f:
      return hashlib.file_digest(f, "sha256").hexdigest()

  with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    return list(pool.map(digest, files))


def _check_files(folder: pathlib.Path, about: dict[str, Any], verify: bool) -> None:
  """Finds files that are missing, cut short or changed."""
  for name in (*about.get("files", {}), *about.get("sha256", {})):
    # A device, say, would be read without an end.
    if pathlib.PurePath(name).is_absolute() or ".." in pathlib.PurePath(name).parts:
      raise SpecdecError(f"{folder / 'model.json'} names the file {name!r}; expected files of its "
                         "own folder: copy the folder again")
  for name, size in about.get("files", {}).items():
    try:
      found = (folder / name).stat().st_size
    except (OSError, ValueError) as error:
      raise SpecdecError(f"{folder / name} is missing "
                         f"({getattr(error, 'strerror', None) or error}); the bundle is "
                         "incomplete: copy the folder again") from error
    if found != size:
      raise SpecdecError(f"{folder / name} has {found} bytes; expected {size}: the bundle is "
                         "damaged, copy the folder again")
  noted = about.get("sha256", {})
  files = [folder / name for name in noted if verify]
  try:
    digests = _digests(files)
  except OSError as error:
    raise SpecdecError(f"cannot read {error.filename}: {error.strerror}") from error
  except ValueError as error:
    raise SpecdecError(f"cannot read a file that {folder / 'model.json'} names ({error}); the "
                       "bundle is damaged, copy the folder again") from error
  for file, name, digest in zip(files, noted, digests):
    if digest != noted[name]:
      raise SpecdecError(f"{file} has the SHA-256 {digest[:12]}; expected "
                         f"{str(noted[name])[:12]}: the bundle is damaged, copy the folder again")
