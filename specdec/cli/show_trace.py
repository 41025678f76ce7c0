"""`specdec generate --trace`: the paper's Figure 1 in a terminal."""

import sys
from typing import TYPE_CHECKING

from specdec.cli.outputs import print_text

if TYPE_CHECKING:
  from rich.text import Text

  from specdec.data.base import BaseVocabulary
  from specdec.engine.result import Record

LEGEND = "before| accepted [-rejected-] {+the target's own+}"


def show(record: "Record", vocabulary: "BaseVocabulary") -> None:
  """Prints a line per iteration: what stood before it, and what became of its draft.

  Accepted tokens are green, the rejected one red, the target's own blue; the marks
  around them say the same where there is no colour.
  """
  from rich.console import Console
  from rich.text import Text

  console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
  print_text(f"{record.input}   {LEGEND}")
  before = record.output_ids[:record.prompt_tokens]
  lines = []
  for number, iteration in enumerate(record.trace or (), 1):
    line = Text(f"{number:>4}  ")
    line.append(_text(before, vocabulary).lstrip(), "dim")
    line.append("|")
    line.append(_text(iteration.accepted, vocabulary), "green")
    if iteration.rejected is not None:
      line.append(f"[-{_text((iteration.rejected,), vocabulary)}-]", "red strike")
    if iteration.next_id is not None:
      line.append(f"{{+{_text((iteration.next_id,), vocabulary)}+}}", "blue")
    lines.append(line)
    before = [*before, *iteration.committed]
  for line in lines:
    print_text(_rendered(console, line))
  print_text(f"   => {record.output}")


def _text(ids, vocabulary: "BaseVocabulary") -> str:
  """Pieces as they are, with the space that T5's underscore stands for."""
  return "".join(vocabulary.pieces(ids)).replace("\u2581", " ")


def _rendered(console, line: "Text") -> str:
  with console.capture() as captured:
    console.print(line, end="")
  return " ".join(captured.get().splitlines())
