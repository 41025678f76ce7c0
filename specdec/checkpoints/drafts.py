"""Folders and files that appear whole or not at all."""

from collections.abc import Iterator
import contextlib
import os
import pathlib
import platform
import shutil

from specdec.errors import SpecdecError


@contextlib.contextmanager
def whole_folder(path: str | pathlib.Path) -> Iterator[pathlib.Path]:
  """A folder to write into, which gets its name when the block ends without an error.

  Until then it has a hidden name. One that was left behind by a process that was killed
  is removed by the next that writes to the same place.

  Args:
    path: the folder to be; must not exist.

  Raises:
    SpecdecError: it exists or cannot be written.
  """
  if "://" in str(path):
    raise SpecdecError(f"cannot write {path}: folders are written locally; write one here and "
                       "copy it there")
  path = pathlib.Path(path).absolute()
  if os.path.lexists(path):
    raise SpecdecError(f"{path} exists; give a new folder or remove it first")
  draft = path.with_name(f"{_prefix(path)}{os.getpid()}.tmp")
  try:
    draft.mkdir(parents=True)
    _remove_orphans(path)
    yield draft
    os.replace(draft, path)
  except OSError as error:
    raise SpecdecError(f"cannot write {path}: {error.strerror or error}") from error
  finally:
    shutil.rmtree(draft, ignore_errors=True)


def write_whole(path: pathlib.Path, data: bytes) -> None:
  """Writes a file, which is the old one or the new one whatever happens meanwhile.

  Raises:
    OSError: it cannot be written.
  """
  draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
  try:
    draft.write_bytes(data)
    os.replace(draft, path)
  finally:
    draft.unlink(missing_ok=True)


def _prefix(path: pathlib.Path) -> str:
  # With the host's name: elsewhere a process of that number says nothing.
  host = "".join(c for c in platform.node() if c.isalnum() or c == "-")
  return f".{path.name}.{host}."


def _remove_orphans(path: pathlib.Path) -> None:
  """Removes drafts of this folder, made on this host, whose process is no more."""
  prefix = _prefix(path)
  for draft in path.parent.iterdir():
    if not (draft.name.startswith(prefix) and draft.name.endswith(".tmp")):
      continue
    owner = draft.name[len(prefix):-len(".tmp")]
    if owner.isdigit() and not _runs(int(owner)):
      shutil.rmtree(draft, ignore_errors=True)


def _runs(process: int) -> bool:
  try:
    os.kill(process, 0)
  except ProcessLookupError:
    return False
  except OSError:
    return True
  return True
