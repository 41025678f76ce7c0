"""Where texts come from: arguments, a file, or standard input."""

from collections.abc import Sequence
import dataclasses
import sys

from specdec.errors import SpecdecError

_BOM = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True)
class Inputs:
  """Texts and what to call them in messages.

  Attributes:
    texts: in order.
    place: "text" for arguments, "line" for a file or standard input.
    path: of the file; None for arguments and standard input.
    origin: the source in words, such as "in.txt"; "" for arguments.
  """

  texts: list[str]
  place: str
  path: str | None
  origin: str

  def where(self, index: int) -> str:
    """Names one input as its author knows it, counting from 1."""
    return f"{self.place} {index + 1}" + (f" of {self.origin}" if self.origin else "")


def read(args: Sequence[str], input_file: str | None) -> Inputs:
  """Reads the texts of a command.

  Args:
    args: texts typed as arguments; a single "-" is standard input.
    input_file: path of a UTF-8 file with a text per line, "-" for standard input.

  Raises:
    SpecdecError: there is no input, or two, or it cannot be read as UTF-8.
  """
  if args and input_file is not None:
    raise SpecdecError("there are texts and an --input_file; expected one of the two")
  if input_file is not None and input_file != "-":
    return Inputs(read_lines("--input_file", input_file), "line", input_file, input_file)
  if input_file == "-" or list(args) == ["-"] or (not args and _piped()):
    return Inputs(_read_stdin(), "line", None, "standard input")
  if not args:
    raise SpecdecError('no input; type texts (specdec generate "A dog runs."), name an '
                       "--input_file, or pipe lines in")
  for i, text in enumerate(args):
    if any("\ud800" <= c <= "\udfff" for c in text):
      raise SpecdecError(f"text {i + 1} is not UTF-8; convert it, or set a UTF-8 locale")
  return Inputs(list(args), "text", None, "")


def _piped() -> bool:
  return sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty()


def _read_stdin() -> list[str]:
  if sys.stdin is None or sys.stdin.closed:
    raise SpecdecError("standard input is closed; type texts or name an --input_file")
  try:
    data = sys.stdin.buffer.read()
  except OSError as error:
    raise SpecdecError(f"cannot read standard input: {error.strerror or error}") from error
  return _lines(data, "standard input")


def read_lines(flag: str, path: str) -> list[str]:
  """The lines of a file that a flag named.

  Raises:
    SpecdecError: it cannot be read, is empty or not UTF-8.
  """
  try:
    with open(path, "rb") as f:
      data = f.read()
  except (OSError, ValueError) as error:
    reason = getattr(error, "strerror", None) or error
    raise SpecdecError(f"cannot read {flag} {path}: {reason}") from error
  if not data.removeprefix(_BOM) and flag != "--input_file":
    raise SpecdecError(f"{flag} {path} is empty; expected a text per line")
  return _lines(data, path)


def _lines(data: bytes, name: str) -> list[str]:
  """Splits at newlines alone, so that line numbers are those of every editor."""
  lines = data.removeprefix(_BOM).split(b"\n")
  if not lines[-1]:
    lines.pop()
  if not lines:
    raise SpecdecError(f"no input: {name} is empty; expected a text per line")
  texts = []
  for i, line in enumerate(lines):
    try:
      texts.append(line.removesuffix(b"\r").decode("utf-8"))
    except UnicodeDecodeError as error:
      raise SpecdecError(f"line {i + 1} of {name} is not UTF-8 (byte {error.start + 1} of the "
                         "line); convert the file, with iconv for example") from None
  return texts
