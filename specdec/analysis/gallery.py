"""The five figures from records and traces, each with a caption that says where all is from."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specdec.analysis import curves
from specdec.analysis import figures
from specdec.analysis import traces as traces_lib
from specdec.analysis.records import Record
from specdec.analysis.traces import Trace
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from matplotlib.figure import Figure

# Of T5-small on EnDe at temperature 0, where nothing was measured.
PAPER_ALPHA = 0.75


def find(name: str) -> str:
  """A figure by number or name.

  >>> find("4"), find("timeline")
  ('speed', 'timeline')

  Raises:
    SpecdecError: there is no such figure.
  """
  if name not in figures.NAMES and name not in figures.NAMES.values():
    known = ", ".join(f"{number} ({word})" for number, word in figures.NAMES.items())
    raise SpecdecError(f"there is no figure {name!r}; expected one of {known}")
  return figures.NAMES.get(name, name)


def number(name: str) -> str:
  """The paper's number of a figure."""
  return next(n for n, word in figures.NAMES.items() if word == name)


def draw(name: str, records: Sequence[Record], traces: Sequence[Trace], example: Trace,
         pieces: Callable[[Sequence[int]], Sequence[str]]) -> tuple["Figure", str]:
  """Draws a figure.

  Args:
    name: from `find`.
    records: measurements.
    traces: real runs, for the timeline; may be empty.
    example: the run of figure 1.
    pieces: its vocabulary, ids -> pieces.

  Returns:
    The drawing and its caption.
  """
  caption = _CAPTIONS[name]
  if name == "example":
    return figures.example(traces_lib.lines(example, pieces)), (
        f"{caption} Input: {example.input} ({example.where})")
  if name == "timeline":
    found = timelines(records, traces, example.input)
    return figures.timeline(found), (
        f"{caption} Durations: {found.durations}. Accepted tokens: {found.acceptance}.")
  points = {"tokens": curves.tokens_points, "gamma": curves.gamma_points,
            "speed": curves.speed_points}[name](records)
  if points:
    labels = dict.fromkeys(record.label for record in records if record.rows)
    caption += f" Filled marks were measured ({'; '.join(labels)}); hollow ones are predicted."
  drawing = {"tokens": figures.tokens, "gamma": figures.gamma, "speed": figures.speed}[name]
  return drawing(points), caption


def timelines(records: Sequence[Record], traces: Sequence[Trace],
              text: str | None = None) -> curves.Timelines:
  """Data of figure 5: the first record that has timings, and a trace of each gamma.

  Args:
    records: measurements.
    traces: the first of each gamma is taken, or that of `text` if there is one.
    text: an input.
  """
  timed = next((record for record in records if record.timings is not None), None)
  accepted = {}
  for trace in sorted(traces, key=lambda t: t.input != text):
    accepted.setdefault(trace.gamma, (
        [max(len(i.committed) - 1, 0) for i in trace.iterations], trace.where))
  alpha = PAPER_ALPHA
  if timed:
    alpha = next((row.alpha.value for row in timed.rows if row.alpha is not None), alpha)
  return curves.timelines(timed and timed.timings, timed.label if timed else "", accepted, alpha)


_CAPTIONS = {
    "example": "What became of each draft, a line per call of the target.",
    "tokens": "Expected tokens per call of the target against alpha, for several gammas "
              "(equation 1).",
    "gamma": "The gamma of the largest expected improvement against alpha, for several c "
             "(theorem 3.8 at v = 1).",
    "speed": "Expected improvement in walltime (solid) and increase of operations (dashed) "
             "against alpha at c = c_hat = 0 (theorems 3.8 and 3.11).",
    "timeline": "Calls of both models on a time axis, for the same number of tokens.",
}
