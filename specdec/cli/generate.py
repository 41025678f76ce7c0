"""`specdec generate`: texts in, texts out."""

from collections.abc import Sequence
import contextlib
import dataclasses
import pathlib
from typing import TYPE_CHECKING
from typing import Any

from specdec.cli import decoding
from specdec.cli import faults
from specdec.cli import gin_bindings
from specdec.cli import inputs as inputs_lib
from specdec.cli import outputs
from specdec.cli import pairs
from specdec.cli import progress
from specdec.cli import show_trace
from specdec.cli import totals as totals_lib
from specdec.cli.flags import Flags
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.engine.pairs import Pair

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
  specdec generate --num_decodes=4 --temperature=1 "A dog runs across the grass."
  specdec generate --prompt="Ein Hund" --trace "A dog runs across the grass."
  specdec generate --task=correct --drafter=copy --gamma=8 "A dogs runs."
  specdec generate --compare --gamma=4 --input_file=in.txt --compare_json=speed.json"""


def make_flags() -> Flags:
  """The command's flags. Defaults of settings are those of `Settings`."""
  flags = Flags("generate", INTRO, OUTRO)
  flags.group("Model")
  pairs.add_flags(flags)
  pairs.add_run_flags(flags)
  decoding.add_flags(flags)
  flags.group("Input and output")
  flags.text("input_file", None, "FILE", "texts, UTF-8, one a line; - is standard input")
  flags.text("output_file", None, "FILE", "write a line of JSON per output: texts, ids, scores, "
             "status, counts; - is standard output; FILE.gin beside it says what took effect")
  flags.switch("overwrite", "replace output files that exist")
  flags.switch("stream", "print text while it is decoded, one input after the other")
  flags.switch("trace", "print what became of every draft; with --output_file, keep it there")
  flags.text("trace_html", None, "FILE", "write a page that shows what became of every draft, with "
             "p, q and the chance of each token")
  gin_bindings.add_flags(flags)
  flags.group("Measuring")
  flags.switch("compare", "decode everything plainly and speculatively, in turns, and show "
               "outputs, counts and times of both")
  flags.whole("repeats", 5, "times each is measured, after a warm-up")
  flags.text("compare_json", None, "FILE", "write the measurements as JSON")
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command. What can be refused without the models is refused first."""
  bound = gin_bindings.of_flags(flags)
  given = _settings(flags, bound)
  inputs = inputs_lib.read(args, flags.input_file)
  prompt = _prompt(flags, len(inputs.texts))
  allowed = decoding.read_allowed(flags)
  with contextlib.ExitStack() as stack:
    def claim(name: str, ending: str = "") -> outputs.OutputFile | None:
      path = getattr(flags, name)
      if path is None or path == "-":
        return None
      return stack.enter_context(
          outputs.OutputFile(f"--{name}", path + ending, flags.overwrite, inputs.path))

    records_file, measures_file = claim("output_file"), claim("compare_json")
    # A device or a pipe has nothing beside it.
    beside = records_file is not None and pathlib.Path(records_file.path).is_file()
    operative = claim("output_file", ".gin") if beside else None
    page = claim("trace_html")
    with faults.in_a_line(faults.DECODING, inputs):
      pair = _load(flags)
      options = {"task": pairs.task(flags), "prompt": prompt, "costs": bound.costs}
      if allowed is not None:
        options["logits_fn"] = decoding.allowed_sequences(
            pair, allowed, flags.allowed_file, given)
      if flags.compare:
        from specdec.cli import comparison
        comparison.main(pair, inputs.texts, options | given, flags.repeats, measures_file)
      elif flags.stream:
        _stream(pair, inputs, options, given)
      else:
        _decode(pair, inputs, options, given, flags, records_file, operative, page)
  return 0


def _settings(flags: Flags, bound: gin_bindings.Bound) -> dict[str, Any]:
  """Settings of the run, checked; those that the pair decides only when typed."""
  from specdec.engine.settings import whole

  if flags.compare and "mode" in bound.settings:
    raise SpecdecError("--compare does not go with Settings.mode in gin: it runs both modes")
  given = decoding.settings(flags, bound)
  if flags.compare:
    given.pop("mode")
    for name, why in (("mode", "it runs both modes"), ("stream", "it shows whole outputs"),
                      ("trace", "it shows counts; use --trace alone"),
                      ("trace_html", "it shows counts; use --trace_html alone"),
                      ("output_file", "it shows its outputs; --compare_json keeps the times")):
      if flags.given(name):
        raise SpecdecError(f"--compare does not go with --{name}: {why}")
    if given.get("gamma") == 0:
      raise SpecdecError("--compare needs a gamma of 1 or more; 0 is plain decoding itself")
    whole("repeats", flags.repeats, 1, 1000)
    if flags.compare_json == "-":
      raise SpecdecError("--compare_json is -; expected the name of a file")
  else:
    for name in ("repeats", "compare_json"):
      if flags.given(name):
        raise SpecdecError(f"--{name} belongs to --compare; add --compare or drop it")
  if flags.trace_html == "-":
    raise SpecdecError("--trace_html is -; expected the name of a file")
  if flags.trace_html is not None and flags.trace_html == flags.output_file:
    raise SpecdecError(f"--trace_html and --output_file are both {flags.trace_html}; give one of "
                       "them another name")
  if flags.stream:
    for name, why in (("trace", "it prints whole outputs"),
                      ("trace_html", "the page shows whole outputs"),
                      ("output_file", "its lines are whole outputs"),
                      ("batch_size", "it takes one input after the other"),
                      ("batching", "it takes one input after the other"),
                      ("num_decodes", "the best sample is known at the end")):
      if flags.given(name):
        raise SpecdecError(f"--stream does not go with --{name}: {why}")
    if given["num_decodes"] > 1:
      raise SpecdecError("--stream does not go with Settings.num_decodes in gin: the best "
                         "sample is known at the end")
  return given


def _prompt(flags: Flags, count: int) -> str | list[str] | None:
  if flags.prompt_file is None:
    return flags.prompt
  if flags.prompt is not None:
    raise SpecdecError("--prompt and --prompt_file are both given; drop one")
  prompts = inputs_lib.read_lines("--prompt_file", flags.prompt_file)
  if len(prompts) != count:
    raise SpecdecError(f"--prompt_file {flags.prompt_file} has {len(prompts)} lines for {count} "
                       "inputs; expected one for each")
  return prompts


def _load(flags: Flags) -> "Pair":
  return pairs.load(flags, pairs.dtype(flags))


def _stream(pair: "Pair", inputs: inputs_lib.Inputs, options: dict[str, Any],
            given: dict[str, Any]) -> None:
  """Prints pieces as they come; every output ends its line."""
  from specdec.engine import counts
  from specdec.engine import job
  from specdec.engine import streaming

  totals = counts.Counts()
  for piece in streaming.stream(pair, inputs.texts, **options, **{**given, "batch_size": 1}):
    # Line by line of output, whatever characters a text has.
    text = "".join(" " if len(f"a{c}b".splitlines()) > 1 else c for c in piece.text)
    outputs.print_text(text, end="\n" if piece.record else "")
    if piece.record:
      totals.add(piece.record)
  totals_lib.report(totals, job.make_settings(pair, given))


def _decode(pair: "Pair", inputs: inputs_lib.Inputs, options: dict[str, Any],
            given: dict[str, Any], flags: Flags, file: outputs.OutputFile | None,
            operative: outputs.OutputFile | None, page: outputs.OutputFile | None) -> None:
  """Decodes, and writes each record as soon as it is there, and what took effect first."""
  from specdec.engine import calibrate
  from specdec.engine import counts
  from specdec.engine import generate
  from specdec.engine import job
  from specdec.engine import trace_page

  task = options.pop("task")
  work = calibrate.ready(job.from_texts(pair, inputs.texts, task, given,
                                        trace=flags.trace or page is not None, **options))
  if operative:
    operative.write(gin_bindings.operative(flags, work.settings, work.costs).rstrip())
  records, settings = generate.decode(work), work.settings
  count = len(inputs.texts) * settings.num_decodes
  if progress.wanted(count, output_elsewhere=file is not None):
    records = progress.track(records, count)
  totals = counts.Counts()
  try:
    for record in records:
      if page:
        if not page.count:
          page.write(trace_page.begin(settings, pair.name))
        page.write(trace_page.output(record))
      if not flags.trace:
        record = dataclasses.replace(record, trace=None)
      if file:
        file.write(outputs.to_json(record.to_dict()))
      elif flags.output_file == "-":
        outputs.print_line(outputs.to_json(record.to_dict()))
      elif flags.trace:
        show_trace.show(record)
      else:
        outputs.print_line(record.output)
      totals.add(record)
  except KeyboardInterrupt:
    kept = f" are in {file.path}" if file else ""
    raise KeyboardInterrupt(f"{totals.outputs} of {count} outputs{kept}") from None
  if page:
    page.write(trace_page.end(totals_lib.line(totals, settings)))
  totals_lib.report(totals, settings, file and file.path)
