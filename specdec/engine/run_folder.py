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
import secrets
import time
from typing import Any
from typing import BinaryIO

from specdec.errors import SpecdecError

_RUN = "run.json"
_LOCK = ".lock"
_PARTIAL = ".partial"
# How long what one host has written may take to be seen by another.
_SEEN_S, _LOOK_S = 60.0, 0.5
_BESIDE = ("operative.gin", "summary.json", "predictions.jsonl", "results.json")


class RunFolder:
  """The folder of one run, locked while it is open.

  Args:
    path: the folder; made where there is none, in a folder that exists.
    identity: what the run's outputs follow from, JSON-ready; two runs are the same when all of
      it is.
    shards: how many there will be.
    overwrite: shards of another run are removed.
    token: of `share` in another process, whose run this one joins; None to claim the folder.

  Attributes:
    path: the folder.
    pinned: what the run measured at its start and goes by from then on; see `pin`.

  Raises:
    SpecdecError: it cannot be written, somebody else is writing there, or it holds another run.
  """

  def __init__(self, path: str | pathlib.Path, identity: dict[str, Any], shards: int,
               overwrite: bool = False, token: str | None = None):
    self.path, self._identity, self.count = pathlib.Path(path), _plain(identity), shards
    self.pinned: dict[str, Any] = {}
    if token is not None:
      self._join(token)
      return
    try:
      if not str(path) or (self.path.exists() and not self.path.is_dir()):
        raise SpecdecError(f"{path or repr(path)} is no folder; give the name of one")
      if not self.path.absolute().parent.is_dir():
        raise SpecdecError(f"there is no folder {self.path.parent}; create it first")
      self.path.mkdir(exist_ok=True)
      self._lock: BinaryIO = open(self.path / _LOCK, "a+b")
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

  def share(self) -> str:
    """Lets other processes join this run, and still nobody else.

    Returns:
      What they name to show that they mean this run, and see the same folder.

    Raises:
      SpecdecError: it cannot be written.
    """
    token = secrets.token_hex(8)
    try:
      self._lock.truncate(0)
      self._lock.write(token.encode())
      self._lock.flush()
      os.fsync(self._lock.fileno())
      fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
      raise self._failed(error) from error
    return token

  def _join(self, token: str) -> None:
    """Works on a run that another process has claimed."""
    until = time.monotonic() + _SEEN_S
    while not self._is_shared(token):
      if time.monotonic() > until:
        raise SpecdecError(f"{self.path} here is not the folder that process 0 writes to; give "
                           "all processes one folder that all hosts see")
      time.sleep(_LOOK_S)
    found = self._read_run() or {}
    self.pinned = found.get("pinned") or {}
    if found.get("identity") != self._identity:
      raise SpecdecError(f"this process and process 0 do different things"
                         f"{self._differing(found, 'in process 0', 'here')}; start all with the "
                         "same flags, models and input")

  def _is_shared(self, token: str) -> bool:
    try:
      lock = open(self.path / _LOCK, "rb")
    except FileNotFoundError:
      return False
    except OSError as error:
      raise self._failed(error) from error
    with contextlib.ExitStack() as stack:
      stack.callback(lock.close)
      try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
      except OSError:
        return False
      if lock.read() != token.encode():
        return False
      stack.pop_all()
    self._lock = lock
    return True

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
    for left in self.path.glob(f"outputs-*-of-*.jsonl*{_PARTIAL}"):
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
    what = self._differing(found or {}, "there", "now")
    raise SpecdecError(f"{self.path} holds shards of another run{what}; add --overwrite to replace "
                       "them, or give another folder")

  def _differing(self, found: dict[str, Any], there: str, here: str) -> str:
    """What tells this run from the one that was found, in brackets."""
    before = _flat(found.get("identity") or {})
    differing = [f"{name.rpartition('.')[2]} {before.get(name)!r} {there}, {value!r} {here}"
                 for name, value in _flat(self._identity).items() if before.get(name) != value]
    if before.get("input.sha256") != self._identity.get("input", {}).get("sha256"):
      differing = ["the input has changed" if here == "now" else "the inputs differ"]
    return f" ({'; '.join(differing[:3])})" if before and differing else ""

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

  def done(self) -> list[int]:
    """The shards that are there."""
    return [index for index in range(self.count) if self.is_done(index)]

  def wait_for(self, shards: Iterable[int]) -> None:
    """Until shards that other hosts have written are seen here.

    Raises:
      SpecdecError: one of them never is.
    """
    until = time.monotonic() + _SEEN_S
    for index in shards:
      while not self.is_done(index):
        if time.monotonic() > until:
          raise SpecdecError(f"{self.shard_path(index)} was written and is not there; give all "
                             "processes one folder that all hosts see")
        time.sleep(_LOOK_S)

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
    # A name that no other process writes to, should one of an ended job be left.
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_PARTIAL}")
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
