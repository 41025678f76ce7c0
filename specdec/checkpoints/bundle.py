"""specdec's own model folder.

    model.json    format, architecture, vocabulary fingerprint, source, writer, and
                  the sizes of the other files
    params/       parameters named as in T5X, written by Orbax
    vocab.model   sentencepiece vocabulary

A folder is written under another name and moved into place when it is complete,
so what has the right name is whole. A copy of it need not be: sizes are checked
before Orbax reads anything.
"""

import dataclasses
import json
import os
import pathlib
import shutil
from typing import Any

import jax
import numpy as np

from specdec.errors import SpecdecError

FORMAT = "specdec-bundle"
VERSION = 1


@dataclasses.dataclass(frozen=True)
class Bundle:
  """A model as it stands on disk; what it means is for the engine to say.

  Attributes:
    config: the architecture, fields of `T5Config`.
    params: parameters in T5X's layout, in the dtype they were stored in.
    vocabulary: bytes of the sentencepiece model.
    fingerprint: of the vocabulary.
    source: where the parameters come from, one line.
  """

  config: dict[str, Any]
  params: dict[str, Any]
  vocabulary: bytes
  fingerprint: str
  source: str = ""


def save(path: str | pathlib.Path, bundle: Bundle, dtype: str | None = None) -> None:
  """Writes a bundle.

  Args:
    path: the folder; must not exist yet.
    bundle: what to write.
    dtype: dtype of the matrices on disk, or None to keep theirs. Norm scales and
      position biases are always float32.

  Raises:
    SpecdecError: the folder exists or cannot be written.
  """
  import orbax.checkpoint as ocp  # pylint: disable=import-outside-toplevel

  path = pathlib.Path(path).absolute()
  if path.exists():
    raise SpecdecError(f"{path} exists; give a new folder or remove it first")
  draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")

  def cast(keys, leaf):
    matrix = keys[-1].key in ("kernel", "embedding")
    return np.asarray(leaf, (dtype or leaf.dtype) if matrix else np.float32)

  try:
    draft.mkdir(parents=True)
    with ocp.StandardCheckpointer() as checkpointer:
      checkpointer.save(draft / "params",
                        jax.tree_util.tree_map_with_path(cast, bundle.params))
    # Orbax notes where it wrote; only that the file exists matters, and the path of
    # the draft would be wrong by now.
    marker = draft / "params" / "commit_success.txt"
    if marker.exists():
      marker.write_text("complete\n", encoding="utf-8")
    (draft / "vocab.model").write_bytes(bundle.vocabulary)
    about = {
        "format": FORMAT, "version": VERSION, "writer": "specdec 0.1.0",
        "source": bundle.source, "vocabulary": bundle.fingerprint, "config": bundle.config,
        "files": _sizes(draft)}
    (draft / "model.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    os.replace(draft, path)
  except OSError as error:
    raise SpecdecError(f"cannot write {path}: {error.strerror or error}") from error
  finally:
    shutil.rmtree(draft, ignore_errors=True)


def load(path: str | pathlib.Path) -> Bundle:
  """Reads a bundle.

  Raises:
    SpecdecError: the folder is not a complete bundle.
  """
  path = pathlib.Path(path).absolute()
  about = _read_about(path)
  _check_sizes(path, about.get("files", {}))
  try:
    vocabulary = (path / "vocab.model").read_bytes()
  except OSError as error:
    raise SpecdecError(f"cannot read {path / 'vocab.model'}: {error.strerror}; the bundle is "
                       "incomplete: copy the folder again") from error
  return Bundle(about.get("config", {}), _restore(path / "params"), vocabulary,
                str(about.get("vocabulary", "")), str(about.get("source", "")))


def _read_about(path: pathlib.Path) -> dict[str, Any]:
  try:
    about = json.loads((path / "model.json").read_text(encoding="utf-8"))
  except OSError as error:
    raise SpecdecError(
        f"{path} is not a specdec model: {path / 'model.json'} cannot be read "
        f"({error.strerror}); expected a folder with model.json, params/ and vocab.model"
    ) from error
  except ValueError as error:
    raise SpecdecError(f"{path / 'model.json'} is not JSON: {error}") from error
  if not isinstance(about, dict) or about.get("format") != FORMAT:
    raise SpecdecError(f"{path / 'model.json'} is not of format {FORMAT!r}")
  if about.get("version") != VERSION:
    raise SpecdecError(f"{path} has bundle version {about.get('version')!r}; this specdec "
                       f"reads version {VERSION}: install a newer one")
  for name in ("config", "files"):
    if not isinstance(about.get(name, {}), dict):
      raise SpecdecError(f'"{name}" in {path / "model.json"} is {about[name]!r}; expected a '
                         "table: copy the folder again")
  return about


def _sizes(path: pathlib.Path) -> dict[str, int]:
  """Bytes of every file below a folder, by relative name."""
  return {p.relative_to(path).as_posix(): p.stat().st_size
          for p in sorted(path.rglob("*")) if p.is_file()}


def _check_sizes(path: pathlib.Path, expected: dict[str, int]) -> None:
  """Finds files that are missing or cut short.

  Orbax would notice most of them too, but it reads in parallel, and reads that are
  still under way when the first one fails complain on their own, later, with a
  traceback that nobody can catch.
  """
  for name, size in expected.items():
    try:
      found = (path / name).stat().st_size
    except OSError as error:
      raise SpecdecError(f"{path / name} is missing ({error.strerror}); the bundle is "
                         "incomplete: copy the folder again") from error
    if found != size:
      raise SpecdecError(f"{path / name} has {found} bytes; expected {size}: the bundle is "
                         "damaged, copy the folder again")


def _restore(path: pathlib.Path) -> dict[str, Any]:
  """Restores parameters onto the first local device, whatever devices wrote them."""
  import orbax.checkpoint as ocp  # pylint: disable=import-outside-toplevel

  if not path.is_dir():
    raise SpecdecError(f"{path} is missing; the bundle is incomplete: copy the folder again")
  here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  try:
    with ocp.StandardCheckpointer() as checkpointer:
      found = checkpointer.metadata(path).item_metadata.tree
      like = jax.tree.map(
          lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), found)
      return checkpointer.restore(path, like)
  except Exception as error:
    # Orbax and tensorstore raise a dozen types for a damaged folder.
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise SpecdecError(
        f"cannot read the parameters in {path}: {first}; copy the folder again") from error
