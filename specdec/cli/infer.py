"""`specdec infer`: a file of records into shards of JSON lines, for runs that take long."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import json
import pathlib
import signal
import sys
import tempfile
from typing import TYPE_CHECKING
from typing import Any

from specdec import version
from specdec.cli import decoding
from specdec.cli import faults
from specdec.cli import gin_bindings
from specdec.cli import hosts
from specdec.cli import outputs
from specdec.cli import pairs
from specdec.cli import progress
from specdec.cli import totals
from specdec.cli.flags import Flags
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.data.lines import LineFile
  from specdec.engine.hosts import Alone
  from specdec.engine.hosts import Group
  from specdec.engine.infer import Inference
  from specdec.engine.run_folder import RunFolder

INTRO = """\
specdec infer: decodes a file into a folder, shard by shard; for runs that take long.

Usage
  specdec infer --input_file=FILE --output_dir=DIR [FLAGS]
  some-command | specdec infer --input_file=- --output_dir=DIR [FLAGS]

Each shard is a file of JSON lines, a line per output in the order of the inputs. It is
there whole or not at all. Killed at any moment, the same command goes on where it was,
and the files are the same, byte for byte, as if nothing had happened. A line that
cannot be decoded becomes a line with an "error". summary.json counts what there is.

Started on several hosts at once, they share the shards (docs/scale.md says how)."""

OUTRO = """\
Examples
  specdec infer --input_file=in.txt --output_dir=out
  specdec infer --input_file=in.jsonl --field=text --output_dir=out --shard_size=10000
  specdec infer --input_file=in.tsv --field=2 --output_dir=out --gamma=auto
  specdec infer --gin_file=runs/infer.gin --gin.INPUT="'in.txt'" --gin.OUTPUT="'out'"
  specdec infer --gin_file=out/operative.gin --output_dir=again
  specdec infer --input_file=in.txt --output_dir=/shared/out \\
    --coordinator_address=10.0.0.2:8476 --num_processes=2 --process_id=0"""

# What other files of the folder are called.
_OPERATIVE, _SUMMARY = "operative.gin", "summary.json"


def make_flags() -> Flags:
  """The command's flags. Defaults of settings are those of `Settings`."""
  flags = Flags("infer", INTRO, OUTRO)
  flags.group("Input and output")
  flags.text("input_file", None, "FILE", "UTF-8, a record a line; - is standard input, which is "
             "kept in a temporary file meanwhile")
  flags.text("format", None, "text|tsv|jsonl", "what a line is [by the file's name: .tsv, .jsonl, "
             "else text]")
  flags.text("field", None, "NAME", "which part of a line is the text: of jsonl a name [input]; "
             "of tsv a column's number [1], or a name in a first line of names")
  flags.text("seqio_task", None, "NAME", "inputs of a task of seqio instead of a file, with the "
             "prefix that it gives them: wmt_t2t_ende_v003 (or ende), cnn_dailymail_v002 (or "
             "cnndm), or one that --task_module registers")
  flags.text("task_module", None, "MODULE", "Python module that registers tasks with seqio when it "
             "is imported")
  flags.text("split", None, "NAME", "part of the task's data [test]")
  flags.text("tfds_data_dir", None, "DIR", "where data sets of TensorFlow Datasets lie [their "
             "usual place]")
  flags.text("output_dir", None, "DIR", "folder for the shards")
  flags.whole("shard_size", 1000, "inputs per shard; an open one is decoded again after a crash")
  flags.switch("overwrite", "replace the shards of another run")
  flags.group("Model")
  pairs.add_flags(flags)
  pairs.add_run_flags(flags)
  decoding.add_flags(flags, per_input=False)
  hosts.add_flags(flags)
  gin_bindings.add_flags(flags)
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command. What can be refused without the models is refused first."""
  from specdec.engine.settings import PER_ROW
  from specdec.engine.settings import whole

  bound = gin_bindings.of_flags(flags)
  with contextlib.ExitStack() as stack:
    # First of all, so that whatever one host lacks is told by all of them.
    group = hosts.join(flags, stack)
    given = decoding.settings(flags, bound)
    for name in PER_ROW:
      if isinstance(given.get(name), list | tuple):
        raise SpecdecError(f"Settings.{name} is a list, a value per input; specdec infer expects "
                           "one value for all inputs")
    whole("shard_size", flags.shard_size, 1, 2**31)
    if args:
      raise SpecdecError(f"there are texts ({args[0]!r}); specdec infer reads an --input_file, and "
                         "specdec generate takes texts")
    _check_input(flags, group)
    allowed = decoding.read_allowed(flags)
    pairs.check(flags)
    stopped = _Stop(group)
    if group.num_processes > 1:
      # The others would take a process that just ends for one that has failed.
      stack.enter_context(stopped)
    lines = stack.enter_context(_lines(flags))
    with faults.in_a_line(faults.DECODING):
      _run(flags, bound, given, lines, allowed, stack, group, stopped)
  return 0


def _check_input(flags: Flags, group: "Group | Alone") -> None:
  """Refuses a missing or a second input, and what does not belong to the one there is."""
  if group.num_processes > 1 and flags.input_file == "-":
    raise SpecdecError("--input_file is -, and several processes read it; give a file that all "
                       "hosts see")
  if flags.input_file is not None and flags.seqio_task is not None:
    raise SpecdecError("--input_file does not go with --seqio_task; drop one of the two")
  if not (flags.input_file or flags.seqio_task) or not flags.output_dir:
    lacking = "output_dir" if flags.input_file or flags.seqio_task else "input_file"
    raise SpecdecError(f"--{lacking} is missing; expected specdec infer --input_file=FILE "
                       "--output_dir=DIR")
  of_tasks = ("task_module", "split", "tfds_data_dir")
  for name in ("format", "field", "task") if flags.seqio_task else of_tasks:
    if flags.named(name):
      raise SpecdecError(f"--{name} does not go with "
                         f"--{'seqio_task' if flags.seqio_task else 'input_file'}; drop it")


def _run(flags: Flags, bound: gin_bindings.Bound, given: dict[str, Any], lines: "LineFile",
         allowed: list[str] | None, stack: contextlib.ExitStack, group: "Group | Alone",
         stopped: "_Stop") -> None:
  from specdec.engine import fingerprint
  from specdec.engine.hosts import shares
  from specdec.engine.infer import Inference

  pair = pairs.load(flags, pairs.dtype(flags))
  logits_fn = None
  if allowed is not None:
    logits_fn = decoding.allowed_sequences(pair, allowed, flags.allowed_file, given)
  # What a task of seqio gives has its prefix.
  task = "" if flags.seqio_task else pairs.task(flags)
  work = Inference(pair, lines, flags.shard_size, given, task=task,
                   prompt=flags.prompt, logits_fn=logits_fn, costs=bound.costs)
  identity = {
      "specdec": version.__version__, "settings": dataclasses.asdict(work.settings),
      "task": flags.task, "prompt": flags.prompt, "allowed": allowed,
      "dtype": pair.target.config.dtype, "drafter": pair.drafter.name,
      "weights": fingerprint.fingerprint(pair), "shard_size": flags.shard_size,
      "input": {"sha256": lines.digest, "format": lines.kind, "field": lines.field}}
  folder, left = _open(flags, work, identity, stack, group)
  done = lambda: f"{len(folder.done())} of {work.shards} shards are in {flags.output_dir}"
  group.kept = lambda: f"{done()}; the same command goes on"
  if group.process_id == 0:
    folder.write(_OPERATIVE, gin_bindings.operative(flags, work.settings, work.costs))
    if len(left) < work.shards:
      print(f"{work.shards - len(left)} of {work.shards} shards are there already; going on",
            file=sys.stderr)
  with contextlib.nullcontext() if group.num_processes > 1 else stopped:
    with _progress(work, folder, group) as tell:
      finished = work.run(folder, outputs.to_json, tell, stopped, shares(group, "shards", left))
  ends = group.gather("finished", finished)
  if group.process_id == 0:
    finished = all(ends)
    if finished:
      folder.wait_for(left)
      _summarise(flags, work, folder)
    group.publish("finished", finished)
  if not group.wait("finished"):
    group.finish()
    raise KeyboardInterrupt(f"{done()}; the same command goes on")


def _open(flags: Flags, work: "Inference", identity: dict[str, Any], stack: contextlib.ExitStack,
          group: "Group | Alone") -> "tuple[RunFolder, list[int]]":
  """The folder, and the shards that are to be decoded; the same in all processes."""
  from specdec.engine.run_folder import RunFolder

  if group.process_id == 0:
    folder = stack.enter_context(
        RunFolder(flags.output_dir, identity, work.shards, flags.overwrite))
    work.pin(folder)
    left = sorted(set(range(work.shards)) - set(folder.done()))
    token = folder.share() if group.num_processes > 1 else ""
    group.publish("begin", {"token": token, "left": left})
    return folder, left
  begin = group.wait("begin")
  folder = stack.enter_context(
      RunFolder(flags.output_dir, identity, work.shards, token=begin["token"]))
  work.pin(folder)
  return folder, begin["left"]


def _summarise(flags: Flags, work: "Inference", folder: "RunFolder") -> None:
  """Counts what became of the inputs, in a file and in a line."""
  counts = work.counts(folder)
  folder.write(_SUMMARY, json.dumps(dataclasses.asdict(counts) | {
      "alpha": counts.accepted / counts.tested if counts.tested else None,
      "tokens_per_call": counts.tokens / counts.target_calls if counts.target_calls else None,
      "lossless": work.settings.lossless, "shards": work.shards}, indent=1))
  totals.report(counts, work.settings, flags.output_dir)
  if counts.failed:
    print(f"warning: {counts.failed} of {work.lines.count} inputs could not be decoded; their "
          "lines say why, in \"error\"", file=sys.stderr)


class _Stop:
  """Whether the run was asked to end: a first SIGTERM lets every process finish its shard."""

  def __init__(self, group: "Group | Alone"):
    self._group = group

  def __call__(self) -> bool:
    return self._group.stopping

  def _ask(self, number: int, frame: Any) -> None:
    self._group.stop()
    print("ending after this shard", file=sys.stderr)

  def __enter__(self) -> "_Stop":
    try:
      self._before = signal.signal(signal.SIGTERM, self._ask)
    except ValueError:  # Not in the main thread: somebody else's signals.
      self._before = None
    return self

  def __exit__(self, *exc_info) -> None:
    if self._before is not None:
      signal.signal(signal.SIGTERM, self._before)


@contextlib.contextmanager
def _lines(flags: Flags) -> Iterator["LineFile"]:
  """The input; standard input and tasks out of a temporary file."""
  from specdec.data import lines

  if flags.input_file not in (None, "-"):
    yield lines.LineFile(flags.input_file, flags.format, flags.field)
    return
  lines.format_of("", flags.format)
  pieces, kind, name = _piped(), flags.format or "text", "standard input"
  if flags.seqio_task is not None:
    pieces, kind, name = _task(flags), "jsonl", f"the task {flags.seqio_task}"
  with tempfile.TemporaryDirectory(prefix="specdec-") as folder:
    spool = pathlib.Path(folder) / "input"
    try:
      with open(spool, "wb") as f:
        for piece in pieces:
          f.write(piece)
    except OSError as error:
      raise SpecdecError(f"cannot keep {name} in {folder}: {error.strerror or error}; set TMPDIR "
                         "to a folder with more room") from error
    yield lines.LineFile(spool, kind, flags.field, name=name)


def _piped() -> Iterator[bytes]:
  """Standard input, piece by piece."""
  if sys.stdin is None or sys.stdin.closed:
    raise SpecdecError("standard input is closed; pipe lines in, or name an --input_file")
  while piece := sys.stdin.buffer.read(2**20):
    yield piece


def _task(flags: Flags) -> Iterator[bytes]:
  """The inputs of a task as JSON lines."""
  with progress.status() as say:
    say("starting seqio")
    from specdec.evaluation import examples
    from specdec.evaluation import vocabulary

    say("reading the task")
    for text in examples.texts(
        flags.seqio_task, vocabulary.of_models(pairs.vocabulary(flags)),
        split=flags.split or "test", data_dir=flags.tfds_data_dir, module=flags.task_module):
      yield (json.dumps({"input": text}) + "\n").encode()


@contextlib.contextmanager
def _progress(work: "Inference", folder: "RunFolder", group: "Group | Alone"
              ) -> Iterator[Callable[[dict], None]]:
  """A bar over the inputs, on a terminal; none where others do part of them."""
  left = sum(min(work.shard_size, work.lines.count - shard * work.shard_size)
             for shard in range(work.shards) if not folder.is_done(shard))
  if group.num_processes > 1 or not progress.wanted(left, output_elsewhere=True):
    yield lambda record: None
    return
  with progress.bar(left * work.settings.num_decodes) as bar:
    def tell(record: dict[str, Any]) -> None:
      if "error" in record:
        bar.add(0, 0, 0, outputs=work.settings.num_decodes)
      else:
        bar.add(len(record["output_ids"]) - record["prompt_tokens"], record["tested"],
                record["accepted"])
    yield tell
