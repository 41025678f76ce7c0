"""Results as text for a terminal: what became of each draft, readable without colour."""

from typing import Any

from rich.text import Text

from specdec.engine.result import Record
from specdec.engine.result import Result
from specdec.engine.traces import Iterations

LEGEND = "before| accepted [-rejected-] {+the target's own+}"
# Outputs of a result that are shown; a terminal's scroll is not endless.
MOST = 20


def lines(trace: Iterations) -> list[Text]:
  """A line per iteration: what stood before it, and what became of its draft.

  Accepted tokens are green, the rejected one red, the target's own blue; the marks
  around them say the same where there is no colour.
  """
  out = []
  for number, (before, iteration) in enumerate(zip(trace.befores(), trace), 1):
    line = Text(f"{number:>4}  ")
    line.append(trace.text(before).lstrip(), "dim")
    line.append("|")
    line.append(trace.text(iteration.accepted), "green")
    if iteration.rejected is not None:
      line.append(f"[-{trace.text([iteration.rejected])}-]", "red strike")
    if iteration.next_id is not None:
      line.append(f"{{+{trace.text([iteration.next_id])}+}}", "blue")
    out.append(line)
  return out


def show(shown: Any) -> Text:
  """A result, a record or a trace.

  Args:
    shown: a `Result`, of which the first few records are shown; a `Record`; or
      `Iterations`.
  """
  if isinstance(shown, Iterations):
    return Text("\n").join(lines(shown))
  if isinstance(shown, Record):
    head = shown.input if shown.trace is None else f"{shown.input}   {LEGEND}".lstrip()
    return Text("\n").join([Text(head), *lines(shown.trace or Iterations()),
                            Text(f"   => {shown.output}")])
  assert isinstance(shown, Result)
  parts = [show(record) for record in shown.records[:MOST]]
  if len(shown.records) > MOST:
    parts.append(Text(f"... and {len(shown.records) - MOST} more"))
  return Text("\n").join([*parts, Text(str(shown))])
