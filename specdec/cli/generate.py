"""`specdec generate`: texts in, texts out."""

from collections.abc import Sequence
import contextlib
import dataclasses
import sys
from typing import TYPE_CHECKING
from typing import Any

from specdec.cli import faults
from specdec.cli import gin_bindings
from specdec.cli import inputs as inputs_lib
from specdec.cli import outputs
from specdec.cli import pairs
from specdec.cli import progress
from specdec.cli import show_trace
from specdec.cli.flags import Flags
from specdec.errors import InputError
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.engine.pairs import Pair
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
  specdec generate --num_decodes=4 --temperature=1 "A dog runs across the grass."
  specdec generate --prompt="Ein Hund" --trace "A dog runs across the grass."
  specdec generate --task=correct --drafter=copy --gamma=8 "A dogs runs."
  specdec generate --compare --gamma=4 --input_file=in.txt --compare_json=speed.json"""

# Flags that are settings of the run, by the name that both have.
_SETTINGS = ("gamma", "mode", "temperature", "top_k", "top_p", "max_decode_len",
             "max_source_len", "strict_length", "batch_size", "seed", "min_decode_len",
             "repetition_penalty", "no_repeat_ngram_size", "num_decodes", "rescale_log_probs",
             "verifier", "lenience", "confidence")


def make_flags() -> Flags:
  """The command's flags. Defaults of settings are those of `Settings`."""
  flags = Flags("generate", INTRO, OUTRO)
  flags.group("Model")
  pairs.add_flags(flags)
  pairs.add_run_flags(flags)
  flags.group("Speculation")
  flags.whole("gamma", 4, "tokens drafted per call of the target; 0 is plain decoding, auto picks "
              "as it goes", word="auto")
  flags.choice("mode", ("speculative", "plain"), "speculative",
               "plain decodes with the target alone")
  flags.choice("verifier", ("token", "block", "lenient", "coupled"), "token", "which drafted "
               "tokens stand: token is the paper's rule; block accepts more and is as lossless; "
               "coupled gives the same ids whatever drafts; lenient accepts more than the target "
               "would and is NOT lossless")
  flags.number("lenience", 1.0, "above 0, up to 1: no token becomes more than 1/X times as likely "
               "as under the target; below 1 for --verifier=lenient alone")
  flags.number("confidence", 0.0, "stop a draft where the drafter gives its likeliest token less "
               "than this; 0 is off")
  flags.group("Sampling")
  flags.number("temperature", 0.0, "0 always takes the likeliest token; 1 samples from the model")
  flags.whole("top_k", 0, "keep the k likeliest tokens; 0 keeps all")
  flags.number("top_p", 0.0, "keep the likeliest tokens of this joint probability; 0 keeps all")
  flags.whole("seed", 0, "of all random draws; an output depends on the seed and on its place "
              "in the input, not on batch_size")
  flags.whole("num_decodes", 1, "samples per input, the best last")
  flags.switch("rescale_log_probs", "order samples by their probability after controls and "
               "filters instead of the model's own")
  flags.group("Controls")
  flags.text("prompt", None, "TEXT", "what every output begins with")
  flags.text("prompt_file", None, "FILE", "likewise, a line per input")
  flags.whole("min_decode_len", 0, "fewest tokens per output")
  flags.text("eos_ids", None, "IDS", "ids that end an output, such as 1,5; none for no such id "
             "[the vocabulary's]")
  flags.text("forbidden_ids", None, "IDS", "ids that are never generated, such as 3,17; 3:0:2 "
             "forbids 3 at positions 0 and 1")
  flags.number("repetition_penalty", 1.0, "above 1 makes tokens that the output has already "
               "less likely; 1 is off")
  flags.whole("no_repeat_ngram_size", 0, "no n-gram of this size occurs twice in an output; "
              "0 is off")
  flags.text("allowed_file", None, "FILE", "outputs are lines of this file and nothing else")
  flags.group("Lengths and batches")
  flags.whole("max_decode_len", None, "most tokens per output [the pair's]")
  flags.whole("max_source_len", None, "longer inputs are cut to so many tokens [the pair's]")
  flags.switch("strict_length", "refuse inputs that would be cut")
  flags.whole("batch_size", 8, "inputs decoded together")
  flags.group("Input and output")
  flags.text("input_file", None, "FILE", "texts, UTF-8, one a line; - is standard input")
  flags.text("output_file", None, "FILE", "write a line of JSON per output: texts, ids, scores, "
             "status, counts; - is standard output")
  flags.switch("overwrite", "replace output files that exist")
  flags.switch("stream", "print text while it is decoded, one input after the other")
  flags.switch("trace", "print what became of every draft; with --output_file, keep it there")
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
  allowed = None
  if flags.allowed_file is not None:
    allowed = inputs_lib.read_lines("--allowed_file", flags.allowed_file)
  with contextlib.ExitStack() as stack:
    def claim(name: str) -> outputs.OutputFile | None:
      path = getattr(flags, name)
      if path is None or path == "-":
        return None
      return stack.enter_context(
          outputs.OutputFile(f"--{name}", path, flags.overwrite, inputs.path))

    records_file, measures_file = claim("output_file"), claim("compare_json")
    with faults.in_a_line(faults.DECODING, inputs):
      pair = _load(flags)
      options = {"task": pairs.task(flags), "prompt": prompt, "costs": bound.costs}
      if allowed is not None:
        options["logits_fn"] = _allowed(pair, allowed, flags.allowed_file, given)
      if flags.compare:
        from specdec.cli import comparison
        comparison.main(pair, inputs.texts, options | given, flags.repeats, measures_file)
      elif flags.stream:
        _stream(pair, inputs, options, given)
      else:
        _decode(pair, inputs, options, given, flags, records_file)
  return 0


def _settings(flags: Flags, bound: gin_bindings.Bound) -> dict[str, Any]:
  """Settings of the run, checked; those that the pair decides only when typed."""
  from specdec.engine.settings import Settings  # Imports NumPy but not jax.
  from specdec.engine.settings import whole

  given = {name: getattr(flags, name) for name in _SETTINGS
           if getattr(flags, name) is not None}
  if not flags.given("gamma"):
    # A drafter may draft fewer than that.
    del given["gamma"]
  for name in ("eos_ids", "forbidden_ids"):
    if getattr(flags, name) is not None:
      given[name] = _ids(name, getattr(flags, name))
  if flags.compare and "mode" in bound.settings:
    raise SpecdecError("--compare does not go with Settings.mode in gin: it runs both modes")
  given.update((k, v) for k, v in bound.settings.items() if k not in given or not flags.given(k))
  # The pair may have a higher limit than the default.
  checked = Settings(**{"max_decode_len": 2**20, **given})
  if flags.compare:
    given.pop("mode")
    for name, why in (("mode", "it runs both modes"), ("stream", "it shows whole outputs"),
                      ("trace", "it shows counts; use --trace alone"),
                      ("output_file", "it shows its outputs; --compare_json keeps the times")):
      if flags.given(name):
        raise SpecdecError(f"--compare does not go with --{name}: {why}")
    if not checked.gamma:
      raise SpecdecError("--compare needs a gamma of 1 or more; 0 is plain decoding itself")
    whole("repeats", flags.repeats, 1, 1000)
    if flags.compare_json == "-":
      raise SpecdecError("--compare_json is -; expected the name of a file")
  else:
    for name in ("repeats", "compare_json"):
      if flags.given(name):
        raise SpecdecError(f"--{name} belongs to --compare; add --compare or drop it")
  if flags.stream:
    for name, why in (("trace", "it prints whole outputs"),
                      ("output_file", "its lines are whole outputs"),
                      ("batch_size", "it takes one input after the other"),
                      ("num_decodes", "the best sample is known at the end")):
      if flags.given(name):
        raise SpecdecError(f"--stream does not go with --{name}: {why}")
    if given["num_decodes"] > 1:
      raise SpecdecError("--stream does not go with Settings.num_decodes in gin: the best "
                         "sample is known at the end")
  return given


def _ids(name: str, text: str) -> tuple[Any, ...]:
  """Ids, and triples of id, first position and first position after, out of a flag."""
  if text == "none":
    return ()
  try:
    entries = [tuple(int(part) for part in entry.split(":")) for entry in text.split(",")]
  except ValueError:
    entries = []
  lengths = (1, 3) if name == "forbidden_ids" else (1,)
  if not entries or any(len(e) not in lengths for e in entries):
    also = " (3:0:2 is id 3 at positions 0 and 1)" if 3 in lengths else ", or none"
    raise SpecdecError(f"--{name} is {text!r}; expected ids with commas between{also}")
  return tuple(e[0] if len(e) == 1 else e for e in entries)


def _allowed(pair: "Pair", lines: list[str], path: str, given: dict[str, Any]) -> Any:
  """The hook that admits the lines of a file, each of which must be possible."""
  from specdec.engine import job
  from specdec.engine.allowed import AllowedSequences

  settings = job.make_settings(pair, given)
  if pair.vocabulary.eos_id not in job.eos_ids(pair, settings):
    raise SpecdecError("--allowed_file ends its lines with the vocabulary's EOS id "
                       f"{pair.vocabulary.eos_id}, which --eos_ids leaves out; add it")
  for i, line in enumerate(lines):
    count = len(pair.vocabulary.encode(line))
    if count > settings.max_decode_len:
      raise SpecdecError(f"line {i + 1} of {path} has {count} tokens, more than max_decode_len "
                         f"{settings.max_decode_len}; shorten it or raise max_decode_len")
  try:
    return AllowedSequences.from_texts(pair.vocabulary, lines)
  except InputError as error:
    raise SpecdecError(f"line {error.index + 1} of {path}: {error.problem}") from error


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
  from specdec.engine import job
  from specdec.engine import streaming

  totals = Totals()
  for piece in streaming.stream(pair, inputs.texts, **options, **{**given, "batch_size": 1}):
    # Line by line of output, whatever characters a text has.
    text = "".join(" " if len(f"a{c}b".splitlines()) > 1 else c for c in piece.text)
    outputs.print_text(text, end="\n" if piece.record else "")
    if piece.record:
      totals.add(piece.record)
  _report(totals, job.make_settings(pair, given), None)


def _decode(pair: "Pair", inputs: inputs_lib.Inputs, options: dict[str, Any],
            given: dict[str, Any], flags: Flags, file: outputs.OutputFile | None) -> None:
  """Decodes, and writes each record as soon as it is there."""
  from specdec.engine import generate
  from specdec.engine import job

  records = generate.iterate(pair, inputs.texts, trace=flags.trace, **options, **given)
  settings = job.make_settings(pair, given)
  count = len(inputs.texts) * settings.num_decodes
  if progress.wanted(count, output_elsewhere=file is not None):
    records = progress.track(records, count)
  totals = Totals()
  try:
    for record in records:
      if file:
        file.write(outputs.to_json(record.to_dict()))
      elif flags.output_file == "-":
        outputs.print_line(outputs.to_json(record.to_dict()))
      elif flags.trace:
        show_trace.show(record, pair.vocabulary)
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

  inputs: int = 0
  outputs: int = 0
  tokens: int = 0
  target_calls: int = 0
  tested: int = 0
  accepted: int = 0
  truncated: int = 0
  at_limit: int = 0
  nan: int = 0
  forbidden: int = 0

  def add(self, record: "Record") -> None:
    self.outputs += 1
    self.tokens += record.num_generated
    self.target_calls += record.target_calls
    self.tested += record.tested
    self.accepted += record.accepted
    self.inputs += record.sample == 0
    self.truncated += record.truncated and record.sample == 0
    self.at_limit += record.status == "length"
    self.nan += record.status == "nan"
    self.forbidden += record.status == "forbidden"


def _report(totals: Totals, settings: "Settings", file: outputs.OutputFile | None) -> None:
  from specdec.engine.result import summary
  from specdec.types import Status

  line = summary(totals.outputs, totals.tokens, totals.target_calls, totals.tested,
                 totals.accepted, settings.lossless)
  if totals.at_limit:
    line += f"; {totals.at_limit} stopped at max_decode_len {settings.max_decode_len}"
  if file:
    line += f"; written to {file.path}"
  print(line, file=sys.stderr)
  if totals.truncated:
    print(f"warning: {totals.truncated} of {totals.inputs} inputs had more than "
          f"{settings.max_source_len} tokens and were cut; --strict_length refuses them",
          file=sys.stderr)
  for count, status in ((totals.nan, Status.NAN), (totals.forbidden, Status.FORBIDDEN)):
    if count:
      print(f"warning: {count} of {totals.outputs} outputs: {status.text}", file=sys.stderr)
