"""`specdec inspect`: what a checkpoint is, without reading its weights."""

from collections.abc import Sequence
import sys

from specdec.cli.flags import Flags
from specdec.cli.outputs import print_line
from specdec.cli.outputs import print_text
from specdec.errors import SpecdecError

INTRO = """\
specdec inspect: tells what a checkpoint is and what would be loaded of it.

Usage
  specdec inspect [FLAGS] PATH

PATH is a folder of specdec, T5X (gs:// too) or Hugging Face, or a name on its hub.
Indices and headers are read, the weights are not."""

OUTRO = """\
Examples
  specdec inspect t5-base
  specdec inspect --arrays --json gs://bucket/t5_1_1_base/checkpoint_1000000"""


def make_flags() -> Flags:
  """The command's flags."""
  flags = Flags("inspect", INTRO, OUTRO)
  flags.group("Reading")
  flags.choice("from", ("auto", "bundle", "t5x", "hf"), "auto",
               "layout of PATH; auto looks at what is in it")
  flags.text("vocab", None, "FILE", "vocabulary, where PATH carries none")
  flags.group("Output")
  flags.switch("arrays", "list every array: name, shape, dtype, file")
  flags.switch("json", "one line of JSON instead of a table")
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command."""
  if len(args) != 1:
    raise SpecdecError(f"{len(args)} paths are given; expected one: specdec inspect PATH")
  from specdec.engine import describe

  told = describe.describe(args[0], getattr(flags, "from"), flags.vocab)
  if flags.json:
    from specdec.cli.outputs import to_json

    print_line(to_json(told.to_dict(arrays=flags.arrays)))
    return 0
  _table(args[0], told.rows())
  if flags.arrays:
    _arrays(told)
  return 0


def _arrays(told) -> None:
  from rich.table import Table

  table = Table(box=None, pad_edge=False)
  for name in ("array", "shape", "dtype", "in"):
    table.add_column(name, overflow="fold")
  for name, array in told.checkpoint.arrays.items():
    table.add_row(name, "x".join(map(str, array.shape)), array.dtype.name, array.where)
  _print(table)


def _table(title: str, rows: Sequence[tuple[str, str]]) -> None:
  from rich import box
  from rich.table import Table

  table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=False)
  table.add_column("", no_wrap=True)
  table.add_column("", overflow="fold")
  print_line(title)
  for row in rows:
    table.add_row(*row)
  _print(table)


def _print(table) -> None:
  from rich.console import Console

  console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 100)
  with console.capture() as captured:
    console.print(table, markup=False)
  print_text("\n".join(line.rstrip() for line in captured.get().splitlines() if line.strip()))
