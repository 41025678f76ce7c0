"""What decoding commands share: flags that are settings of the run, and what they say."""

from typing import TYPE_CHECKING
from typing import Any

from specdec.cli import gin_bindings
from specdec.cli import inputs as inputs_lib
from specdec.cli.flags import Flags
from specdec.errors import InputError
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.engine.pairs import Pair

# Flags that are settings of the run, by the name that both have.
SETTINGS = ("gamma", "mode", "temperature", "top_k", "top_p", "max_decode_len",
             "max_source_len", "strict_length", "batch_size", "seed", "min_decode_len",
             "repetition_penalty", "no_repeat_ngram_size", "num_decodes", "rescale_log_probs",
             "verifier", "lenience", "confidence", "batching")


def add_flags(flags: Flags, per_input: bool = True) -> None:
  """Adds the flags, in groups of their own. Defaults are those of `Settings`.

  Args:
    flags: of the command.
    per_input: with flags that say something about each input by itself.
  """
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
  if per_input:
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
  flags.choice("batching", ("sorted", "arrival", "refill"), "sorted", "which of them: sorted puts "
               "inputs of like length together, arrival takes them as they come, and so does "
               "refill, which gives the place of an output that has ended to the next input")


def settings(flags: Flags, bound: gin_bindings.Bound) -> dict[str, Any]:
  """Settings of the run, checked as far as goes without the pair.

  Args:
    flags: parsed.
    bound: what gin binds; typed flags win.

  Returns:
    Fields of `Settings`; those that the pair decides only when typed or bound.

  Raises:
    SpecdecError: a value is out of range.
  """
  from specdec.engine.settings import Settings  # Imports NumPy but not jax.

  given = {name: getattr(flags, name) for name in SETTINGS
           if getattr(flags, name) is not None}
  if not flags.given("gamma"):
    # A drafter may draft fewer than that.
    del given["gamma"]
  for name in ("eos_ids", "forbidden_ids"):
    if getattr(flags, name) is not None:
      given[name] = _ids(name, getattr(flags, name))
  given.update((k, v) for k, v in bound.settings.items() if k not in given or not flags.given(k))
  # The pair may have a higher limit than the default.
  Settings(**{"max_decode_len": 2**20, **given})
  return given


def read_allowed(flags: Flags) -> list[str] | None:
  """The lines of --allowed_file.

  Raises:
    SpecdecError: it cannot be read.
  """
  if flags.allowed_file is None:
    return None
  return inputs_lib.read_lines("--allowed_file", flags.allowed_file)


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


def allowed_sequences(pair: "Pair", lines: list[str], path: str, given: dict[str, Any]) -> Any:
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
