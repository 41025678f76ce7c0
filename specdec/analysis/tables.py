"""The paper's tables, regenerated: its numbers, those of the formulas, and measured ones.

Measurements of different targets or devices never share a column: each gets its own.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
from typing import Any

from specdec.analysis import paper
from specdec.analysis import theory
from specdec.analysis.records import Interval
from specdec.analysis.records import Record
from specdec.analysis.records import Row
from specdec.errors import SpecdecError

NAMES = ("walltime", "alpha", "expected", "lenience", "operations")

# What a measurement must hold to stand in a table, in words.
NEEDS = {
    "walltime": "gamma and speed_up, at lenience 1",
    "alpha": "alpha, at lenience 1",
    "expected": "gamma, alpha, cost_ratio and speed_up, at lenience 1",
    "lenience": "alpha",
    "operations": "gamma, alpha and tokens_per_call, at lenience 1",
}

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclasses.dataclass(frozen=True)
class Column:
  """A column.

  Attributes:
    key: of its values in rows.
    title: its heading.
    show: how a value becomes text; None is always "-".
  """

  key: str
  title: str
  show: Callable[[Any], str]


@dataclasses.dataclass(frozen=True)
class Table:
  """A table with raw values.

  Attributes:
    name: one of `NAMES`.
    title: heading.
    columns: in order.
    rows: values by column key; one that is missing is None.
    notes: lines below the table.
  """

  name: str
  title: str
  columns: tuple[Column, ...]
  rows: tuple[dict[str, Any], ...]
  notes: tuple[str, ...]

  def cells(self) -> list[list[str]]:
    """The rows as text."""
    return [["-" if row.get(c.key) is None else c.show(row[c.key]) for c in self.columns]
            for row in self.rows]

  def markdown(self) -> str:
    """Heading, table and notes."""
    line = lambda cells: f"| {' | '.join(_plain(c) for c in cells)} |"
    lines = [f"### {self.title}", "", line(c.title for c in self.columns),
             "|" + "---|" * len(self.columns), *map(line, self.cells())]
    if self.notes:
      lines += ["", *(f"* {_plain(note)}" for note in self.notes)]
    return "\n".join(lines)

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready; a measured value is an object with `value` and `interval`."""
    ready = lambda x: x.to_dict() if isinstance(x, Interval) else x
    return {"table": self.name, "title": self.title, "paper": paper.SOURCE,
            "columns": [{"key": c.key, "title": c.title} for c in self.columns],
            "rows": [{c.key: ready(row.get(c.key)) for c in self.columns} for row in self.rows],
            "notes": list(self.notes)}


def build(name: str, records: Sequence[Record] = ()) -> Table:
  """Makes a table.

  Args:
    name: one of `NAMES`.
    records: measurements; those that hold nothing for the table are left out.

  Raises:
    SpecdecError: there is no such table.
  """
  check(name)
  return _BUILDERS[name](records)


def check(name: str) -> None:
  """Refuses the name of no table."""
  if name not in NAMES:
    raise SpecdecError(f"there is no table {name!r}; expected one of {', '.join(NAMES)}")


def holds(name: str, record: Record) -> bool:
  """Whether a record has a measurement for a table."""
  return any(_TAKES[name](row) for row in record.rows)


def _plain(text: str) -> str:
  """As one cell of a Markdown table."""
  return " ".join(text.split()).replace("|", "\\|")


_word = paper.display
_number = lambda x: f"{x:g}"
_two = lambda x: f"{x:.2f}"
_times = lambda x: f"{x:.1f}x"
_times2 = lambda x: f"{x:.2f}x"


def _interval(show: Callable[[float], str]) -> Callable[[Interval], str]:
  return lambda x: show(x.value) if x.low is None else (
      f"{show(x.value)} ({show(x.low)} to {show(x.high)})")


_TASK = Column("task", "task", _word)
_DRAFTER = Column("drafter", "M_q", _word)
_TEMPERATURE = Column("temperature", "temp", _number)
_GAMMA = Column("gamma", "gamma", _number)
_ALPHA = Column("alpha", "alpha", _two)
_COST = Column("cost_ratio", "c", _number)

_TAKES: dict[str, Callable[[Row], bool]] = {
    "walltime": lambda r: r.lenience == 1 and r.speed_up is not None and r.gamma is not None,
    "alpha": lambda r: r.lenience == 1 and r.alpha is not None,
    "expected": lambda r: (r.lenience == 1 and None not in (
        r.speed_up, r.gamma, r.alpha, r.cost_ratio)),
    "lenience": lambda r: r.alpha is not None,
    "operations": lambda r: r.lenience == 1 and None not in (
        r.gamma, r.alpha, r.tokens_per_call),
}


@dataclasses.dataclass(frozen=True)
class _Group:
  """What shares columns: rows of records with one label."""

  prefix: str
  title: str
  label: str
  rows: tuple[Row, ...]

  def key(self, name: str) -> str:
    return f"{self.prefix}.{name}"

  def column(self, name: str, title: str, show: Callable[[Any], str]) -> Column:
    return Column(self.key(name), f"{title} {self.title}", show)


def _groups(table: str, records: Sequence[Record]) -> list[_Group]:
  labels: dict[str, list[Row]] = {}
  for record in records:
    rows = [row for row in record.rows if _TAKES[table](row)]
    if rows:
      labels.setdefault(record.label, []).extend(rows)
  return [
      _Group("here" if len(labels) == 1 else f"here_{_letter(i).lower()}",
             "here" if len(labels) == 1 else f"here, {_letter(i)}", label, tuple(rows))
      for i, (label, rows) in enumerate(labels.items())]


def _letter(i: int) -> str:
  return _LETTERS[i] if i < len(_LETTERS) else str(i + 1)


def _notes(groups: Sequence[_Group], *before: str) -> tuple[str, ...]:
  notes = list(before)
  for group in groups:
    notes.append(f"{group.title}: {group.label}")
    notes += dict.fromkeys(f"{group.title}, {row.task}, {row.drafter}: {row.note}"
                           for row in group.rows if row.note)
  return tuple(notes)


_NOTHING_HERE = (Column("here.measured", "measured here", _times),)


def _merge(rows: Iterable[dict[str, Any]], groups: Sequence[_Group], keys: Sequence[str],
           measured: Callable[[Row], dict[str, Any]]) -> tuple[dict[str, Any], ...]:
  """The paper's rows with measurements beside them, and below those that it has not.

  Args:
    rows: of the paper.
    groups: of measurements. Of several gammas the fastest is taken.
    keys: what a row and a measurement must have in common.
    measured: a measurement's values.
  """
  rows = [dict(row) for row in rows]
  places: dict[tuple, dict[str, Any]] = {}
  for row in rows:
    places.setdefault(tuple(row[k] for k in keys), row)
  for group in groups:
    best: dict[tuple, Row] = {}
    for row in group.rows:
      key = tuple(getattr(row, k) for k in keys)
      speed = lambda r: r.speed_up.value if r.speed_up else 0.0
      if key not in best or speed(row) > speed(best[key]):
        best[key] = row
    for key, row in best.items():
      if key not in places:
        places[key] = dict(zip(keys, key))
        rows.append(places[key])
      places[key].update({group.key(k): v for k, v in measured(row).items()})
  return tuple(rows)


def _here_speed(groups: Sequence[_Group]) -> tuple[Column, ...]:
  columns = []
  for g in groups:
    columns += [g.column("gamma", "gamma", _number), g.column("alpha", "alpha", _interval(_two)),
                g.column("predicted", "predicted", _times2),
                g.column("measured", "measured", _interval(_times2))]
  return tuple(columns) or _NOTHING_HERE


def _predicted(row: Row, verify_ratio: float | None) -> float | None:
  """The formula at what was measured; None where something it needs was not."""
  if row.alpha is None or row.gamma is None or row.cost_ratio is None:
    return None
  return theory.speed_up(row.alpha.value, row.gamma, row.cost_ratio, verify_ratio or 1.0)


_SETUP = ("paper: T5-XXL on one TPU-v4, batch 1, against T5X's plain decoding; * is the fastest "
          "drafter of its task and temperature")


def _walltime(records: Sequence[Record]) -> Table:
  costs = paper.cost_ratios()
  groups = _groups("walltime", records)
  rows = _merge(
      ({**row, "paper": row["speed_up"],
        "predicted": theory.speed_up(row["alpha"], row["gamma"], costs[row["drafter"]]),
        "drafter_shown": _word(row["drafter"]) + " *" * row["best"]}
       for row in paper.read("walltime")["rows"]),
      groups, ("task", "drafter", "temperature"),
      lambda r: {"gamma": r.gamma, "alpha": r.alpha, "measured": r.speed_up,
                 "predicted": _predicted(r, r.verify_ratio)})
  for row in rows:
    row.setdefault("drafter_shown", _word(row["drafter"]))
  return Table(
      "walltime", "Walltime improvement (the paper's table 2)",
      (_TASK, Column("drafter_shown", "M_q", str), _TEMPERATURE, _GAMMA, _ALPHA,
       Column("paper", "paper", _times), Column("predicted", "predicted", _times2),
       *_here_speed(groups)),
      rows, _notes(groups, _SETUP,
                   "predicted: theorem 3.8 at the paper's alpha and gamma, with c of its table 4; "
                   "predicted here: at what was measured, with v where it was"))


def _alpha(records: Sequence[Record]) -> Table:
  groups = _groups("alpha", records)
  rows = _merge(
      ({**row, "paper": row["alpha"],
        "predicted": theory.tokens_per_iteration(row["alpha"], float("inf"))}
       for row in paper.read("alpha")["rows"]),
      groups, ("task", "drafter", "temperature"), lambda r: {"measured": r.alpha})
  columns = [g.column("measured", "measured", _interval(lambda x: f"{x:.3f}")) for g in groups]
  return Table(
      "alpha", "Empirical alpha (the paper's table 3)",
      (Column("target", "M_p", _word), _TASK, _DRAFTER, _TEMPERATURE,
       Column("paper", "paper", _two), Column("predicted", "predicted speed-up, at most", _times2),
       *(columns or _NOTHING_HERE)),
      rows, _notes(groups, "paper: E[min(p, q)] over 10,000 tokens that the target generated",
                   "predicted: 1 / (1 - alpha), which the speed-up tends to at c = 0; alpha itself "
                   "follows from no formula"))


def _expected(records: Sequence[Record]) -> Table:
  groups = _groups("expected", records)
  rows = _merge(
      ({**row, "paper_expected": row["expected"], "paper": row["measured"],
        "predicted": theory.speed_up(row["alpha"], row["gamma"], row["cost_ratio"])}
       for row in paper.read("expected")["rows"]),
      groups, ("task", "drafter", "temperature"),
      lambda r: {"gamma": r.gamma, "alpha": r.alpha, "cost_ratio": r.cost_ratio,
                 "verify_ratio": r.verify_ratio, "predicted": _predicted(r, 1.0),
                 "with_v": r.verify_ratio and _predicted(r, r.verify_ratio),
                 "measured": r.speed_up})
  columns: list[Column] = []
  for g in groups:
    columns += [g.column("gamma", "gamma", _number), g.column("alpha", "alpha", _interval(_two)),
                g.column("cost_ratio", "c", lambda x: f"{x:.3g}"),
                g.column("verify_ratio", "v", _two),
                g.column("predicted", "predicted, v = 1,", _times2),
                g.column("with_v", "predicted with v", _times2),
                g.column("measured", "measured", _interval(_times2))]
  return Table(
      "expected", "Theory against measurement (the paper's table 4)",
      (_TASK, _DRAFTER, _TEMPERATURE, _GAMMA, _ALPHA, _COST,
       Column("paper_expected", "paper, expected", _times),
       Column("predicted", "predicted", _times2),
       Column("paper", "paper, measured", _times), *(columns or _NOTHING_HERE)),
      rows, _notes(groups, "predicted: theorem 3.8; the paper's alpha and c are rounded to two "
                   "places, which moves its last digit in three rows"))


def _lenience(records: Sequence[Record]) -> Table:
  groups = _groups("lenience", records)

  def predicted(row: dict[str, Any]) -> float | None:
    if row["cost_ratio"] is None:
      return None
    gamma = row["gamma"] or theory.best_gamma(row["alpha"], row["cost_ratio"])
    return theory.speed_up(row["alpha"], gamma, row["cost_ratio"])

  rows = _merge(
      ({**row, "paper": row["speed_up"], "predicted": predicted(row),
        "paper_alpha": row["alpha"]} for row in paper.read("lenience")["rows"]),
      groups, ("task", "drafter", "temperature", "lenience"),
      lambda r: {"alpha": r.alpha, "measured": r.speed_up})
  columns: list[Column] = []
  for g in groups:
    columns += [g.column("alpha", "alpha", _interval(lambda x: f"{x:.3f}")),
                g.column("measured", "measured", _interval(_times2))]
  return Table(
      "lenience", "Lenience (the paper's table 5 and section A.5)",
      (_TASK, _DRAFTER, _TEMPERATURE, Column("lenience", "l", _number), _ALPHA, _GAMMA, _COST,
       Column("paper", "paper", _times), Column("predicted", "predicted", _times2),
       *(columns or _NOTHING_HERE)),
      rows, _notes(groups, "predicted: theorem 3.8, at the best gamma where the paper names none; "
                   "its 2.5x, 3.1x and 3.6x at temperature 1 are more than that gives for any "
                   "gamma at its alpha and c, and its 5x is a whole number",
                   "a run with l below 1 is not lossless: a token can be 1 / l times as likely"))


def _operations(records: Sequence[Record]) -> Table:
  groups = _groups("operations", records)
  rows: list[dict[str, Any]] = [
      {**row, "paper": row["operations"], "paper_speed": row["speed_up"],
       "predicted": theory.operations(row["alpha"], row["gamma"]),
       "predicted_speed": theory.speed_up(row["alpha"], row["gamma"], 0.0)}
      for row in paper.read("operations")["rows"]]
  for group in groups:
    # Alphas are measured, not chosen, so these rows are their own.
    rows += [{
        "alpha": row.alpha.value, "gamma": row.gamma,
        "predicted": theory.operations(row.alpha.value, row.gamma),
        "predicted_speed": theory.speed_up(row.alpha.value, row.gamma, 0.0),
        group.key("operations"): (row.gamma + 1) / row.tokens_per_call,
        group.key("speed_up"): row.tokens_per_call} for row in group.rows]
  columns: list[Column] = []
  for g in groups:
    columns += [g.column("operations", "operations", _times2),
                g.column("speed_up", "tokens per call", _times2)]
  return Table(
      "operations", "Operations and speed at c = c_hat = 0 (the paper's table 1)",
      (_ALPHA, _GAMMA, Column("paper", "operations, paper", _times2),
       Column("predicted", "operations, predicted", _times2),
       Column("paper_speed", "speed, paper", _times2),
       Column("predicted_speed", "speed, predicted", _times2), *(columns or _NOTHING_HERE)),
      tuple(rows), _notes(groups, *(["here: positions that the target scored per token, and "
                                     "tokens per target call, counted; drafts cut short by the "
                                     "end of an output are among them"] if groups else [])))


_BUILDERS = {"walltime": _walltime, "alpha": _alpha, "expected": _expected,
             "lenience": _lenience, "operations": _operations}
