"""Tasks over local files: pairs of texts out of TSV, JSON lines, or two files of lines.

Nothing here needs seqio, so that what is wrong with a file is said at once.
"""

from collections.abc import Iterator
import dataclasses
import glob
import gzip
import json
import pathlib
import re
from typing import Any
import zlib

from specdec.errors import SpecdecError

FORMATS = ("tsv", "jsonl")
SPLIT = "{split}"
# What the data is called when the file names have no place for a split.
ONLY = "test"

_BOM = b"\xef\xbb\xbf"
_FIELDS = {"tsv": ("1", "2"), "jsonl": ("inputs", "targets")}
_NAME = re.compile(r"[^\w.:#]+")


@dataclasses.dataclass(frozen=True)
class LocalTask:
  """Where the texts of a task lie, and what is measured on them.

  `{split}` in a file's name stands for the split: `data/{split}.tsv` has the splits train and
  test when there are data/train.tsv and data/test.tsv. Without it there is one split,
  "test". Names that end in .gz are unpacked.

  Attributes:
    data_file: TSV or JSON lines; None with two files of lines.
    inputs_file: a text per line.
    targets_file: their references, line by line.
    data_format: of `data_file`: "tsv" or "jsonl"; None goes by its name.
    inputs_field: which part of a line is the input: a column of a TSV, counted from 1, or
      a name, which makes its first line a header; a name in JSON, or a path such as
      `targets.0`. None for the first column, and for "inputs".
    targets_field: likewise; None for the second, and for "targets".
    prefix: what is put before every input.
    metrics: names out of `metrics.METRICS`.
    name: of the task; None takes the file's.
    inputs_length: most tokens of an input, EOS included; None for the pair's limit.
    targets_length: most tokens of an output; likewise.

  Raises:
    SpecdecError: the files do not go together.
  """

  data_file: str | None = None
  inputs_file: str | None = None
  targets_file: str | None = None
  data_format: str | None = None
  inputs_field: str | None = None
  targets_field: str | None = None
  prefix: str = ""
  metrics: tuple[str, ...] = ("bleu",)
  name: str | None = None
  inputs_length: int | None = None
  targets_length: int | None = None

  def __post_init__(self):
    if (self.data_file is None) == (self.inputs_file is None and self.targets_file is None):
      raise SpecdecError("a local task has one file or two; expected a data_file (TSV or JSON "
                         "lines), or an inputs_file and a targets_file")
    if self.data_file is None:
      for this, other in (("inputs_file", "targets_file"), ("targets_file", "inputs_file")):
        if getattr(self, this) is None:
          raise SpecdecError(f"there is a {other} and no {this}; expected both, with a line "
                             "for a line")
      for name in ("data_format", "inputs_field", "targets_field"):
        if getattr(self, name) is not None:
          raise SpecdecError(f"{name} belongs to a data_file; files of lines have no fields")
      if (SPLIT in self.inputs_file) != (SPLIT in self.targets_file):
        raise SpecdecError(f"{SPLIT} stands in one of inputs_file and targets_file; expected it "
                           "in both or in none")
    elif self.format is None:
      raise SpecdecError(f"{self.data_file} could be of any format; name it as data_format: "
                         f"{' or '.join(FORMATS)}")
    elif self.format not in FORMATS:
      raise SpecdecError(f"data_format is {self.data_format!r}; expected {' or '.join(FORMATS)}")

  @property
  def format(self) -> str | None:
    """Format of the data file; None where its name does not tell."""
    if self.data_format is not None:
      return self.data_format
    suffix = pathlib.Path(self.data_file.removesuffix(".gz")).suffix
    return {".tsv": "tsv", ".jsonl": "jsonl", ".json": "jsonl", ".ndjson": "jsonl"}.get(suffix)

  @property
  def label(self) -> str:
    """Name of the task in letters that seqio takes."""
    file = pathlib.Path(self.data_file or self.inputs_file).name
    stem = file.replace(SPLIT, "").lstrip("._-").split(".")[0]
    return _NAME.sub("_", self.name or stem or "local")

  @property
  def files(self) -> tuple[str, ...]:
    """The paths, as given."""
    if self.data_file is not None:
      return (self.data_file,)
    return (self.inputs_file, self.targets_file)

  def splits(self) -> tuple[str, ...]:
    """Splits that there are files of, sorted."""
    found = [_splits(path) for path in self.files]
    return tuple(sorted(set.intersection(*found)))

  def check_split(self, split: str) -> None:
    """Refuses a split that there is not.

    Raises:
      SpecdecError: names those that there are.
    """
    if SPLIT not in self.files[0]:
      if split != ONLY:
        raise SpecdecError(f"{self.files[0]} is one file and so has one split, {ONLY}; drop "
                           f"--split, or put {SPLIT} in the file's name")
    elif split not in self.splits():
      listed = ", ".join(self.splits()) or f"none: no file is called {self.files[0]}"
      raise SpecdecError(f"the task {self.label} has no split {split!r}; it has: {listed}")

  def read(self, split: str = ONLY) -> list[tuple[str, str]]:
    """Inputs with the prefix, and targets.

    Raises:
      SpecdecError: there is no such split, or a file cannot be read; a line that is broken
        is named by file and number.
    """
    self.check_split(split)
    paths = [path.replace(SPLIT, split) for path in self.files]
    if len(paths) == 2:
      inputs, targets = map(_lines, paths)
      if len(inputs) != len(targets):
        raise SpecdecError(f"{paths[0]} has {len(inputs)} lines and {paths[1]} has "
                           f"{len(targets)}; expected a line for a line")
      pairs = list(zip(inputs, targets))
    else:
      read = _tsv if self.format == "tsv" else _jsonl
      default = _FIELDS[self.format]
      pairs = list(read(paths[0], (self.inputs_field or default[0],
                                   self.targets_field or default[1])))
    return [(self.prefix + source, target) for source, target in pairs]


def _splits(path: str) -> set[str]:
  if SPLIT not in path:
    return {ONLY}
  before, _, after = path.partition(SPLIT)
  # A name may hold the split again, as in {split}/{split}.tsv.
  after_any = after.replace(SPLIT, "\0")
  pattern = glob.escape(before) + "*" + glob.escape(after_any).replace("\0", "*")
  shape = re.compile(re.escape(before) + r"(?P<split>[^/]+?)"
                     + re.escape(after_any).replace(re.escape("\0"), r"(?P=split)"))
  found = (shape.fullmatch(name) for name in glob.glob(pattern))
  return {match["split"] for match in found if match}


def _lines(path: str) -> list[str]:
  """Lines of a file, unpacked where its name ends in .gz."""
  try:
    data = pathlib.Path(path).read_bytes()
    if path.endswith(".gz"):
      data = gzip.decompress(data)
  except (OSError, EOFError, ValueError, zlib.error) as error:
    reason = getattr(error, "strerror", None) or error
    raise SpecdecError(f"cannot read {path}: {reason}") from error
  # Split at newlines alone, so that line numbers are those of every editor.
  lines = data.removeprefix(_BOM).split(b"\n")
  if not lines[-1]:
    lines.pop()
  if not lines:
    raise SpecdecError(f"{path} is empty; expected a line per example")
  texts = []
  for i, line in enumerate(lines):
    try:
      texts.append(line.removesuffix(b"\r").decode("utf-8"))
    except UnicodeDecodeError:
      raise SpecdecError(f"line {i + 1} of {path} is not UTF-8; convert the file, with iconv "
                         "for example") from None
  return texts


def _tsv(path: str, fields: tuple[str, str]) -> Iterator[tuple[str, str]]:
  lines = _lines(path)
  rows = [line.split("\t") for line in lines]
  first = 0
  if all(field.isdecimal() for field in fields):
    columns = [int(field) - 1 for field in fields]
    if min(columns) < 0:
      raise SpecdecError("columns of a TSV are counted from 1, and 0 was asked for")
  else:
    first = 1
    for field in fields:
      if field not in rows[0]:
        raise SpecdecError(f"{path} has no column {field!r} in its first line; it has: "
                           f"{', '.join(rows[0])}")
    columns = [rows[0].index(field) for field in fields]
    if len(rows) == 1:
      raise SpecdecError(f"{path} has a header and nothing else; expected a line per example")
  for i, row in enumerate(rows[first:], first + 1):
    # A header tells how many columns every line has.
    if len(row) <= max(columns) or (first and len(row) != len(rows[0])):
      wanted = f"{len(rows[0])}" if first else f"at least {max(columns) + 1}"
      raise SpecdecError(f"line {i} of {path} has {len(row)} column{'s' * (len(row) != 1)}; "
                         f"expected {wanted}, with tabs between them")
    yield row[columns[0]], row[columns[1]]


def _jsonl(path: str, fields: tuple[str, str]) -> Iterator[tuple[str, str]]:
  for i, line in enumerate(_lines(path), 1):
    where = f"line {i} of {path}"
    try:
      content = json.loads(line)
    except (ValueError, RecursionError) as error:
      reason = getattr(error, "msg", error)
      raise SpecdecError(f"{where} is not JSON: {reason}; expected an object per line") from None
    if not isinstance(content, dict):
      raise SpecdecError(f"{where} is no JSON object; expected one with the fields "
                         f"{' and '.join(fields)}")
    source, target = (_field(content, field, where) for field in fields)
    yield source, target


def _field(content: dict[str, Any], path: str, where: str) -> str:
  """A text in a JSON object: a field by its name, or by a path with dots and places."""
  if path in content:
    value: Any = content[path]
  else:
    value = content
    for part in path.split("."):
      if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
        value = value[int(part)]
      elif isinstance(value, dict) and part in value:
        value = value[part]
      else:
        raise SpecdecError(f"{where} has no field {path!r}; it has: {', '.join(_paths(content))}")
  if not isinstance(value, str):
    listed = isinstance(value, list) and bool(value) and isinstance(value[0], str)
    hint = f" (its first is {path}.0)" if listed else ""
    raise SpecdecError(f"{where}: the field {path!r} is no text but {type(value).__name__}; "
                       f"expected a text{hint}")
  if any("\ud800" <= c <= "\udfff" for c in value):
    raise SpecdecError(f"{where}: the field {path!r} has half of a surrogate pair; expected a text "
                       "that UTF-8 can hold")
  return value


def _paths(content: dict[str, Any]) -> list[str]:
  return list(content) or ["no fields"]


