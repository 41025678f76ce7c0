"""Measurements that stand beside the paper's numbers: what a record holds, and its reader.

A record is a JSON object of one target on one device:

  {"kind": "measurements", "version": 1, "target": "t5_1_1_large", "weights": "widened",
   "dtype": "float32", "device": "cpu", "batch_size": 1, "rows": [...], "timings": {...}}

`weights` is "trained", "widened" (a small trained model at a large one's cost) or "random".
Other fields at the top, such as commit, date and versions, are welcome and kept. A row is

  {"task": "ende", "drafter": "t5_1_1_small", "temperature": 0, "gamma": 7, "alpha": 0.75,
   "alpha_interval": [0.74, 0.76], "cost_ratio": 0.095, "verify_ratio": 1.4,
   "speed_up": 1.6, "speed_up_interval": [1.5, 1.7], "tokens_per_call": 3.5,
   "lenience": 1, "note": "...", "details": {...}}

of which the first three must be there, and each table and figure takes the rows that hold
what it shows. All are ratios without a unit; `alpha` is accepted over tested drafts, or
E[min(p, q)]; intervals are what the record says they are, usually quartiles. Names of the
paper (`configs/paper`) put a row beside the paper's. `timings` are seconds of single calls:

  {"drafter": "t5_1_1_small", "target_call_s": [of 1 token, of 2, ...], "drafter_call_s": 0.01,
   "target_encoder_s": 0.1, "drafter_encoder_s": 0.02}

with the encoders left out where there are none. A record of `specdec bench --json` does as
well: it gives one row when its weights are trained, and timings in any case.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import difflib
import json
import math
import pathlib
from typing import Any

from specdec.errors import SpecdecError

WEIGHTS = ("trained", "widened", "random")
_HOW = "expected a record of specdec bench --json, or one of kind measurements"


@dataclasses.dataclass(frozen=True)
class Interval:
  """A measured value, with the interval that the record gives for it, or None."""

  value: float
  low: float | None = None
  high: float | None = None

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready."""
    return {"value": self.value,
            "interval": None if self.low is None else [self.low, self.high]}


@dataclasses.dataclass(frozen=True)
class Row:
  """One measurement; see the module for the fields. None is what was not measured."""

  task: str
  drafter: str
  temperature: float
  lenience: float = 1.0
  gamma: int | None = None
  alpha: Interval | None = None
  cost_ratio: float | None = None
  verify_ratio: float | None = None
  speed_up: Interval | None = None
  tokens_per_call: float | None = None
  note: str = ""

  @property
  def key(self) -> tuple[str, str, float, float]:
    """What it is a measurement of."""
    return self.task, self.drafter, self.temperature, self.lenience


@dataclasses.dataclass(frozen=True)
class Timings:
  """Seconds of single calls.

  Attributes:
    drafter: its name.
    target_call_s: of a target call of 1 token, of 2, ...
    drafter_call_s: of one token.
    target_encoder_s: of a whole source; None where there is none.
    drafter_encoder_s: likewise.
  """

  drafter: str
  target_call_s: tuple[float, ...]
  drafter_call_s: float
  target_encoder_s: float | None = None
  drafter_encoder_s: float | None = None


@dataclasses.dataclass(frozen=True)
class Record:
  """Measurements of one target on one device.

  Attributes:
    path: the file.
    target: name of the target.
    weights: one of `WEIGHTS`.
    dtype: of the weights.
    device: in words.
    batch_size: rows decoded together.
    rows: measurements.
    timings: of single calls, or None.
    fields: the file's contents.
  """

  path: str
  target: str
  weights: str
  dtype: str
  device: str
  batch_size: int
  rows: tuple[Row, ...]
  timings: Timings | None
  fields: dict[str, Any]

  @property
  def label(self) -> str:
    """What may stand in one column of a table: the same target, weights and device."""
    return (f"{self.target}, {self.weights} weights, {self.dtype}, batch {self.batch_size}, "
            f"{self.device}")


def read(path: str) -> Record:
  """Reads and checks a record.

  Raises:
    SpecdecError: the file cannot be read, or is no record.
  """
  try:
    fields = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
  except OSError as error:
    raise SpecdecError(f"cannot read --record {path}: {error.strerror or error}") from error
  except (ValueError, RecursionError):
    raise SpecdecError(f"--record {path} is not JSON; {_HOW}") from None
  if not isinstance(fields, dict):
    raise SpecdecError(f"--record {path} holds no JSON object; {_HOW}")
  kind = fields.get("kind")
  if kind == "calls":
    return _from_bench(_Reader(path, fields))
  if kind != "measurements":
    raise SpecdecError(f"--record {path} is of kind {kind!r}; {_HOW}")
  return _from_measurements(_Reader(path, fields))


def read_all(paths: Sequence[str]) -> list[Record]:
  """Reads several records, each once.

  Raises:
    SpecdecError: one is no record, or two measured the same.
  """
  records = [read(path) for path in dict.fromkeys(paths)]
  seen: dict[tuple, str] = {}
  for record in records:
    for row in record.rows:
      where = (record.label, row.key, row.gamma)
      if where in seen and seen[where] != record.path:
        raise SpecdecError(f"--record {record.path} and {seen[where]} both measured {row.task} "
                           f"with {row.drafter} at temperature {row.temperature:g} on the same "
                           "device; give one of the two")
      seen[where] = record.path
  return records


class _Reader:
  """Takes fields out of an object and complains of it by name.

  Args:
    path: of the file.
    fields: the object.
    where: its place in the file, for messages.
  """

  def __init__(self, path: str, fields: dict[str, Any], where: str = ""):
    self.path, self.fields, self._where = path, fields, where

  def fail(self, name: str, expected: str) -> SpecdecError:
    value = json.dumps(self.fields[name])[:60] if name in self.fields else "missing"
    return SpecdecError(f"--record {self.path}: {self._where}{name} is {value}; expected "
                        f"{expected}")

  def text(self, name: str) -> str:
    value = self.fields.get(name)
    if not isinstance(value, str) or not value:
      raise self.fail(name, "a text")
    return value

  def number(self, name: str, allowed: Callable[[float], bool], expected: str,
             kind: type = float, default: Any = None) -> Any:
    """A finite number; without a default it must be there, `...` makes None the default."""
    value = self.fields.get(name)
    if value is None and default is not None:
      return None if default is ... else default
    if not _is_number(value) or not allowed(value) or kind(value) != value:
      raise self.fail(name, expected)
    return kind(value)

  def interval(self, name: str, allowed: Callable[[float], bool],
               expected: str) -> Interval | None:
    """A number and, as `name_interval`, two that enclose it."""
    value = self.number(name, allowed, expected, default=...)
    ends = self.fields.get(f"{name}_interval")
    if ends is None:
      return None if value is None else Interval(value)
    if value is None:
      raise self.fail(name, f"{expected}: there is a {name}_interval")
    if (not isinstance(ends, list) or len(ends) != 2 or not all(map(_is_number, ends))
        or not ends[0] <= ends[1]):
      raise self.fail(f"{name}_interval", "two numbers, the lower first")
    return Interval(value, *map(float, ends))

  def inside(self, name: str, where: str, known: Sequence[str] | None = None) -> "_Reader":
    """An object in the object."""
    value = self.fields.get(name)
    if not isinstance(value, dict):
      raise self.fail(name, "an object")
    return _Reader(self.path, value, where).only(known)

  def only(self, known: Sequence[str] | None) -> "_Reader":
    """Refuses fields that are not known, with the nearest that is."""
    for name in self.fields if known is not None else ():
      if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"expected some of {', '.join(known)}"
        raise SpecdecError(f"--record {self.path}: {self._where}{name} is no field; {hint}")
    return self


def _is_number(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_share = lambda x: 0 <= x <= 1
_from_zero = lambda x: x >= 0
_positive = lambda x: x > 0
_from_one = lambda x: x >= 1

_ROW_FIELDS = ("task", "drafter", "temperature", "lenience", "gamma", "alpha", "alpha_interval",
               "cost_ratio", "verify_ratio", "speed_up", "speed_up_interval", "tokens_per_call",
               "note", "details")
_TIMING_FIELDS = ("drafter", "target_call_s", "drafter_call_s", "target_encoder_s",
                  "drafter_encoder_s")


def _from_measurements(r: _Reader) -> Record:
  if r.fields.get("version") != 1:
    raise r.fail("version", "1")
  if r.fields.get("weights") not in WEIGHTS:
    raise r.fail("weights", f"one of {', '.join(WEIGHTS)}")
  listed = r.fields.get("rows")
  if not isinstance(listed, list) or not all(isinstance(x, dict) for x in listed):
    raise r.fail("rows", "a list of objects")
  rows = tuple(_row(_Reader(r.path, x, f"row {i}, ").only(_ROW_FIELDS))
               for i, x in enumerate(listed, 1))
  if rows and r.fields["weights"] == "random":
    raise r.fail("weights", "trained or widened for a record with rows: no acceptance of random "
                 "weights means anything")
  timings = None
  if r.fields.get("timings") is not None:
    timings = _timings(r.inside("timings", "timings, ", _TIMING_FIELDS))
  return _record(r, r.fields["weights"], r.text("device"), rows, timings)


def _record(r: _Reader, weights: str, device: str, rows: tuple[Row, ...],
            timings: Timings | None) -> Record:
  return Record(r.path, r.text("target"), weights, r.text("dtype"), device,
                r.number("batch_size", _from_one, "an integer from 1", int), rows, timings,
                r.fields)


def _row(r: _Reader) -> Row:
  return Row(
      task=r.text("task"), drafter=r.text("drafter"),
      temperature=r.number("temperature", _from_zero, "a number from 0"),
      lenience=r.number("lenience", lambda x: 0 < x <= 1, "a number above 0, up to 1",
                        default=1.0),
      gamma=r.number("gamma", _from_one, "an integer from 1", int, default=...),
      alpha=r.interval("alpha", _share, "a number from 0 to 1"),
      cost_ratio=r.number("cost_ratio", _from_zero, "a number from 0", default=...),
      verify_ratio=r.number("verify_ratio", _positive, "a number above 0", default=...),
      speed_up=r.interval("speed_up", _positive, "a number above 0"),
      tokens_per_call=r.number("tokens_per_call", _positive, "a number above 0", default=...),
      note=r.text("note") if "note" in r.fields else "")


def _timings(r: _Reader) -> Timings:
  calls = r.fields.get("target_call_s")
  if not isinstance(calls, list) or not calls or not all(
      _is_number(x) and x > 0 for x in calls):
    raise r.fail("target_call_s", "a list of seconds: of a call of 1 token, of 2, ...")
  seconds = lambda name, default=None: r.number(name, _positive, "seconds above 0",
                                                default=default)
  return Timings(r.text("drafter"), tuple(map(float, calls)), seconds("drafter_call_s"),
                 seconds("target_encoder_s", ...), seconds("drafter_encoder_s", ...))


def _from_bench(r: _Reader) -> Record:
  """A record of `specdec bench`, whose spreads have a median and quartiles."""
  median = lambda x: x.number("median", _positive, "a number above 0")
  seconds = r.inside("seconds", "seconds, ")
  spread = lambda name: median(seconds.inside(name, f"seconds, {name}, "))
  ratio = lambda name: median(r.inside(name, f"{name}, "))
  gamma = r.number("gamma", _from_one, "an integer from 1", int)
  calls = [spread(f"target call, {n} token{'s' * (n > 1)}") for n in range(1, gamma + 2)]
  drafter, weights = r.text("drafter"), r.text("weights")
  own = "drafter call, 1 token"
  # What is no model has no calls: a token of its proposal, as in its c.
  timings = Timings(drafter, tuple(calls), spread(own) if own in seconds.fields else
                    spread("drafter proposal") / gamma)
  rows: tuple[Row, ...] = ()
  if weights != "random":
    measured = r.inside("speed_up", "speed_up, ")
    low, high = measured.fields.get("quartiles") or (None, None)
    rows = (Row(
        task=r.fields.get("task") or "bench", drafter=drafter, gamma=gamma,
        temperature=r.number("temperature", _from_zero, "a number from 0", default=0.0),
        alpha=r.interval("alpha", _share, "a number from 0 to 1"),
        cost_ratio=ratio("cost_ratio"), verify_ratio=ratio("verify_ratio"),
        speed_up=Interval(median(measured), low, high),
        tokens_per_call=r.number("tokens_per_call", _positive, "a number above 0"),
        note=r.text("note") if "note" in r.fields else ""),)
  device = r.fields.get("cpu") if r.fields.get("backend") == "cpu" else None
  return _record(r, weights, device or r.text("device"), rows, timings)
