"""A folder that a long run writes shard by shard, and goes on in where it was.

A shard is there whole or not at all: it is written under another name, forced to disk and
renamed. `run.json` says what run the shards belong to; another run is refused.
"""

from collections.abc import Iterable
import contextlib
import fcntl
import json
import os
import pathlib
from typing import Any
from typing import BinaryIO

from specdec.errors import SpecdecError

_RUN = "run.json"
_LOCK = ".lock"
_PARTIAL = ".partial"
_BESIDE = ("operative.gin", "summary.json", "predictions.jsonl", "results.json")


class RunFolder:
  """The folder of one run, locked while it is open.

  Args:
    path: the folder; made where there is none, in a folder that exists.
    identity: what the run's outputs follow from, JSON-ready; two runs are the same when all of
      it is.
    shards: how many there will be.
    overwrite: shards of another run are removed.

  Attributes:
    path: the folder.
    pinned: what the run measured at its start and goes by from then on; see `pin`.

  Raises:
    SpecdecError: it cannot be written, somebody else is writing there, or it holds another run.
  """

  def __init__(self, path: str | pathlib.Path, identity: dict[str, Any], shards: int,
               overwrite: bool = False):
    self.path, self._identity, self.count = pathlib.Path(path), _plain(identity), shards
    self.pinned: dict[str, Any] = {}
    try:
      if not str(path) or (self.path.exists() and not self.path.is_dir()):
        raise SpecdecError(f"{path or repr(path)} is no folder; give the name of one")
      if not self.path.absolute().parent.is_dir():
        raise SpecdecError(f"there is no folder {self.path.parent}; create it first")
      self.path.mkdir(exist_ok=True)
      self._lock: BinaryIO = open(self.path / _LOCK, "ab")
    except (OSError, ValueError) as error:
      raise self._failed(error) from error
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      self._lock.close()
      raise SpecdecError(f"another process is writing to {path}; wait for it, or give another "
                         "folder") from None
    try:
      self._claim(overwrite)
    except OSError as error:
      self._lock.close()
      raise self._failed(error) from error
    except BaseException:
      self._lock.close()
      raise

  def _claim(self, overwrite: bool) -> None:
    """Goes on with a run, begins one, or refuses what is there."""
    found = self._read_run()
    if found is not None and found.get("identity") == self._identity:
      self.pinned = found.get("pinned") or {}
    else:
      if not overwrite:
        self._refuse(found)
      for old in (*self._shard_files(), *self._others()):
        old.unlink()
      self._write_run()
    for left in self.path.glob(f"outputs-*-of-*.jsonl{_PARTIAL}"):
      left.unlink()

  def _read_run(self) -> dict[str, Any] | None:
    try:
      found = json.loads((self.path / _RUN).read_text(encoding="utf-8"))
    except FileNotFoundError:
      return None
    except (OSError, ValueError, RecursionError):
      return {}
    return found if isinstance(found, dict) else {}

  def _refuse(self, found: dict[str, Any] | None) -> None:
    if found is None and not self._shard_files():
      others = ", ".join(path.name for path in self._others())
      if not others:
        return
      raise SpecdecError(f"{self.path} holds {others} of something else; add --overwrite to "
                         "replace them, or give another folder")
    if found == {}:
      raise SpecdecError(f"{self.path / _RUN} is broken, which says what run the shards belong to; "
                         "add --overwrite to replace them, or give another folder")
    before = _flat((found or {}).get("identity") or {})
    differing = [f"{name.rpartition('.')[2]} {before.get(name)!r} there, {value!r} now"
                 for name, value in _flat(self._identity).items() if before.get(name) != value]
    if before.get("input.sha256") != self._identity.get("input", {}).get("sha256"):
      differing = ["the input has changed"]
    what = f" ({'; '.join(differing[:3])})" if before and differing else ""
    raise SpecdecError(f"{self.path} holds shards of another run{what}; add --overwrite to replace "
                       "them, or give another folder")

  def _write_run(self) -> None:
    self.write(_RUN, json.dumps({"identity": self._identity, "pinned": self.pinned}, indent=1))

  def pin(self, **values: Any) -> None:
    """Keeps what was measured, for when the run goes on.

    Raises:
      SpecdecError: it cannot be written.
    """
    self.pinned |= _plain(values)
    self._write_run()

  def _shard_files(self) -> list[pathlib.Path]:
    return sorted(self.path.glob("outputs-*-of-*.jsonl"))

  def _others(self) -> list[pathlib.Path]:
    """Files besides shards that a run writes, or an evaluation, and that are there."""
    return [self.path / name for name in _BESIDE if (self.path / name).exists()]

  def shard_path(self, index: int) -> pathlib.Path:
    """Where a shard is when it is done."""
    return self.path / f"outputs-{index:05d}-of-{self.count:05d}.jsonl"

  def is_done(self, index: int) -> bool:
    """Whether a shard is there."""
    return self.shard_path(index).exists()

  def write_shard(self, index: int, lines: Iterable[str]) -> None:
    """Writes a shard as its lines come; when that fails, nothing of it stays.

    Raises:
      SpecdecError: the disk is full, or the like.
    """
    self._write(self.shard_path(index), lines)

  def write(self, name: str, text: str) -> None:
    """Writes another file of the folder, likewise.

    Raises:
      SpecdecError: the disk is full, or the like.
    """
    self._write(self.path / name, text.rstrip("\n").split("\n"))

  def _write(self, path: pathlib.Path, lines: Iterable[str]) -> None:
    partial = path.with_name(path.name + _PARTIAL)
    try:
      with open(partial, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as f:
        for line in lines:
          try:
            f.write(line + "\n")
          except OSError as error:
            raise self._failed(error) from error
        try:
          f.flush()
          os.fsync(f.fileno())
        except OSError as error:
          raise self._failed(error) from error
      partial.rename(path)
      folder = os.open(self.path, os.O_RDONLY)
      try:
        os.fsync(folder)
      finally:
        os.close(folder)
    except BaseException as error:
      with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)
      if isinstance(error, OSError):
        raise self._failed(error) from error
      raise

  def _failed(self, error: Exception) -> SpecdecError:
    reason = getattr(error, "strerror", None) or error
    try:
      done = len(self._shard_files()) if self.path.is_dir() else 0
    except OSError:
      done = 0
    kept = f"; {done} finished shards are kept, and the same command goes on" if done else ""
    return SpecdecError(f"cannot write to {self.path}: {reason}{kept}")

  def __enter__(self) -> "RunFolder":
    return self

  def __exit__(self, *exc_info) -> None:
    self._lock.close()


def _plain(value: Any) -> Any:
  """As JSON gives it back: tuples are lists there."""
  return json.loads(json.dumps(value))


def _flat(value: Any, name: str = "") -> dict[str, Any]:
  """Nested values by dotted names."""
  if not isinstance(value, dict):
    return {name: value}
  out: dict[str, Any] = {}
  for key, entry in value.items():
    out |= _flat(entry, f"{name}.{key}" if name else key)
  return out
