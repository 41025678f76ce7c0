"""`specdec generate --trace`: the paper's Figure 1 in a terminal."""

import sys
from typing import TYPE_CHECKING

from specdec.cli.outputs import print_text

if TYPE_CHECKING:
  from rich.text import Text

  from specdec.engine.result import Record


def show(record: "Record") -> None:
  """Prints a traced record, a line per iteration; see `engine.trace_text`."""
  from rich.console import Console

  from specdec.engine import trace_text

  console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
  print_text(f"{record.input}   {trace_text.LEGEND}")
  for line in trace_text.lines(record.trace):
    print_text(_rendered(console, line))
  print_text(f"   => {record.output}")


def _rendered(console, line: "Text") -> str:
  with console.capture() as captured:
    console.print(line, end="")
  return " ".join(captured.get().splitlines())
