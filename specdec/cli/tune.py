"""`specdec tune`: the drafter and gamma that pay on a user's texts and device, as a gin file."""

from collections.abc import Sequence
import contextlib
import sys
from typing import TYPE_CHECKING
from typing import Any

from specdec.cli import faults
from specdec.cli import gin_bindings
from specdec.cli import inputs as inputs_lib
from specdec.cli import outputs
from specdec.cli import pairs
from specdec.cli import progress
from specdec.cli.flags import Flags

if TYPE_CHECKING:
  from specdec.bench.tune import Tuned

INTRO = """\
specdec tune: measures drafters on your texts and device; writes the best as a gin file.

Usage
  specdec tune [FLAGS] TEXT ...
  specdec tune [FLAGS] --input_file=FILE

For each drafter: the cost of an iteration at every size and of the target's calls (v),
the cost of a drafted token (c), the share of tested tokens that are accepted (alpha),
and automatic gamma against plain decoding, side by side. Give texts such as you will
decode, a few batches of them, and the batch size and temperature that you will use."""

OUTRO = """\
Examples
  specdec tune --input_file=in.txt --output_file=tuned.gin
  specdec generate --gin_file=tuned.gin --input_file=in.txt
  specdec tune --task=correct --try=copy --try=bigram+drafter --input_file=in.txt"""

_SETTINGS = ("temperature", "top_k", "top_p", "max_decode_len", "max_source_len", "batch_size",
             "num_decodes", "verifier")


def make_flags() -> Flags:
  """The command's flags."""
  flags = Flags("tune", INTRO, OUTRO)
  flags.group("Model")
  pairs.add_flags(flags)
  flags.texts("try", "SPEC", "a drafter to measure, written as for --drafter; may be given several "
              "times [the pair's own, its others and copy]")
  pairs.add_run_flags(flags)
  flags.group("Decoding")
  flags.number("temperature", 0.0, "0 always takes the likeliest token; 1 samples from the model")
  flags.whole("top_k", 0, "keep the k likeliest tokens; 0 keeps all")
  flags.number("top_p", 0.0, "keep the likeliest tokens of this joint probability; 0 keeps all")
  flags.choice("verifier", ("token", "block", "coupled"), "token", "which drafted tokens stand")
  flags.whole("batch_size", 8, "inputs decoded together")
  flags.whole("num_decodes", 1, "samples per input")
  flags.whole("max_decode_len", None, "most tokens per output [the pair's]")
  flags.whole("max_source_len", None, "longer inputs are cut to so many tokens [the pair's]")
  flags.group("Input and output")
  flags.text("input_file", None, "FILE", "texts, UTF-8, one a line; - is standard input")
  flags.text("output_file", None, "FILE", "write the gin file here [standard output]")
  flags.text("json", None, "FILE", "write everything that was measured as JSON")
  flags.switch("overwrite", "replace output files that exist")
  flags.whole("rounds", 5, "times everything is measured")
  gin_bindings.add_flags(flags)
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command. What can be refused without the models is refused first."""
  from specdec.engine.settings import Settings
  from specdec.engine.settings import whole

  gin_bindings.settings_into_flags(flags, gin_bindings.of_flags(flags))
  given: dict[str, Any] = {name: getattr(flags, name) for name in _SETTINGS if flags.named(name)}
  Settings(**{"max_decode_len": 2**20, **given})
  whole("rounds", flags.rounds, 1, 1000)
  inputs = inputs_lib.read(args, flags.input_file)
  pairs.check(flags)
  with contextlib.ExitStack() as stack:
    files = {}
    for name in ("output_file", "json"):
      path = getattr(flags, name)
      if path is not None and path != "-":
        files[name] = stack.enter_context(
            outputs.OutputFile(f"--{name}", path, flags.overwrite, inputs.path))
    with faults.in_a_line(faults.DECODING, inputs), progress.status() as say:
      found = _tune(flags, inputs.texts, given, say)
    named = {"pair": flags.pair if flags.target is None else None, "target": flags.target,
             "vocabulary": flags.vocab, "mesh": flags.mesh,
             "drafter_layout": flags.drafter_layout}
    gin = found.to_gin(named).rstrip()
    if "json" in files:
      files["json"].write(outputs.to_json(found.to_dict()))
    if "output_file" in files:
      files["output_file"].write(gin)
  show(found)
  if "output_file" in files:
    print(f"settings written to {flags.output_file}: specdec generate "
          f"--gin_file={flags.output_file} ...", file=sys.stderr)
  else:
    outputs.print_line("")
    outputs.print_text(gin)
  return 0


def _tune(flags: Flags, texts: Sequence[str], given: dict[str, Any], say: Any) -> "Tuned":
  from specdec.bench import tune

  say("loading the models")
  pair = pairs.load(flags, pairs.dtype(flags))
  specs = getattr(flags, "try") or pair.drafter_names
  return tune.tune(pair, texts, specs, task=pairs.task(flags), rounds=flags.rounds,
                   progress=say, **given)


def show(found: "Tuned") -> None:
  """Prints a table and the verdict."""
  rows = []
  for c in found.candidates:
    costs = c.costs
    rows.append([c.spec, f"{costs.alpha:.2f}", f"{costs.drafter_call:.2f}",
                 f"{costs.verify[-1]:.2f}", str(c.gamma), f"{c.expected:.2f}x",
                 f"{c.speed_up.median:.2f}x ({c.speed_up.quartiles[0]:.2f} to "
                 f"{c.speed_up.quartiles[1]:.2f})"])
  largest = found.candidates[0].costs.sizes[-1]
  outputs.print_table(["drafter", "alpha", "c", f"v({largest})", "best gamma", "expected",
                       "measured, gamma auto"], rows)
  outputs.print_line("")
  best = found.winner
  outputs.print_line(
      f"{best.spec} is the fastest of {len(found.candidates)} on these {found.inputs} texts" if best
      else "none is faster than plain decoding on these texts")
