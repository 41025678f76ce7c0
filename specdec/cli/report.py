"""`specdec report`: everything on one page."""

from collections.abc import Sequence

import specdec
from specdec.analysis import figures
from specdec.analysis import report
from specdec.analysis import tables
from specdec.cli import drawing
from specdec.cli import outputs
from specdec.cli.flags import Flags
from specdec.errors import SpecdecError

INTRO = """\
specdec report: all tables and figures of the paper as one HTML page.

Usage
  specdec report --output=FILE [FLAGS]

The page needs no network and no other file, and follows the reader's choice of light or
dark. Each record's measurements stand where they belong."""

OUTRO = """\
Examples
  specdec report --output=report.html
  specdec report --record=record.json --trace_file=out.jsonl --output=report.html"""


def make_flags() -> Flags:
  """The command's flags."""
  flags = Flags("report", INTRO, OUTRO)
  flags.group("Output")
  flags.text("output", None, "FILE", "the page")
  flags.switch("overwrite", "replace a file that exists")
  drawing.add_flags(flags)
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command."""
  if args:
    raise SpecdecError(f"{args[0]!r} is no flag of specdec report; type --output=report.html, say")
  if flags.output is None:
    raise SpecdecError("--output is missing; name the page: --output=report.html")
  sources = drawing.read(flags)
  for record in sources.records:
    if record.timings is None and not any(tables.holds(name, record) for name in tables.NAMES):
      raise SpecdecError(f"--record {record.path} holds nothing that a table or figure shows; "
                         "expected rows or timings")
  with outputs.OutputFile("--output", flags.output, flags.overwrite) as file:
    drawings = [(name, *sources.draw(name)) for name in figures.NAMES.values()]
    labels = dict.fromkeys(record.label for record in sources.records)
    file.write(report.page([tables.build(name, sources.records) for name in tables.NAMES],
                           drawings, list(labels), specdec.__version__))
  outputs.print_line(flags.output)
  return 0
