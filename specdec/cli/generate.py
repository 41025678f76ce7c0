"""`specdec generate`: texts in, texts out."""

from collections.abc import Sequence
import contextlib
import dataclasses
import os
import sys
from typing import TYPE_CHECKING
from typing import Any

from specdec.cli import inputs as inputs_lib
from specdec.cli import outputs
from specdec.cli import progress
from specdec.cli.flags import Flags
from specdec.errors import InputError
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.engine.models import Pair
  from specdec.engine.result import Record
  from specdec.engine.settings import Settings

INTRO = """\
specdec generate: decodes texts with a target model and a drafter that speeds it up.

Usage
  specdec generate [FLAGS] TEXT ...
  specdec generate [FLAGS] --input_file=FILE
  some-command | specdec generate [FLAGS]

One output a line goes to standard output, in the order of the inputs, and a summary
to standard error. Defaults stand in brackets; -- ends the flags."""

OUTRO = """\
Examples
  specdec generate "A dog runs across the grass."
  specdec generate --temperature=1 --top_p=0.9 --seed=7 "A dog runs across the grass."
  specdec generate --input_file=in.txt --output_file=out.jsonl
  specdec generate --compare --gamma=4 --input_file=in.txt --compare_json=speed.json"""

# Flags that are settings of the run, by the name that both have.
_SETTINGS = ("gamma", "mode", "temperature", "top_k", "top_p", "max_decode_len",
             "max_source_len", "strict_length", "batch_size", "seed")


def make_flags() -> Flags:
  """The command's flags. Defaults of settings are those of `Settings`."""
  flags = Flags("generate", INTRO, OUTRO)
  flags.group("Model")
  flags.text("pair", "demo", "NAME|DIR", "pair of models: a name, or a folder with a pair.json")
  flags.text("task", None, "NAME", "task whose prefix goes before each text, such as translate "
             "or correct; none for no prefix [the pair's first]")
  flags.choice("dtype", ("auto", "float32", "bfloat16"), "auto",
               "precision of the weights; auto is float32 on CPU, else bfloat16")
  flags.group("Speculation")
  flags.whole("gamma", 4, "tokens drafted per call of the target; 0 is plain decoding")
  flags.choice("mode", ("speculative", "plain"), "speculative",
               "plain decodes with the target alone")
  flags.group("Sampling")
  flags.number("temperature", 0.0, "0 always takes the likeliest token; 1 samples from the model")
  flags.whole("top_k", 0, "keep the k likeliest tokens; 0 keeps all")
  flags.number("top_p", 0.0, "keep the likeliest tokens of this joint probability; 0 keeps all")
  flags.whole("seed", 0, "of all random draws; an output depends on the seed and on its place "
              "in the input, not on batch_size")
  flags.group("Lengths and batches")
  flags.whole("max_decode_len", None, "most tokens per output [the pair's]")
  flags.whole("max_source_len", None, "longer inputs are cut to so many tokens [the pair's]")
  flags.switch("strict_length", "refuse inputs that would be cut")
  flags.whole("batch_size", 8, "inputs decoded together")
  flags.group("Input and output")
  flags.text("input_file", None, "FILE", "texts, UTF-8, one a line; - is standard input")
  flags.text("output_file", None, "FILE", "write a line of JSON per input: texts, ids, score, "
             "status, counts; - is standard output")
  flags.switch("overwrite", "replace output files that exist")
  flags.group("Gin")
  flags.texts("gin_file", "FILE", "settings bound by a gin file, such as Settings.gamma = 7; "
              "may be given several times; typed flags win")
  flags.texts("gin_bindings", "BINDING", "a single binding, after the files; likewise")
  flags.group("Measuring")
  flags.switch("compare", "decode everything plainly and speculatively, in turns, and show "
               "outputs, counts and times of both")
  flags.whole("repeats", 5, "times each is measured, after a warm-up")
  flags.text("compare_json", None, "FILE", "write the measurements as JSON")
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command. What can be refused without the models is refused first."""
  given = _settings(flags)
  inputs = inputs_lib.read(args, flags.input_file)
  with contextlib.ExitStack() as stack:
    def claim(name: str) -> outputs.OutputFile | None:
      path = getattr(flags, name)
      if path is None or path == "-":
        return None
      return stack.enter_context(
          outputs.OutputFile(f"--{name}", path, flags.overwrite, inputs.path))

    records_file, measures_file = claim("output_file"), claim("compare_json")
    try:
      pair = _load(flags)
      task = None if flags.task is None else "" if flags.task == "none" else flags.task
      if flags.compare:
        from specdec.cli import comparison
        comparison.main(pair, inputs.texts, task, given, flags.repeats, measures_file)
      else:
        _decode(pair, inputs, task, given, flags, records_file)
    except InputError as error:
      raise SpecdecError(f"{inputs.where(error.index)} {error.problem}") from error
    except (RuntimeError, MemoryError) as error:
      told = _told(error)
      if told is None:
        raise
      raise told from error
  return 0


def _settings(flags: Flags) -> dict[str, Any]:
  """Settings of the run, checked; those that the pair decides only when typed."""
  from specdec.engine.settings import Settings  # Imports NumPy but not jax.
  from specdec.engine.settings import whole

  given = {name: getattr(flags, name) for name in _SETTINGS
           if getattr(flags, name) is not None}
  if flags.gin_file or flags.gin_bindings:
    from specdec.cli import gin_bindings

    bound = gin_bindings.read_settings(flags.gin_file, flags.gin_bindings)
    if flags.compare and "mode" in bound:
      raise SpecdecError("--compare does not go with Settings.mode in gin: it runs both modes")
    given.update((k, v) for k, v in bound.items() if k not in given or not flags.given(k))
  Settings(**given)
  if flags.compare:
    given.pop("mode")
    for name, why in (("mode", "it runs both modes"),
                      ("output_file", "it shows its outputs; --compare_json keeps the times")):
      if flags.given(name):
        raise SpecdecError(f"--compare does not go with --{name}: {why}")
    if not given["gamma"]:
      raise SpecdecError("--compare needs a gamma of 1 or more; 0 is plain decoding itself")
    whole("repeats", flags.repeats, 1, 1000)
    if flags.compare_json == "-":
      raise SpecdecError("--compare_json is -; expected the name of a file")
  else:
    for name in ("repeats", "compare_json"):
      if flags.given(name):
        raise SpecdecError(f"--{name} belongs to --compare; add --compare or drop it")
  return given


def _load(flags: Flags) -> "Pair":
  from specdec.engine import models

  models.find_pair(flags.pair)
  return models.load_pair(flags.pair, None if flags.dtype == "auto" else flags.dtype)


def _decode(pair: "Pair", inputs: inputs_lib.Inputs, task: str | None, given: dict[str, Any],
            flags: Flags, file: outputs.OutputFile | None) -> None:
  """Decodes, and writes each record as soon as it is there."""
  from specdec.engine import generate

  records = generate.iterate(pair, inputs.texts, task=task, **given)
  settings = generate.make_settings(pair, given)
  count = len(inputs.texts)
  if progress.wanted(count, output_elsewhere=file is not None):
    records = progress.track(records, count)
  totals = Totals()
  try:
    for record in records:
      if file:
        file.write(outputs.to_json(record.to_dict()))
      elif flags.output_file == "-":
        outputs.print_line(outputs.to_json(record.to_dict()))
      else:
        outputs.print_line(record.output)
      totals.add(record)
  except KeyboardInterrupt:
    kept = f" are in {file.path}" if file else ""
    raise KeyboardInterrupt(f"{totals.outputs} of {count} outputs{kept}") from None
  _report(totals, settings, file)


@dataclasses.dataclass
class Totals:
  """Running counts, so that records need not be kept."""

  outputs: int = 0
  tokens: int = 0
  target_calls: int = 0
  tested: int = 0
  accepted: int = 0
  truncated: int = 0
  at_limit: int = 0
  nan: int = 0

  def add(self, record: "Record") -> None:
    self.outputs += 1
    self.tokens += len(record.output_ids)
    self.target_calls += record.target_calls
    self.tested += record.tested
    self.accepted += record.accepted
    self.truncated += record.truncated
    self.at_limit += record.status == "length"
    self.nan += record.status == "nan"


def _report(totals: Totals, settings: "Settings", file: outputs.OutputFile | None) -> None:
  from specdec.engine.result import summary
  from specdec.types import Status

  line = summary(totals.outputs, totals.tokens, totals.target_calls, totals.tested,
                 totals.accepted)
  if totals.at_limit:
    line += f"; {totals.at_limit} stopped at max_decode_len {settings.max_decode_len}"
  if file:
    line += f"; written to {file.path}"
  print(line, file=sys.stderr)
  if totals.truncated:
    print(f"warning: {totals.truncated} of {totals.outputs} inputs had more than "
          f"{settings.max_source_len} tokens and were cut; --strict_length refuses them",
          file=sys.stderr)
  if totals.nan:
    print(f"warning: {totals.nan} of {totals.outputs} outputs: {Status.NAN.text}",
          file=sys.stderr)


def _told(error: Exception) -> SpecdecError | None:
  """What a user can change, in words; None for a fault, which keeps its trace."""
  text = str(error).strip().splitlines()[0] if str(error).strip() else ""
  if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
    return SpecdecError("not enough memory; lower --batch_size, --max_decode_len or "
                        "--max_source_len "
                        f"({text or 'out of memory'})")
  if "initialize backend" in text:
    platforms = os.environ.get("JAX_PLATFORMS", "")
    return SpecdecError(f"jax cannot start (JAX_PLATFORMS={platforms!r}): {text}")
  return None
