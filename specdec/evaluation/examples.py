"""A split of a task, read and tokenised: what an evaluation decodes and measures."""

from collections.abc import Iterator
import contextlib
import dataclasses
import importlib
import inspect
from typing import Any

from specdec.data.base import BaseVocabulary
from specdec.data.tasks import make
from specdec.data.tasks import metrics
from specdec.data.tasks import t5
from specdec.data.tasks.extra import seqio
from specdec.data.tasks.local import LocalTask
from specdec.errors import SpecdecError


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
  """A split of a task.

  Attributes:
    task: of seqio, under the vocabulary of the models.
    split: which of its splits.
    evaluator: seqio's, with the data in memory.
    inputs: texts as they are tokenised, prefix included.
    targets: references.
    max_source_len: most tokens of an input; None for the pair's limit.
    max_decode_len: most tokens of an output; likewise.
  """

  task: seqio.Task
  split: str
  evaluator: seqio.Evaluator
  inputs: list[str]
  targets: list[str]
  max_source_len: int | None = None
  max_decode_len: int | None = None

  def __len__(self) -> int:
    return len(self.inputs)

  @property
  def vocabulary(self) -> seqio.Vocabulary:
    """That of the references and predictions."""
    return self.task.output_features["targets"].vocabulary

  def limits(self) -> dict[str, int]:
    """The settings that the task decides."""
    found = {"max_source_len": self.max_source_len, "max_decode_len": self.max_decode_len}
    return {name: value for name, value in found.items() if value is not None}


def read(task: str | LocalTask | seqio.Task, vocabulary: BaseVocabulary, *, split: str = "test",
         num_examples: int | None = None, data_dir: str | None = None,
         module: str | None = None) -> Examples:
  """Reads a split of a task.

  Args:
    task: T5's name of a task, a short one, or one that `module` registers; local files; or a
      task of seqio's.
    vocabulary: of the models that will decode.
    split: name of a split.
    num_examples: only so many of the first; None for all.
    data_dir: of TensorFlow Datasets.
    module: Python module that registers tasks with seqio when it is imported.

  Raises:
    SpecdecError: there is no such task or split, its data cannot be read, or a package that
      its metrics need is missing.
  """
  if isinstance(task, LocalTask):
    metrics.check(task.metrics)
    pairs = task.read(split)[:num_examples]
    return _read(make.local_task(task, split, pairs, vocabulary), split, None,
                 task.inputs_length, task.targets_length)
  definition = t5.find(task) if isinstance(task, str) else None
  if definition is not None:
    definition.check_split(split)
    metrics.check(definition.metrics)
    found = make.t5_task(definition, vocabulary, data_dir=data_dir)
    dataset = definition.tfds_name.partition("/")[0].partition(":")[0]
    with _readable(found, split, f"; make the data set with: tfds build {dataset}, or name the "
                   "folder that it is in: --tfds_data_dir"):
      return _read(found, split, num_examples, definition.inputs_length,
                   definition.targets_length)
  found = _registered(task, module) if isinstance(task, str) else task
  _check_split(found, split)
  with _readable(found, split):
    return _read(make.with_vocabulary(found, vocabulary), split, num_examples)


def texts(name: str, vocabulary: BaseVocabulary, *, split: str = "test",
          data_dir: str | None = None, module: str | None = None) -> Iterator[str]:
  """Inputs of a split in order, as they are tokenised, prefix included; read as they are asked for.

  Args:
    name: T5's name of a task, a short one, or one that `module` registers.
    vocabulary: of the models that will decode.
    split: name of a split.
    data_dir: of TensorFlow Datasets.
    module: Python module that registers tasks with seqio when it is imported.

  Raises:
    SpecdecError: there is no such task or split, or its data cannot be read.
  """
  definition = t5.find(name)
  if definition is not None:
    definition.check_split(split)
    task = make.t5_task(definition, vocabulary, data_dir=data_dir)
  else:
    task = make.with_vocabulary(_registered(name, module), vocabulary)
    _check_split(task, split)
  lengths = {"inputs": 2**20, "targets": 2**20} if any(
      _needs_length(step) for step in task.preprocessors) else None
  with _readable(task, split):
    data = task.get_dataset(lengths, split=split, shuffle=False, trim_output_features=False)
    for example in data.as_numpy_iterator():
      yield _text(example, "inputs", task)


def _check_split(task: seqio.Task, split: str) -> None:
  if split not in task.splits:
    raise SpecdecError(f"the task {task.name} has no split {split!r}; it has: "
                       f"{', '.join(task.splits)}")


def _registered(name: str, module: str | None) -> seqio.Task:
  """A task that a module of the user's registers."""
  if module is not None:
    try:
      importlib.import_module(module)
    except (Exception, SystemExit) as error:
      # It is the user's program: whatever it raises is for its author.
      hint = "; drop the .py" if module.endswith(".py") else ""
      raise SpecdecError(f"cannot import the module {module!r} of tasks: "
                         f"{type(error).__name__}: {error}{hint}; it is looked for on PYTHONPATH"
                         ) from error
  if name not in seqio.TaskRegistry.names():
    theirs = "".join(f", {other}" for other in sorted(seqio.TaskRegistry.names()))
    raise SpecdecError(f"there is no task {name!r}; expected one of {t5.listed()}{theirs}, or "
                       "local files: --data_file, or --inputs_file and --targets_file")
  return seqio.TaskRegistry.get(name)


@contextlib.contextmanager
def _readable(task: seqio.Task, split: str, hint: str = ""):
  """Tells in a line that a task's data cannot be had."""
  try:
    yield
  except (SpecdecError, KeyboardInterrupt, MemoryError):
    raise
  except Exception as error:
    # TensorFlow Datasets, TensorFlow and tasks of users raise a dozen types.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # TensorFlow Datasets goes on with what to call in Python.
    reason = lines[0].partition(". Please")[0] if lines else type(error).__name__
    raise SpecdecError(f"cannot read the split {split} of the task {task.name}: "
                       f"{reason[:300].rstrip('.')}{hint}") from error


def _read(task: seqio.Task, split: str, num_examples: int | None = None,
          max_source_len: int | None = None, max_decode_len: int | None = None) -> Examples:
  lengths = None
  if any(_needs_length(step) for step in task.preprocessors):
    lengths = {"inputs": max_source_len or 512, "targets": max_decode_len or 512}
  # Inputs are not trimmed here: the engine does it by the same rule, and counts them.
  with make.registered(task) as name:
    evaluator = seqio.Evaluator(
        name, seqio.EncDecFeatureConverter(pack=False), eval_split=split,
        sequence_length=lengths, num_examples=num_examples, async_compute_metrics=False)
  if not evaluator.eval_tasks:
    raise SpecdecError(f"the task {task.name} has no metrics; expected one with metric_fns")
  predictions = seqio.metrics.ModelOutputType.PREDICTION
  if any(metric.model_output_type != predictions for metric in task.metric_objs):
    raise SpecdecError(f"the task {task.name} measures scores of its references; expected "
                       "metrics of predictions alone")
  inputs, targets = [], []
  for example in evaluator.cached_task_datasets[name].as_numpy_iterator():
    inputs.append(_text(example, "inputs", task))
    targets.append(_text(example, "targets", task))
  if not inputs:
    raise SpecdecError(f"the split {split} of the task {task.name} is empty")
  return Examples(task, split, evaluator, inputs, targets, max_source_len, max_decode_len)


def _needs_length(step: Any) -> bool:
  parameter = inspect.signature(step).parameters.get("sequence_length")
  return parameter is not None and parameter.default is inspect.Parameter.empty


def _text(example: dict[str, Any], name: str, task: seqio.Task) -> str:
  """A text before it was tokenised, where the task keeps it."""
  kept = example.get(f"{name}_pretokenized")
  if isinstance(kept, bytes):
    return kept.decode("utf-8", "replace")
  return task.output_features[name].vocabulary.decode(example[name].tolist())
