"""Files of records, a line each: text, TSV or JSON lines, read piece by piece.

A file is looked through once, for where its lines stand and for a checksum; what is in them is
read when it is needed. A line that holds no text is no reason to stop: it is told of by itself.
"""

from collections.abc import Sequence
import dataclasses
import hashlib
import json
import pathlib
from typing import Any

from specdec.errors import SpecdecError

FORMATS = ("text", "tsv", "jsonl")
_SUFFIXES = {".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
_BOM = b"\xef\xbb\xbf"
# Places are kept of every so many lines.
_STRIDE = 64
# When none of so many lines at the beginning can be read, none of the others can.
_PROBED = 32
_GZIP = b"\x1f\x8b"


@dataclasses.dataclass(frozen=True)
class Line:
  """A record.

  Attributes:
    number: of its line in the file, from 1.
    text: what it says; "" when there is an error.
    error: what is wrong with it, or None.
  """

  number: int
  text: str
  error: str | None = None


def format_of(path: str | pathlib.Path, chosen: str | None = None) -> str:
  """The format of a file: the chosen one, or what its name tells.

  Raises:
    SpecdecError: there is no such format.
  """
  if chosen is not None and chosen not in FORMATS:
    raise SpecdecError(f"the format is {chosen!r}; expected one of {', '.join(FORMATS)}")
  return chosen or _SUFFIXES.get(pathlib.Path(path).suffix.lower(), "text")


class LineFile:
  """A file of records.

  Args:
    path: UTF-8, lines that end in a newline.
    kind: a name out of `FORMATS`; None to go by the file's name.
    field: which part of a line is the text: of JSON lines a name, "input" by default; of TSV a
      column's number from 1, the first by default, or its name in a first line of names.
    name: what messages call the file; its path by default.

  Attributes:
    count: records.
    digest: SHA-256 of the file.

  Raises:
    SpecdecError: it cannot be read, has no records, or lacks the field altogether.
  """

  def __init__(self, path: str | pathlib.Path, kind: str | None = None, field: str | None = None,
               name: str | None = None):
    self.path, self.name = pathlib.Path(path), name or str(path)
    self.kind = format_of(path, kind)
    if field is not None and self.kind == "text":
      raise SpecdecError(f"the field {field!r} is asked for, and {self.name} is read as text, "
                         "which has none; expected the format tsv or jsonl")
    self._places, lines, self.digest = self._look_through()
    self.field, self._column, self._header = field or "input", 0, 0
    if self.kind == "tsv":
      self._column, self._header = self._find_column(field)
      self.field = field or "1"
    self.count = lines - self._header
    if self.count <= 0:
      raise SpecdecError(f"no input: {self.name} is empty; expected a record per line")
    probed = self.read(0, min(self.count, _PROBED))
    if len(probed) > 1 and all(line.error for line in probed):
      raise SpecdecError(f"none of the first {len(probed)} lines of {self.name} can be read as "
                         f"{self.kind}: line {probed[0].number} {probed[0].error}")

  def read(self, begin: int, end: int) -> list[Line]:
    """Records from `begin` up to, not including, `end`, which count from 0.

    Raises:
      SpecdecError: the file cannot be read any more.
    """
    first = begin + self._header
    data = self._raw(first, end - begin)
    return [self._line(raw, first + i + 1) for i, raw in enumerate(data)]

  def _look_through(self) -> tuple[list[int], int, str]:
    """Places of every so many lines, how many lines there are, and the checksum."""
    places, digest, place, count = [], hashlib.sha256(), 0, 0
    try:
      with open(self.path, "rb") as f:
        for raw in f:
          if not count and raw.startswith(_GZIP):
            raise SpecdecError(f"{self.name} is compressed; unpack it first (gunzip), or pipe it "
                               "in from zcat: --input_file=-")
          if count % _STRIDE == 0:
            places.append(place)
          digest.update(raw)
          place += len(raw)
          # A byte order mark alone is no line.
          count += bool(raw.removeprefix(_BOM) if not count else raw)
    except (OSError, ValueError) as error:
      raise self._unreadable(error) from error
    return places, count, digest.hexdigest()

  def _raw(self, first: int, count: int) -> list[bytes]:
    try:
      with open(self.path, "rb") as f:
        f.seek(self._places[first // _STRIDE])
        for _ in range(first % _STRIDE):
          f.readline()
        lines = [f.readline() for _ in range(count)]
    except OSError as error:
      raise self._unreadable(error) from error
    if first == 0 and lines:
      lines[0] = lines[0].removeprefix(_BOM)
    return [line.removesuffix(b"\n").removesuffix(b"\r") for line in lines]

  def _unreadable(self, error: Exception) -> SpecdecError:
    reason = getattr(error, "strerror", None) or error
    return SpecdecError(f"cannot read {self.name}: {reason}")

  def _find_column(self, field: str | None) -> tuple[int, int]:
    """The column of TSV that a field is, and how many lines of names there are."""
    if field is None or field.isdecimal():
      column = int(field or "1")
      if column < 1:
        raise SpecdecError(f"the field is {field}; expected a column's number from 1, or its name")
      return column - 1, 0
    names = self._raw(0, 1)[0].decode("utf-8", "replace").split("\t") if self._places else []
    if field not in names:
      raise SpecdecError(f"{self.name} has no column {field!r}; its first line has: "
                         f"{', '.join(names)}; expected one of these or a column's number")
    return names.index(field), 1

  def _line(self, raw: bytes, number: int) -> Line:
    try:
      text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
      return Line(number, "", f"is not UTF-8 (byte {error.start + 1})")
    if self.kind == "text":
      return Line(number, text)
    if self.kind == "tsv":
      columns = text.split("\t")
      if len(columns) <= self._column:
        return Line(number, "", f"has {len(columns)} columns; expected {self._column + 1} or more")
      return Line(number, columns[self._column])
    return self._json_line(text, number)

  def _json_line(self, text: str, number: int) -> Line:
    try:
      record: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
      return Line(number, "", f"is not JSON ({getattr(error, 'msg', error)})")
    if not isinstance(record, dict):
      return Line(number, "", f"is {type(record).__name__}; expected a JSON object")
    if self.field not in record:
      return Line(number, "", f"has no field {self.field!r}; it has: {_listed(list(record))}")
    value = record[self.field]
    if not isinstance(value, str):
      return Line(number, "", f"has {type(value).__name__} in {self.field!r}; expected text")
    if any("\ud800" <= c <= "\udfff" for c in value):
      return Line(number, "", f"has half of a surrogate pair in {self.field!r}")
    return Line(number, value)


def _listed(names: Sequence[str]) -> str:
  """Some names, without what a terminal could choke on."""
  shown = ", ".join(repr(name) for name in names[:8])
  return shown + (", ..." if len(names) > 8 else "") if names else "none"
