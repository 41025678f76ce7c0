"""`specdec eval`: metrics of a pair on a task of seqio, or on local files."""

from collections.abc import Sequence
import contextlib
import json
import pathlib
from typing import TYPE_CHECKING
from typing import Any

from specdec.cli import decoding
from specdec.cli import faults
from specdec.cli import gin_bindings
from specdec.cli import outputs
from specdec.cli import pairs
from specdec.cli import progress
from specdec.cli import totals
from specdec.cli.flags import Flags
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.data.tasks.local import LocalTask
  from specdec.evaluation.evaluate import Evaluation
  from specdec.evaluation.evaluate import Side

INTRO = """\
specdec eval: decodes a split of a task and measures what comes out.

Usage
  specdec eval [FLAGS] --task=NAME
  specdec eval [FLAGS] --data_file=FILE
  specdec eval [FLAGS] --inputs_file=FILE --targets_file=FILE

Tasks are those of seqio (pip install 'specdec-jax[seqio]'), over TensorFlow Datasets or
over local files. Metrics go to standard output, and with --output_dir into
results.json, with every prediction in predictions.jsonl and all that took effect in
operative.gin."""

OUTRO = """\
Examples
  specdec eval --data_file=newstest.tsv --prefix="translate English to German: "
  specdec eval --inputs_file=test.en.gz --targets_file=test.de.gz --task=ende \\
    --baseline=plain --output_dir=results
  specdec eval --data_file={split}.jsonl --split=dev --inputs_field=source \\
    --targets_field=targets.0 --prefix="summarize: " --metrics=rouge
  specdec eval --gin_file=runs/eval.gin --gin_file=tasks/tsv.gin --gin.INPUT="'in.tsv'"
  specdec eval --target=t5x/checkpoint_1000000 --drafter=t5_small --vocab=spiece.model \\
    --task=wmt_t2t_ende_v003 --split=validation"""

_PREDICTIONS, _RESULTS, _OPERATIVE = "predictions.jsonl", "results.json", "operative.gin"
_LOCAL = ("data_file", "inputs_file", "targets_file")
_LOCAL_DETAILS = ("data_format", "inputs_field", "targets_field", "prefix", "metrics")


def make_flags() -> Flags:
  """The command's flags. Defaults of settings are those of `Settings`."""
  flags = Flags("eval", INTRO, OUTRO)
  flags.group("Task")
  flags.text("task", None, "NAME", "wmt_t2t_ende_v003 (or ende), cnn_dailymail_v002 (or cnndm), or "
             "one that --task_module registers; with local files, whose prefix, metrics and "
             "lengths they have, or any name")
  flags.text("task_module", None, "MODULE", "Python module that registers tasks with seqio when it "
             "is imported; they are tokenised with the pair's vocabulary")
  flags.text("split", "test", "NAME", "part of the data")
  flags.whole("num_examples", None, "only so many of the first examples")
  flags.text("tfds_data_dir", None, "DIR", "where data sets of TensorFlow Datasets lie [their "
             "usual place]")
  flags.group("Local data")
  flags.text("data_file", None, "FILE", "TSV or JSON lines; {split} in a name stands for the "
             "split, and names in .gz are unpacked")
  flags.text("data_format", None, "tsv|jsonl", "of --data_file [by its name]")
  flags.text("inputs_field", None, "FIELD", "a column, counted from 1; a column's name in the "
             "first line; or a field of JSON, such as text or texts.0 [1, or inputs]")
  flags.text("targets_field", None, "FIELD", "likewise [2, or targets]")
  flags.text("inputs_file", None, "FILE", "an input a line, instead of --data_file")
  flags.text("targets_file", None, "FILE", "their references, line by line")
  flags.text("prefix", None, "TEXT", "put before every input")
  flags.text("metrics", None, "NAME[,NAME]", "bleu, rouge, sequence_accuracy [bleu]")
  flags.group("Model")
  pairs.add_flags(flags)
  pairs.add_dtype(flags)
  decoding.add_flags(flags, per_input=False)
  flags.group("Output")
  flags.choice("baseline", ("none", "plain"), "none", "plain decodes plainly as well, in turns, "
               "and shows metrics and times of both")
  flags.text("output_dir", None, "DIR", "folder for predictions.jsonl, results.json and "
             "operative.gin")
  flags.switch("overwrite", "replace the files of another run")
  gin_bindings.add_flags(flags)
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command. What can be refused without data and models is refused first."""
  from specdec.engine.settings import whole

  if args:
    raise SpecdecError(f"eval takes its texts from a task, and {args[0]!r} was typed; name a "
                       "--task or local files")
  bound = gin_bindings.of_flags(flags)
  given = decoding.settings(flags, bound)
  if flags.baseline == "plain" and (given["mode"] == "plain" or given.get("gamma") == 0):
    raise SpecdecError("--baseline=plain compares with plain decoding, which this is itself; drop "
                       "it, or decode speculatively")
  if flags.num_examples is not None:
    whole("num_examples", flags.num_examples, 1, 2**31)
  task = _task(flags)
  allowed = decoding.read_allowed(flags)
  pairs.check(flags)
  with contextlib.ExitStack() as stack:
    folder, lines = None, None
    if flags.output_dir is not None:
      folder = outputs.claim_folder("--output_dir", flags.output_dir,
                                    (_PREDICTIONS, _RESULTS, _OPERATIVE), flags.overwrite)
      lines = stack.enter_context(
          outputs.OutputFile("--output_dir", str(folder / _PREDICTIONS), flags.overwrite))
    with faults.in_a_line(faults.DECODING):
      found = _evaluate(flags, task, given, bound, allowed, folder, lines)
    if folder is not None:
      _write(flags, folder, found)
  show(found)
  _report(found, flags.output_dir)
  return 0


def _task(flags: Flags) -> "str | LocalTask":
  """What is evaluated, checked as far as goes without seqio.

  Raises:
    SpecdecError: no such task, split, metric, file or field.
  """
  from specdec.data.tasks import metrics
  from specdec.data.tasks import t5
  from specdec.data.tasks.local import LocalTask

  known = t5.find(flags.task) if flags.task is not None else None
  if not any(getattr(flags, name) is not None for name in _LOCAL):
    for name in _LOCAL_DETAILS:
      if flags.named(name):
        raise SpecdecError(f"--{name} says something about local files; name them: --data_file, or "
                           "--inputs_file and --targets_file")
    if flags.task is None:
      raise SpecdecError("there is nothing to evaluate; name a --task or local files: --data_file, "
                         "or --inputs_file and --targets_file")
    if known is not None:
      known.check_split(flags.split)
      metrics.check(known.metrics)
    elif flags.task_module is None:
      raise SpecdecError(f"there is no task {flags.task!r}; expected one of {t5.listed()}, one "
                         "that a --task_module registers, or local files: --data_file, or "
                         "--inputs_file and --targets_file")
    return flags.task
  for name in ("task_module", "tfds_data_dir"):
    if flags.named(name):
      raise SpecdecError(f"--{name} does not go with local files; drop one of the two")
  details: dict[str, Any] = {"name": flags.task}
  if known is not None:
    details = {"name": known.name, "prefix": known.prefix, "metrics": known.metrics,
               "inputs_length": known.inputs_length, "targets_length": known.targets_length}
  details |= {name: getattr(flags, name) for name in (*_LOCAL, *_LOCAL_DETAILS)
              if getattr(flags, name) is not None}
  if flags.metrics is not None:
    details["metrics"] = tuple(dict.fromkeys(flags.metrics.split(",")))
  task = LocalTask(**details)
  metrics.check(task.metrics)
  task.read(flags.split)
  return task


def _evaluate(flags: Flags, task: "str | LocalTask", given: dict[str, Any],
              bound: gin_bindings.Bound, allowed: list[str] | None, folder: pathlib.Path | None,
              lines: outputs.OutputFile | None) -> "Evaluation":
  with progress.status() as say:
    say("starting seqio")
    from specdec.evaluation import evaluate
    from specdec.evaluation import examples as examples_lib
    from specdec.evaluation import vocabulary

    say("reading the task")
    examples = examples_lib.read(
        task, vocabulary.of_models(pairs.vocabulary(flags)), split=flags.split,
        num_examples=flags.num_examples, data_dir=flags.tfds_data_dir, module=flags.task_module)
    say("loading the models")
    pair = pairs.load(flags, pairs.dtype(flags))
  if flags.task in pair.tasks and not isinstance(task, str) and not flags.named("prefix"):
    raise SpecdecError(f"--task={flags.task} is a task of the pair {pair.name}, and with local "
                       f"files only a name; for its prefix type "
                       f"--prefix={pair.tasks[flags.task]!r}, for none --prefix=")
  options: dict[str, Any] = {"prompt": flags.prompt, "costs": bound.costs}
  if allowed is not None:
    options["logits_fn"] = decoding.allowed_sequences(pair, allowed, flags.allowed_file, given)
  count = len(examples) * given["num_decodes"]
  if progress.wanted(count, output_elsewhere=True):
    # Of the time that both sides take, the speed shown has its own alone.
    options["watch"] = lambda records, clock: progress.track(
        records, count, lambda: clock.seconds)
  if folder is not None and lines is not None:
    def keep(prediction: Any) -> None:
      if not lines.count:
        # What an earlier run found does not stand beside new predictions.
        for name in (_RESULTS, _OPERATIVE):
          (folder / name).unlink(missing_ok=True)
      lines.write(outputs.to_json(prediction.to_dict()))

    options["on_prediction"] = keep
  try:
    return evaluate.evaluate(pair, examples, baseline=flags.baseline == "plain", **options, **given)
  except KeyboardInterrupt:
    kept = f"{lines.count} of {len(examples)} predictions are in {lines.path}" if lines else ""
    raise KeyboardInterrupt(kept) from None


def _write(flags: Flags, folder: pathlib.Path, found: "Evaluation") -> None:
  """Writes results, and a gin file of all that took effect."""
  from specdec.bench import records

  fields = found.to_dict() | {"environment": records.environment()}
  text = json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
  outputs.write_bytes("--output_dir", folder / _RESULTS, text.encode())
  result = found.side.result
  operative = gin_bindings.operative(flags, result.settings, result.costs)
  outputs.write_bytes("--output_dir", folder / _OPERATIVE, operative.encode())


def show(found: "Evaluation") -> None:
  """Prints metrics, counts and times, and the verdict on both sides where there are two."""
  settings = found.side.result.settings
  sides = {settings.mode if settings.effective_gamma else "plain": found.side}
  if found.baseline is not None:
    sides = {"plain": found.baseline, **sides}
  rows = [[name, *(f"{side.metrics[name]:.4f}" for side in sides.values())]
          for name in found.side.metrics]
  rows += [[label, *(cell(side) for side in sides.values())] for label, cell in _ROWS]
  outputs.print_table(["", *sides], rows)
  outputs.print_line("")
  outputs.print_line(f"{found.task}, split {found.split}, {found.examples} examples; drafter "
                     f"{found.pair['drafter']}, gamma {settings.gamma}, {found.dtype}")
  if found.time_ratio is not None:
    speed = "faster" if found.time_ratio >= 1 else "SLOWER"
    outputs.print_line(f"{found.time_ratio:.2f}x: {speed} than plain decoding, batches of "
                       f"{settings.batch_size} in turns (compiling, tokenising and metrics aside)")
    outputs.print_line(f"identical outputs: {found.identical} of {found.examples}")
  if settings.num_decodes > 1:
    outputs.print_line(f"of {settings.num_decodes} samples of an input, the most likely counts")
  if not settings.lossless:
    outputs.print_line("NOT lossless: a lenient verifier lets through what the target would not "
                       "have said")


def _report(found: "Evaluation", written_to: str | None) -> None:
  """Says what went into the results, and warns of inputs that were cut and the like."""
  from specdec.engine.counts import Counts

  counts = Counts()
  for record in found.side.result.records:
    counts.add(record)
  totals.report(counts, found.side.result.settings, written_to)


def _alpha(side: "Side") -> str:
  return "-" if side.result.alpha is None else f"{side.result.alpha:.3f}"


_ROWS = (
    ("tokens", lambda side: str(side.result.tokens)),
    ("target calls", lambda side: str(side.result.target_calls)),
    ("tokens per call", lambda side: f"{side.result.tokens_per_call:.2f}"),
    ("alpha (accepted / tested)", _alpha),
    ("decoding, s", lambda side: f"{side.clock.seconds:.2f}"),
    ("tokens/s", lambda side: f"{side.tokens_per_s:.0f}"),
)
