"""The folder of a drafter that is no T5: n-gram tables, or heads on a target.

    drafter.json    format, kind, settings, fingerprints of the vocabulary and of the target,
                    source, writer, shapes of the arrays, size and SHA-256 of the other file
    arrays.npz      NumPy arrays of plain numbers

Nothing in it is a program: arrays are read without pickles. As a bundle, a folder is
written under another name and moved into place when it is complete, and sizes and
checksums are compared before any number is used.
"""

import dataclasses
import hashlib
import io
import json
import pathlib
from typing import Any
import zipfile

import numpy as np

from specdec.checkpoints import drafts
from specdec.checkpoints import stores
from specdec.errors import SpecdecError
from specdec.version import __version__

FORMAT = "specdec-drafter"
VERSION = 1
KINDS = ("ngram", "heads")

_INDEX, _ARRAYS = "drafter.json", "arrays.npz"
# Plain numbers: truth values, integers, floats. Anything else would need a pickle.
_PLAIN = "biuf"
# The fields of the index that must be there, with the JSON types they may have.
_FIELDS = {"kind": (str,), "settings": (dict,), "vocabulary": (str,),
           "target": (str, type(None)), "source": (str,), "arrays": (dict,), "files": (dict,),
           "sha256": (dict,)}
_WORDS = {str: "text", dict: "a table", type(None): "null"}


@dataclasses.dataclass(frozen=True)
class DrafterFolder:
  """A drafter as it stands on disk.

  Attributes:
    kind: one of `KINDS`.
    arrays: by name.
    settings: of that kind, JSON.
    vocabulary: fingerprint of the vocabulary whose ids it speaks.
    target: fingerprint of the target it was made for; None if it suits any that has the
      vocabulary.
    source: where it comes from, one line.
    path: of the folder, for messages.
  """

  kind: str
  arrays: dict[str, np.ndarray]
  settings: dict[str, Any]
  vocabulary: str
  target: str | None = None
  source: str = ""
  path: str = ""

  def array(self, name: str, kinds: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """An array that the drafter needs.

    Args:
      name: of the array.
      kinds: letters of `np.dtype.kind` that will do.
      shape: expected; None stands for any size.

    Raises:
      SpecdecError: it is not there, or is not like that.
    """
    found = self.arrays.get(name)
    if found is None:
      raise SpecdecError(f"{self.path} has no array {name!r}, which a drafter of kind "
                         f"{self.kind!r} needs; write the folder again")
    fits = found.ndim == len(shape) and all(
        want in (None, have) for want, have in zip(shape, found.shape))
    if not fits or found.dtype.kind not in kinds:
      expected = ", ".join("any" if n is None else str(n) for n in shape)
      raise SpecdecError(f"array {name!r} of {self.path} is {found.dtype} of shape "
                         f"{found.shape}; expected ({expected}): write the folder again")
    return found

  def whole(self, name: str, least: int = 1, most: int = 2**31 - 1) -> int:
    """A setting that is a whole number in [least, most].

    Raises:
      SpecdecError: it is not.
    """
    value = self.settings.get(name)
    # JSON's true is an int to Python.
    if type(value) is not int or not least <= value <= most:
      raise SpecdecError(f'setting "{name}" of {self.path} is {value!r}; expected a whole number '
                         f"from {least} to {most}: write the folder again")
    return value


def is_drafter_folder(path: str | pathlib.Path) -> bool:
  """Whether a folder says that it is one of these, whole or not."""
  if not stores.is_remote(path):
    return (pathlib.Path(path) / _INDEX).is_file()
  return _INDEX in stores.names(path)


def kind_of(path: str | pathlib.Path) -> str:
  """The kind of a drafter, without reading its arrays.

  Raises:
    SpecdecError: the folder is not a drafter's, or of a kind that is not known.
  """
  folder = str(path) if stores.is_remote(path) else str(pathlib.Path(path).absolute())
  return _read_about(folder)["kind"]


def save(path: str | pathlib.Path, *, kind: str, arrays: dict[str, np.ndarray],
         settings: dict[str, Any], vocabulary: str, target: str | None = None,
         source: str = "", compress: bool = False) -> None:
  """Writes a drafter.

  Args:
    path: the folder; must not exist yet.
    kind: one of `KINDS`.
    arrays: plain numbers by name; names are words, without a slash.
    settings: whatever JSON holds.
    vocabulary: fingerprint of the vocabulary.
    target: fingerprint of the target it was made for, or None.
    source: where it comes from, one line.
    compress: with zlib: tables shrink a lot, trained weights hardly, and take a while.

  Raises:
    SpecdecError: the folder exists or cannot be written.
    ValueError: the kind is unknown, or an array holds something else than numbers.
  """
  if kind not in KINDS:
    raise ValueError(f"kind is {kind!r}; expected one of {', '.join(KINDS)}")
  arrays = {name: np.asarray(array) for name, array in arrays.items()}
  for name, array in arrays.items():
    if array.dtype.kind not in _PLAIN or not name.replace(".", "_").isidentifier():
      raise ValueError(f"array {name!r} is {array.dtype}; expected plain numbers under a word")
  with drafts.whole_folder(path) as draft:
    # Through an open file: NumPy would close its own only when it is done without an error.
    with open(draft / _ARRAYS, "wb") as f:
      (np.savez_compressed if compress else np.savez)(f, **arrays)
    content = (draft / _ARRAYS).read_bytes()
    about = {
        "format": FORMAT, "version": VERSION, "writer": f"specdec {__version__}", "kind": kind,
        "settings": settings, "vocabulary": vocabulary, "target": target, "source": source,
        "arrays": {name: _outline(array) for name, array in arrays.items()},
        "files": {_ARRAYS: len(content)},
        "sha256": {_ARRAYS: hashlib.sha256(content).hexdigest()}}
    # Last of all: without it the folder is nothing that loads.
    (draft / _INDEX).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def load(path: str | pathlib.Path, verify: bool = True) -> DrafterFolder:
  """Reads a drafter.

  Args:
    path: the folder.
    verify: False compares the size alone and spares the checksum.

  Raises:
    SpecdecError: the folder is not a complete drafter.
  """
  folder = str(path) if stores.is_remote(path) else str(pathlib.Path(path).absolute())
  about = _read_about(folder)
  arrays = _read_arrays(stores.join(folder, _ARRAYS), _read_content(folder, about, verify))
  found = {name: _outline(array) for name, array in arrays.items()}
  for name in sorted(found.keys() | about["arrays"].keys()):
    if found.get(name) != about["arrays"].get(name):
      raise SpecdecError(
          f"array {name!r} of {stores.join(folder, _ARRAYS)} is {found.get(name, 'missing')}; "
          f"expected {about['arrays'].get(name, 'none')}: the folder is damaged, copy it again")
  return DrafterFolder(about["kind"], arrays, about["settings"], about["vocabulary"],
                       about["target"], about["source"], str(path))


def _outline(array: np.ndarray) -> str:
  return f"{array.dtype.name}[{','.join(map(str, array.shape))}]"


def _read_about(folder: str) -> dict[str, Any]:
  where = stores.join(folder, _INDEX)
  try:
    content = stores.read_file(folder, _INDEX)
    problem = "No such file or directory"
  except SpecdecError as error:
    content, problem = None, str(error)
  if content is None:
    raise SpecdecError(f"{folder} is not a drafter's folder: {where} cannot be read ({problem}); "
                       f"expected a folder with {_INDEX} and {_ARRAYS}")
  try:
    about = json.loads(content)
  except (ValueError, RecursionError) as error:
    raise SpecdecError(f"{where} is not JSON: {error}; copy the folder again") from error
  if not isinstance(about, dict) or about.get("format") != FORMAT:
    raise SpecdecError(f"{where} is not of format {FORMAT!r}; expected a folder that specdec "
                       "wrote for a drafter")
  if type(about.get("version")) is not int or about["version"] not in range(1, VERSION + 1):
    raise SpecdecError(f"{folder} has drafter version {about.get('version')!r}; this specdec "
                       f"reads versions up to {VERSION}: install a newer one")
  for name, types in _FIELDS.items():
    if not isinstance(about.get(name, ...), types):
      found = repr(about[name]) if name in about else "missing"
      raise SpecdecError(f'"{name}" in {where} is {found}; expected '
                         f"{' or '.join(_WORDS[t] for t in types)}: copy the folder again")
  if about["kind"] not in KINDS:
    raise SpecdecError(f"{folder} is a drafter of kind {about['kind']!r}; this specdec knows "
                       f"{', '.join(KINDS)}: install a newer one")
  return about


def _read_content(folder: str, about: dict[str, Any], verify: bool) -> bytes:
  """The arrays' file, if it is the one that was written."""
  where = stores.join(folder, _ARRAYS)
  content = stores.read_file(folder, _ARRAYS)
  if content is None:
    raise SpecdecError(f"{where} is missing; the folder is incomplete: copy it again")
  size = about["files"].get(_ARRAYS)
  if len(content) != size:
    raise SpecdecError(f"{where} has {len(content)} bytes; expected {size}: the folder is "
                       "damaged, copy it again")
  noted = about["sha256"].get(_ARRAYS)
  if verify and (digest := hashlib.sha256(content).hexdigest()) != noted:
    raise SpecdecError(f"{where} has the SHA-256 {digest[:12]}; expected {str(noted)[:12]}: the "
                       "folder is damaged, copy it again")
  return content


def _read_arrays(where: str, content: bytes) -> dict[str, np.ndarray]:
  # NumPy would take a file that begins otherwise for a single array or a pickle.
  if not zipfile.is_zipfile(io.BytesIO(content)):
    raise SpecdecError(f"{where} is not a zip file of arrays; the folder is damaged, copy it "
                       "again")
  try:
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
      arrays = {name: found[name] for name in found.files}
  # Whatever a header says that is not so, a size beyond all memory among it: NumPy, its parser
  # of headers, zipfile and zlib raise a dozen types.
  except Exception as error:
    reason = " ".join(str(error).split()) or type(error).__name__
    raise SpecdecError(f"{where} holds something else than plain arrays ({reason}); the folder "
                       "is damaged, copy it again") from error
  for name, array in arrays.items():
    if not isinstance(array, np.ndarray) or array.dtype.kind not in _PLAIN:
      kind = getattr(array, "dtype", type(array).__name__)
      raise SpecdecError(f"{name!r} in {where} is {kind}; expected an array of plain numbers: "
                         "the folder is damaged, copy it again")
  return arrays
