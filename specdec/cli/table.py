"""`specdec table`: the paper's tables, regenerated."""

from collections.abc import Sequence
import contextlib
import sys

from specdec.analysis import records as records_lib
from specdec.analysis import tables
from specdec.cli import outputs
from specdec.cli.flags import Flags
from specdec.errors import SpecdecError

INTRO = f"""\
specdec table: a table of the paper, with what its formulas give and what was measured.

Usage
  specdec table NAME [FLAGS]

NAME is {', '.join(tables.NAMES[:-1])} or {tables.NAMES[-1]}. Markdown goes to standard
output. Measurements of another target, weights or device have columns of their own."""

OUTRO = """\
Examples
  specdec table operations
  specdec table walltime --record=record.json --json=walltime.json"""


def make_flags() -> Flags:
  """The command's flags."""
  flags = Flags("table", INTRO, OUTRO)
  flags.group("Measurements")
  flags.texts("record", "FILE", "a record of measurements, such as specdec bench --json writes; "
              "may be given several times")
  flags.group("Output")
  flags.text("json", None, "FILE", "write the table as JSON too, values unrounded")
  flags.switch("overwrite", "replace a file that exists")
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command."""
  if len(args) != 1:
    raise SpecdecError(f"{len(args)} tables are named; expected one of {', '.join(tables.NAMES)}: "
                       "specdec table walltime")
  tables.check(args[0])
  records = records_lib.read_all(flags.record)
  for record in records:
    if not tables.holds(args[0], record):
      raise SpecdecError(f"--record {record.path} holds nothing for the table {args[0]}; expected "
                         f"rows with {tables.NEEDS[args[0]]}")
  with contextlib.ExitStack() as stack:
    file = None
    if flags.json is not None:
      file = stack.enter_context(outputs.OutputFile("--json", flags.json, flags.overwrite))
    table = tables.build(args[0], records)
    if file:
      file.write(outputs.to_json(table.to_dict()))
  outputs.print_text(table.markdown())
  if flags.json is not None:
    print(f"table written to {flags.json}", file=sys.stderr)
  return 0
