"""`specdec ngram`: tables of n-grams that draft for a target, counted and shown."""

from collections.abc import Callable
from collections.abc import Sequence
import difflib
import json
import os
import pathlib
import sys
import time
from typing import TYPE_CHECKING
from typing import NamedTuple

from specdec.cli import compilation
from specdec.cli import faults
from specdec.cli import inputs as inputs_lib
from specdec.cli import outputs
from specdec.cli import pairs
from specdec.cli import progress
from specdec.cli.flags import Flags
from specdec.errors import InputError
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.data.base import BaseVocabulary

INTRO = """\
specdec ngram: counts which token follows which, into tables that draft for a target,
and shows such tables.

Usage
  specdec ngram build [FLAGS] OUT --input_file=FILE
  specdec ngram build [FLAGS] OUT --ids_file=FILE
  specdec ngram show [FLAGS] DIR [TEXT]

OUT is a new folder. Texts may be any in the target's language, but a draft has to guess
what the target says: its own outputs are best. --from_target decodes the texts first
and counts what comes out; --ids_file takes what specdec generate --output_file has
written. show tells what tables hold, and what they expect after TEXT."""

OUTRO = """\
Examples
  specdec ngram build bigram --input_file=english.txt --from_target
  specdec generate --input_file=english.txt --output_file=out.jsonl
  specdec ngram build --order=3 trigram --ids_file=out.jsonl
  specdec ngram build --vocab=spiece.model bigram --input_file=german.txt
  specdec ngram show bigram "Ein Hund" """

_ACTIONS = ("build", "show")
_SHOWN = 10


def make_flags() -> Flags:
  """The command's flags."""
  flags = Flags("ngram", INTRO, OUTRO)
  flags.group("Model")
  pairs.add_flags(flags)
  pairs.add_mesh(flags)
  flags.group("What is counted")
  flags.text("input_file", None, "FILE", "texts, UTF-8, one a line; - is standard input")
  flags.text("ids_file", None, "FILE", "lines of JSON: a list of ids, or an object with "
             "output_ids; the vocabulary's EOS belongs to the ids")
  flags.switch("from_target", "decode --input_file plainly with the target and count its outputs")
  flags.group("Tables")
  flags.whole("order", 2, "1 for unigrams, 2 for bigrams, 3 for trigrams; shorter ones come along")
  flags.whole("successors", 64, "most successors kept per history")
  flags.whole("min_count", 1, "n-grams of two or more tokens that are rarer are left out")
  flags.group("Decoding, with --from_target")
  flags.text("task", None, "NAME", "task whose prefix goes before each text; none for no prefix "
             "[the pair's first]")
  flags.number("temperature", 0.0, "0 always takes the likeliest token; 1 samples from the model")
  flags.whole("seed", 0, "of all random draws")
  compilation.add_flags(flags)
  flags.whole("batch_size", 8, "inputs decoded together")
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command."""
  if not args:
    raise SpecdecError("nothing to do; type specdec ngram build OUT or specdec ngram show DIR")
  action, rest = args[0], args[1:]
  if action == "build":
    return _build(flags, rest)
  if action == "show":
    return _show(flags, rest)
  near = difflib.get_close_matches(action, _ACTIONS, 1)
  hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(_ACTIONS)}"
  raise SpecdecError(f"unknown action {action!r}; {hint} (specdec ngram --help)")


class _Found(NamedTuple):
  """What is counted: sequences, whose ids they are, where they are from, and their names."""

  sequences: list[list[int]]
  vocabulary: "BaseVocabulary"
  source: str
  where: Callable[[int], str]


def _build(flags: Flags, args: Sequence[str]) -> int:
  if len(args) != 1:
    raise SpecdecError(f"{len(args)} folders are given; expected one: specdec ngram build OUT")
  out = args[0]
  _check(flags, out)
  begin = time.perf_counter()
  # Files are read, and numbers checked, before a target is loaded for an hour's work.
  lines = flags.ids_file and inputs_lib.read_lines("--ids_file", flags.ids_file)
  inputs = None if lines else _texts(flags.input_file)
  from specdec.engine import ngrams

  ngrams.check(flags.order, flags.successors, flags.min_count)
  with progress.status() as status:
    if lines:
      status(f"reading {flags.ids_file}")
      found = _from_ids(flags, lines)
    elif not flags.from_target:
      status(f"tokenising {len(inputs.texts)} texts")
      found = _from_texts(flags, inputs)
  if flags.from_target:
    # It has a bar of its own.
    found = _from_target(flags, inputs)
  with progress.status() as status:
    status(f"counting {len(found.sequences)} sequences")
    try:
      tables = ngrams.count(found.sequences, flags.order, len(found.vocabulary),
                            flags.successors, flags.min_count)
    except InputError as error:
      raise SpecdecError(f"{found.where(error.index)} {error.problem}") from error
    ngrams.save(out, tables, found.vocabulary, found.source)
  tokens = sum(map(len, found.sequences))
  outputs.print_line(f"{out}: {ngrams.describe(tables)}, {_size(out) / 1000:.4g} kB")
  print(f"{tokens} tokens of {len(found.sequences)} sequences, {found.source}; "
        f"{time.perf_counter() - begin:.1f} s", file=sys.stderr)
  return 0


def _check(flags: Flags, out: str) -> None:
  """Finds the mistakes that need neither a file nor a model."""
  named = [name for name in ("input_file", "ids_file") if getattr(flags, name) is not None]
  if len(named) != 1:
    raise SpecdecError(f"{'both' if named else 'neither'} --input_file and --ids_file are given; "
                       "expected one of the two: texts, or ids")
  if flags.from_target and flags.ids_file is not None:
    raise SpecdecError("--from_target decodes texts and does not go with --ids_file; drop one")
  for name in ("task", "temperature", "seed", "batch_size"):
    if flags.given(name) and not flags.from_target:
      raise SpecdecError(f"--{name} belongs to --from_target; add it, or drop --{name}")
  if os.path.lexists(out):
    raise SpecdecError(f"{out} exists; give a new folder or remove it first")


def _texts(path: str) -> inputs_lib.Inputs:
  inputs = inputs_lib.read((), path)
  for i, text in enumerate(inputs.texts):
    if not text.strip():
      raise SpecdecError(f"{inputs.where(i)} is empty; expected a text per line: remove it")
  return inputs


def _from_texts(flags: Flags, inputs: inputs_lib.Inputs) -> _Found:
  vocabulary = _vocabulary(flags)
  return _Found([vocabulary.encode(text) for text in inputs.texts], vocabulary,
                f"texts in {_name(inputs.origin)}", inputs.where)


def _from_ids(flags: Flags, lines: list[str]) -> _Found:
  where = lambda i: f"line {i + 1} of {flags.ids_file}"
  sequences = [_ids(line, where(i)) for i, line in enumerate(lines)]
  return _Found(sequences, _vocabulary(flags), f"ids in {_name(flags.ids_file)}", where)


def _ids(line: str, where: str) -> list[int]:
  """The ids that a line of JSON holds."""
  try:
    found = json.loads(line)
  except (ValueError, RecursionError) as error:
    raise SpecdecError(f"{where} is not JSON: {error}") from None
  ids = found.get("output_ids") if isinstance(found, dict) else found
  if not isinstance(ids, list) or not all(type(i) is int for i in ids):
    raise SpecdecError(f"{where} holds no list of ids; expected [37, 5, 1], or an object with "
                       "such output_ids, as specdec generate --output_file writes it")
  return ids


def _vocabulary(flags: Flags) -> "BaseVocabulary":
  """Of the pair; of the file alone where no pair is named."""
  if flags.vocab is not None and flags.target is None and not flags.given("pair"):
    from specdec.engine import ngrams

    return ngrams.named_vocabulary(flags.vocab)
  return pairs.vocabulary(flags)


def _from_target(flags: Flags, inputs: inputs_lib.Inputs) -> _Found:
  """What the target says to each text, plainly."""
  from specdec.engine import generate

  records: list = []
  try:
    pair = pairs.load(flags, None)
    job = generate.iterate(
        pair, inputs.texts, task=pairs.task(flags), mode="plain",
        temperature=flags.temperature, seed=flags.seed, batch_size=flags.batch_size)
    if progress.wanted(len(inputs.texts), output_elsewhere=True):
      job = progress.track(job, len(inputs.texts))
    for record in job:
      records.append(record)
  except KeyboardInterrupt:
    raise KeyboardInterrupt(f"{len(records)} of {len(inputs.texts)} texts were decoded, nothing "
                            "is written") from None
  except InputError as error:
    raise SpecdecError(f"{inputs.where(error.index)} {error.problem}") from error
  except Exception as error:
    told = faults.told(error, "--batch_size")
    if told is None:
      raise
    raise told from error
  source = f"outputs of {_name(pair.target.name)} for texts in {_name(inputs.origin)}"
  return _Found([record.output_ids for record in records], pair.vocabulary, source, inputs.where)


def _show(flags: Flags, args: Sequence[str]) -> int:
  if len(args) not in (1, 2):
    raise SpecdecError(f"{len(args)} arguments are given; expected a folder and perhaps a text: "
                       "specdec ngram show DIR [TEXT]")
  from specdec.checkpoints import drafter_folder
  from specdec.engine import ngrams

  folder = drafter_folder.load(args[0])
  tables = ngrams.tables_of(folder)
  vocabulary = None
  if len(args) == 2:
    vocabulary = _vocabulary(flags)
    ngrams.check_vocabulary(folder, vocabulary)
  outputs.print_line(f"{args[0]}: {ngrams.describe(tables)}, {_size(args[0]) / 1000:.4g} kB")
  outputs.print_line(f"from {folder.source or 'an unnamed source'}; vocabulary fingerprint "
                     f"{folder.vocabulary[:12]}")
  if vocabulary is None:
    return 0
  ids = vocabulary.encode(args[1])
  after = ngrams.after(tables, ids[:-1] if ids[-1:] == [vocabulary.eos_id] else ids)
  used = vocabulary.pieces(after.history)
  if after.history[:1] == [0] and len(used) == len(ids):
    used[0] = "the start"
  outputs.print_line(f"after {' '.join(used) or 'anything'}: {len(after.tokens)} successors")
  likeliest = list(zip(after.tokens, after.probs))[:_SHOWN]
  outputs.print_table(("piece", "id", "probability"), [
      (vocabulary.pieces([token])[0], str(token), f"{p:.4f}") for token, p in likeliest])
  return 0


def _name(path: str) -> str:
  """A path without the folders above, which are this machine's."""
  return pathlib.Path(path).name or path


def _size(path: str) -> int:
  return sum(file.stat().st_size for file in pathlib.Path(path).rglob("*") if file.is_file())
