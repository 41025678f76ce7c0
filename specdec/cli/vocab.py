"""`specdec vocab`: how texts are tokenised, and whether they come back."""

from collections.abc import Sequence
import sys

from specdec.cli import inputs as inputs_lib
from specdec.cli import outputs
from specdec.cli import pairs
from specdec.cli.flags import Flags

INTRO = """\
specdec vocab: shows the pieces and ids of texts under a pair's vocabulary, and what
they decode to.

Usage
  specdec vocab [FLAGS] TEXT ...
  specdec vocab [FLAGS] --input_file=FILE

The vocabulary is read, the weights are not."""

OUTRO = """\
Examples
  specdec vocab "A dog runs across the grass."
  specdec vocab --json --target=t5-base --drafter=t5-small "A dog runs." """


def make_flags() -> Flags:
  """The command's flags."""
  flags = Flags("vocab", INTRO, OUTRO)
  flags.group("Model")
  pairs.add_flags(flags)
  flags.group("Input and output")
  flags.text("input_file", None, "FILE", "texts, UTF-8, one a line; - is standard input")
  flags.switch("json", "a line of JSON per text: text, pieces, ids, decoded, round_trip")
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command."""
  texts = inputs_lib.read(args, flags.input_file).texts
  vocabulary = pairs.vocabulary(flags)
  changed = 0
  for text in texts:
    ids = vocabulary.encode(text)
    pieces, decoded = vocabulary.pieces(ids), vocabulary.decode(ids)
    changed += decoded != text
    if flags.json:
      outputs.print_line(outputs.to_json({
          "text": text, "pieces": pieces, "ids": ids, "decoded": decoded,
          "round_trip": decoded == text}))
      continue
    outputs.print_line(f"{len(ids)} tokens: " + " ".join(pieces))
    outputs.print_line("  ids: " + " ".join(map(str, ids)))
    outputs.print_line("  comes back as it was" if decoded == text else
                       f"  comes back as: {decoded}")
  line = f"{vocabulary.kind}, {len(vocabulary)} pieces, fingerprint {vocabulary.fingerprint[:12]}"
  if changed:
    line += f"; {changed} of {len(texts)} texts do not come back as they were"
  print(line, file=sys.stderr)
  return 0
