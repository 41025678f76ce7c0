"""The tasks of the paper as T5 prepared them: English to German, and CNN/DailyMail.

Names, data sets with their versions, prefixes and metrics are those of T5's own task
registry, the lengths those of its fine-tuning and evaluation. What is here is data alone;
`tasks.make` makes seqio tasks of it.
"""

import dataclasses

from specdec.errors import SpecdecError


@dataclasses.dataclass(frozen=True)
class Definition:
  """A task over a data set of TensorFlow Datasets.

  Attributes:
    name: T5's.
    short: what may be typed instead.
    tfds_name: data set, configuration and version.
    splits: of the data set.
    inputs_field: what is read.
    targets_field: what is to be written.
    prefix: put before every input.
    metrics: names out of `metrics.METRICS`.
    inputs_length: most tokens of an input, EOS included.
    targets_length: most tokens of an output, likewise.
  """

  name: str
  short: str
  tfds_name: str
  inputs_field: str
  targets_field: str
  prefix: str
  metrics: tuple[str, ...]
  splits: tuple[str, ...] = ("train", "validation", "test")
  inputs_length: int = 512
  targets_length: int = 512

  def check_split(self, split: str) -> None:
    """Refuses a split that there is not.

    Raises:
      SpecdecError: names those that there are.
    """
    if split not in self.splits:
      raise SpecdecError(f"the task {self.name} has no split {split!r}; it has: "
                         f"{', '.join(self.splits)}")


DEFINITIONS = (
    # newstest2013 for validation and newstest2014 for testing.
    Definition("wmt_t2t_ende_v003", "ende", "wmt_t2t_translate/de-en:1.0.0", "en", "de",
               "translate English to German: ", ("bleu",)),
    Definition("cnn_dailymail_v002", "cnndm", "cnn_dailymail:3.4.0", "article", "highlights",
               "summarize: ", ("rouge",)),
)


def find(name: str) -> Definition | None:
  """The task of a name, T5's or the short one; None when there is none."""
  return next((d for d in DEFINITIONS if name in (d.name, d.short)), None)


def listed() -> str:
  """The names, for messages."""
  return ", ".join(f"{d.name} (or {d.short})" for d in DEFINITIONS)
