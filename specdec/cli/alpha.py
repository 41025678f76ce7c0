"""`specdec alpha`: acceptance rates of drafters, before anything is decoded with them."""

from collections.abc import Sequence
import contextlib
import re
import sys
from typing import Any

from specdec.cli import faults
from specdec.cli import gin_bindings
from specdec.cli import inputs as inputs_lib
from specdec.cli import outputs
from specdec.cli import pairs
from specdec.cli import progress
from specdec.cli.flags import Flags
from specdec.cli.lists import numbers
from specdec.errors import SpecdecError

INTRO = """\
specdec alpha: the share of a drafter's tokens that a target accepts, E[min(p, q)].

Usage
  specdec alpha [FLAGS] TEXT ...
  specdec alpha [FLAGS] --input_file=FILE

The target decodes the texts alone; then p and q are compared at every position of what
it said, for all drafters and leniences in one pass of the target. Intervals are of
95 %, by a bootstrap over outputs."""

OUTRO = """\
Examples
  specdec alpha "A dog runs across the grass."
  specdec alpha --drafters=drafter,bigram,copy --leniences=1,0.5 --temperature=1 \\
    --input_file=in.txt --json=alpha.json
  specdec table alpha --record=alpha.json
  specdec alpha --drafters=drafter,copy --gamma=7 --check --input_file=in.txt"""

_SETTINGS = ("temperature", "top_k", "top_p", "max_decode_len", "max_source_len", "batch_size",
             "seed")


def make_flags() -> Flags:
  """The command's flags."""
  flags = Flags("alpha", INTRO, OUTRO)
  flags.group("Model")
  pairs.add_flags(flags)
  flags.text("drafters", None, "SPEC[,SPEC]", "several drafters, written as for --drafter [the "
             "pair's own]")
  pairs.add_run_flags(flags)
  flags.group("Measuring")
  flags.text("leniences", "1", "X[,X]", "the paper's l: what counts is sum min(q, p / l)")
  flags.whole("gamma", 4, "tokens of a draft, for drafters that draft a piece as a whole and for "
              "--check")
  flags.switch("check", "decode with each drafter as well, and compare how many tokens stood with "
               "what p and q say")
  flags.group("Decoding")
  flags.number("temperature", 0.0, "0 always takes the likeliest token; 1 samples from the model")
  flags.whole("top_k", 0, "keep the k likeliest tokens; 0 keeps all")
  flags.number("top_p", 0.0, "keep the likeliest tokens of this joint probability; 0 keeps all")
  flags.whole("batch_size", 8, "inputs decoded together")
  flags.whole("max_decode_len", None, "most tokens per output [the pair's]")
  flags.whole("max_source_len", None, "longer inputs are cut to so many tokens [the pair's]")
  flags.whole("seed", 0, "of what is sampled")
  flags.group("Input and output")
  flags.text("input_file", None, "FILE", "texts, UTF-8, one a line; - is standard input")
  flags.text("json", None, "FILE", "write the measurements as a record for specdec table")
  flags.switch("overwrite", "replace a file that exists")
  gin_bindings.add_flags(flags)
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command. What can be refused without the models is refused first."""
  from specdec.engine.settings import Settings
  from specdec.engine.settings import whole

  gin_bindings.settings_into_flags(flags, gin_bindings.of_flags(flags))
  given: dict[str, Any] = {name: getattr(flags, name) for name in _SETTINGS if flags.named(name)}
  Settings(**{"max_decode_len": 2**20, **given})
  whole("gamma", flags.gamma, 1, 64)
  leniences = numbers("leniences", flags.leniences, float, lambda x: 0 < x <= 1,
                      "numbers above 0, up to 1")
  specs = split(flags.drafters)
  inputs = inputs_lib.read(args, flags.input_file)
  _check_drafters(flags, specs)
  with contextlib.ExitStack() as stack:
    file = None
    if flags.json is not None:
      file = stack.enter_context(
          outputs.OutputFile("--json", flags.json, flags.overwrite, inputs.path))
    with faults.in_a_line(faults.DECODING, inputs), progress.status() as say:
      record = _measure(flags, inputs.texts, specs, leniences, given, say)
    if file:
      file.write(outputs.to_json(record))
  show(record)
  if flags.json is not None:
    print(f"measurements written to {flags.json}", file=sys.stderr)
  return 0


def split(text: str | None) -> list[str]:
  """Drafters with commas between them; `copy:max_match=3,min_match=1` is one.

  >>> split("copy:max_match=3,min_match=1,bigram")
  ['copy:max_match=3,min_match=1', 'bigram']

  Raises:
    SpecdecError: one of them is empty.
  """
  if text is None:
    return []
  specs = re.split(r",(?!\w+=)", text)
  if not all(spec.strip() for spec in specs):
    raise SpecdecError(f"--drafters is {text!r}; expected drafters with commas between them, such "
                       "as drafter,copy")
  return specs


def _check_drafters(flags: Flags, specs: Sequence[str]) -> None:
  """Finds what is misspelt before anything is loaded."""
  from specdec.engine import pairs as pairs_lib

  if specs and flags.named("drafter"):
    raise SpecdecError("--drafter does not go with --drafters; name all of them in --drafters")
  if specs and flags.target is not None:
    flags.fill("drafter", specs[0])
  pairs.check(flags)
  for spec in specs:
    pairs_lib.check_pair(flags.pair, target=flags.target, drafter=spec)


def _measure(flags: Flags, texts: Sequence[str], specs: Sequence[str],
             leniences: Sequence[float], given: dict[str, Any], say: Any) -> dict[str, Any]:
  from specdec.bench import alpha

  say("loading the models")
  pair = pairs.load(flags, pairs.dtype(flags))
  return alpha.measure(pair, texts, specs, leniences=leniences, task=pairs.task(flags),
                       gamma=flags.gamma, check=flags.check, progress=say, **given)


def show(record: dict[str, Any]) -> None:
  """Prints a table, profiles within drafts, and what the check found."""
  rows = []
  for row in record["rows"]:
    details = row["details"]
    low, high = row.get("alpha_interval", (None, None))
    rows.append([row["drafter"], f"{row['lenience']:g}",
                 "-" if low is None else f"{row['alpha']:.3f} ({low:.3f} to {high:.3f})",
                 f"{details['drafted']} of {details['tokens']}",
                 " ".join(f"{g['mean']:.2f}" for g in details["by_position"]) or "-"])
  outputs.print_table(["drafter", "lenience", "alpha (95 %)", "tokens drafted for",
                       "by position: 0, 1, 2-3, 4-7, ..."], rows)
  for row in record["rows"]:
    places = row["details"].get("by_place_in_draft")
    if places:
      outputs.print_line(f"{row['drafter']} at lenience {row['lenience']:g}, by place in a draft: "
                         + " ".join("-" if p is None else f"{p['mean']:.3f}" for p in places))
  for c in record["calibration"]:
    outputs.print_line(
        f"check, {c['drafter']}, lenience {c['lenience']:g}, gamma {c['gamma']}: {c['accepted']} "
        f"of {c['tested']} tested tokens stood, expected {c['expected']:.1f} +- "
        f"{c['standard_error']:.1f}: {'agrees' if c['holds'] else 'DOES NOT AGREE'}")
  first = record["rows"][0]
  outputs.print_line(f"{record['target']} ({record['weights']} weights), task {first['task']}, "
                     f"temperature {first['temperature']:g}, {first['details']['outputs']} "
                     f"outputs, {record['dtype']}")
