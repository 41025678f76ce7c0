"""Where results go: lines on standard output, or a file of JSON lines."""

from collections.abc import Iterable
from collections.abc import Sequence
import json
import os
import pathlib
import stat
import sys
from typing import Any
from typing import TextIO

from specdec.errors import SpecdecError


class OutputFile:
  """A file that is claimed before the work and written while it goes on.

  Claiming it finds every mistake early; an existing file loses its contents only
  when the first line is there to replace them, and a file that was created for
  nothing is removed again. Every line is flushed, so an interruption loses none.

  Args:
    flag: the flag that named the file, for messages.
    path: the file; its folder must exist.
    overwrite: an existing file may be replaced.
    inputs: path of a file that must not be overwritten, or None.

  Raises:
    SpecdecError: the file cannot be written or may not be overwritten.
  """

  def __init__(self, flag: str, path: str, overwrite: bool, inputs: str | None = None):
    self.flag, self.path, self.count = flag, path, 0
    try:
      self._existed = _check(flag, path, overwrite, inputs)
      # "x" fails if somebody else was faster; "a" keeps what is there for now. What
      # UTF-8 cannot hold is escaped, in the very way that JSON does it.
      self._file: TextIO = open(
          path, "a" if self._existed else "x", encoding="utf-8", errors="backslashreplace")
    except (OSError, ValueError) as error:
      raise self._failed(error) from error

  def write(self, line: str) -> None:
    """Writes one line.

    Raises:
      SpecdecError: the disk is full, or the like.
    """
    try:
      if not self.count and self._existed and _is_regular(self.path):
        self._file.truncate(0)
      self._file.write(line + "\n")
      self._file.flush()
    except OSError as error:
      raise self._failed(error) from error
    self.count += 1

  def __enter__(self) -> "OutputFile":
    return self

  def __exit__(self, *exc_info) -> None:
    try:
      self._file.close()
    except OSError:
      pass  # What could not be flushed has been complained of in `write`.
    if not self.count and not self._existed:
      pathlib.Path(self.path).unlink(missing_ok=True)

  def _failed(self, error: Exception) -> SpecdecError:
    reason = getattr(error, "strerror", None) or error
    return SpecdecError(f"cannot write {self.flag} {self.path}: {reason}")


def claim_folder(flag: str, path: str, names: Iterable[str], overwrite: bool) -> pathlib.Path:
  """A folder for files, made where there is none.

  Args:
    flag: the flag that named it, for messages.
    path: the folder; the one it lies in must exist.
    names: of files that will be written there.
    overwrite: those that exist may be replaced.

  Raises:
    SpecdecError: it cannot be made, or a file may not be replaced.
  """
  folder = pathlib.Path(path)
  try:
    if not path or (folder.exists() and not folder.is_dir()):
      raise SpecdecError(f"{flag} {path or repr(path)} is no folder; give the name of one")
    folder.mkdir(exist_ok=True)
    for name in names:
      _check(flag, str(folder / name), overwrite, None)
  except (OSError, ValueError) as error:
    reason = getattr(error, "strerror", None) or error
    raise SpecdecError(f"cannot make the folder {flag} {path}: {reason}") from error
  return folder


def write_bytes(flag: str, path: pathlib.Path, data: bytes) -> None:
  """Writes a whole file, the old one staying until the new one is complete.

  Raises:
    SpecdecError: it cannot be written.
  """
  from specdec.checkpoints import drafts

  try:
    drafts.write_whole(path, data)
  except OSError as error:
    raise SpecdecError(f"cannot write {flag} {path}: {error.strerror or error}") from error


def _check(flag: str, path: str, overwrite: bool, inputs: str | None) -> bool:
  """Returns whether the file exists, and refuses what cannot or must not be written."""
  target = pathlib.Path(path)
  if not path or target.is_dir():
    raise SpecdecError(f"{flag} {path or repr(path)} is a folder; expected the name of a file")
  if not target.parent.is_dir():
    raise SpecdecError(f"{flag} {path}: there is no folder {target.parent}; create it first")
  if not target.exists():
    return False
  if inputs is not None and os.path.samefile(path, inputs):
    raise SpecdecError(f"{flag} {path} is the input file; give another name")
  if not overwrite and _is_regular(path):
    raise SpecdecError(f"{flag} {path} exists; add --overwrite or give another name")
  return True


def _is_regular(path: str) -> bool:
  return stat.S_ISREG(os.stat(path).st_mode)


def to_json(fields: dict[str, Any]) -> str:
  """One line of JSON, readable where it is not ASCII."""
  # Some line separators of Unicode stand unescaped in JSON and would split a line
  # for readers that split at more than newlines.
  text = json.dumps(fields, ensure_ascii=False)
  for separator in "\x85\u2028\u2029":
    text = text.replace(separator, f"\\u{ord(separator):04x}")
  return text


def print_line(text: str) -> None:
  """Prints a text as exactly one line of standard output; see `print_text`."""
  print_text(" ".join(text.splitlines()))


def print_text(text: str, end: str = "\n") -> None:
  """Prints a text to standard output at once.

  Raises:
    SpecdecError: it cannot be written.
  """
  try:
    print(text, end=end, flush=True)
  except BrokenPipeError:
    raise
  except OSError as error:
    raise SpecdecError(f"cannot write standard output: {error.strerror or error}") from error


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]],
                header: bool = True) -> None:
  """Prints a table, numbers to the right of their names.

  Raises:
    SpecdecError: it cannot be written.
  """
  from rich import box
  from rich.console import Console
  from rich.table import Table

  table = Table(box=box.SIMPLE_HEAD if header else None, pad_edge=False, show_header=header)
  for i, name in enumerate(columns):
    table.add_column(name, justify="right" if i and header else "left")
  for row in rows:
    table.add_row(*row)
  console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 100)
  with console.capture() as captured:
    console.print(table)
  for line in captured.get().splitlines():
    if line.strip():
      print_line(line.rstrip())
