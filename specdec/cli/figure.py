"""`specdec figure`: the paper's figures."""

from collections.abc import Sequence
import sys

from specdec.analysis import figures
from specdec.analysis import gallery
from specdec.cli import drawing
from specdec.cli import outputs
from specdec.cli.flags import Flags
from specdec.errors import SpecdecError

INTRO = """\
specdec figure: draws figures of the paper, as SVG and PNG.

Usage
  specdec figure NUMBER ... --output=DIR [FLAGS]

  1 example    what became of each draft of a sentence
  2 tokens     expected tokens per target call
  3 gamma      the best gamma
  4 speed      speed-up and operations
  5 timeline   calls of both models on a time axis

Numbers are the paper's. Measurements stand on the curves, beside their predictions."""

OUTRO = """\
Examples
  specdec figure 2 3 4 --output=figures
  specdec figure 5 --record=record.json --trace_file=out.jsonl --output=figures"""


def make_flags() -> Flags:
  """The command's flags."""
  flags = Flags("figure", INTRO, OUTRO)
  flags.group("Output")
  flags.text("output", None, "DIR", "folder for the files; made if it is not there")
  flags.switch("overwrite", "replace files that exist")
  drawing.add_flags(flags)
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command."""
  if not args:
    raise SpecdecError("no figure is named; expected numbers from 1 to 5: specdec figure 2 "
                       "--output=figures")
  names = list(dict.fromkeys(map(gallery.find, args)))
  if flags.output is None:
    raise SpecdecError("--output is missing; name a folder for the files: --output=figures")
  sources = drawing.read(flags)
  stems = {name: f"figure_{gallery.number(name)}_{name}" for name in names}
  files = [f"{stem}.{kind}" for stem in stems.values() for kind in ("svg", "png")]
  # Before anything is written, so that a missing package leaves no empty folder.
  drawn = {name: sources.draw(name) for name in names}
  folder = outputs.claim_folder("--output", flags.output, files, flags.overwrite)
  for name, (drawn_figure, caption) in drawn.items():
    svg = figures.svg(drawn_figure)
    outputs.write_bytes("--output", folder / f"{stems[name]}.svg", svg.encode())
    outputs.write_bytes("--output", folder / f"{stems[name]}.png", figures.png(drawn_figure))
    print(f"figure {gallery.number(name)}: {caption}", file=sys.stderr)
  for file in files:
    outputs.print_line(str(folder / file))
  return 0
