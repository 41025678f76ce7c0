"""seqio tasks out of definitions, of local files, and of what others have registered."""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses

from specdec.data.base import BaseVocabulary
from specdec.data.tasks import metrics as metrics_lib
from specdec.data.tasks.extra import seqio
from specdec.data.tasks.extra import tf
from specdec.data.tasks.local import LocalTask
from specdec.data.tasks.t5 import Definition
from specdec.data.tasks.vocabulary import TaskVocabulary


def t5_task(definition: Definition, vocabulary: BaseVocabulary, *,
            data_dir: str | None = None, source: seqio.DataSource | None = None) -> seqio.Task:
  """A task of T5's, over TensorFlow Datasets.

  Args:
    definition: which.
    vocabulary: of the models.
    data_dir: where data sets lie; None for the usual place.
    source: of the same examples, in place of TensorFlow Datasets.
  """
  source = source or seqio.TfdsDataSource(
      tfds_name=definition.tfds_name, tfds_data_dir=data_dir, splits=definition.splits,
      # An evaluation does not download for hours on the way.
      read_only=True)
  fields = (definition.inputs_field, definition.targets_field)
  return _task(definition.name, source, fields, definition.prefix, definition.metrics, vocabulary)


def local_task(task: LocalTask, split: str, pairs: Sequence[tuple[str, str]],
               vocabulary: BaseVocabulary) -> seqio.Task:
  """A task over texts that were read from local files.

  Args:
    task: for its name and metrics.
    split: what was read.
    pairs: from `LocalTask.read`, prefixes included.
    vocabulary: of the models.
  """
  inputs, targets = zip(*pairs)

  def dataset(split: str, shuffle_files: bool, seed: int | None = None) -> tf.data.Dataset:
    del split, shuffle_files, seed
    return tf.data.Dataset.from_tensor_slices({"inputs": list(inputs), "targets": list(targets)})

  source = seqio.FunctionDataSource(dataset, splits=[split],
                                    num_input_examples={split: len(pairs)})
  return _task(task.label, source, ("inputs", "targets"), "", task.metrics, vocabulary)


def with_vocabulary(task: seqio.Task, vocabulary: BaseVocabulary) -> seqio.Task:
  """A task that somebody has registered, with the vocabulary of the models in place of its own.

  Ids mean what the models take them for, and no vocabulary has to be fetched.
  """
  return task.replace(output_features={
      name: dataclasses.replace(feature, vocabulary=TaskVocabulary(vocabulary))
      for name, feature in task.output_features.items()})


@contextlib.contextmanager
def registered(task: seqio.Task) -> Iterator[str]:
  """Lends a task to seqio's registry, where an Evaluator looks for it by name."""
  name = task.name
  before = seqio.TaskRegistry.get(name) if name in seqio.TaskRegistry.names() else None
  seqio.TaskRegistry.remove(name)
  seqio.TaskRegistry.add_provider(name, task)
  try:
    yield name
  finally:
    seqio.TaskRegistry.remove(name)
    if before is not None:
      seqio.TaskRegistry.add_provider(name, before)


def _task(name: str, source: seqio.DataSource, fields: tuple[str, str], prefix: str,
          metrics: Sequence[str], vocabulary: BaseVocabulary) -> seqio.Task:
  feature = seqio.Feature(vocabulary=TaskVocabulary(vocabulary), add_eos=True)
  source_field, target_field = fields

  @seqio.map_over_dataset
  def text_to_text(example):
    return {"inputs": tf.strings.join([prefix, example[source_field]]),
            "targets": example[target_field]}

  return seqio.Task(
      name, source=source,
      preprocessors=[text_to_text, seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder(),
                     seqio.preprocessors.append_eos_after_trim],
      output_features={"inputs": feature, "targets": feature},
      metric_fns=[metrics_lib.METRICS[metric] for metric in metrics])
