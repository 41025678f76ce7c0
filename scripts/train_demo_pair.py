"""Trains the pair that ships with specdec: vocabulary, target and drafter.

Runs in stages, each resumable and each skipped when its result is there:

  vocab    a sentencepiece vocabulary of 4096 pieces
  target   the target, from the data
  outputs  the target's own greedy outputs on the training sources
  drafter  the drafter, distilled from those outputs

    python scripts/train_demo_pair.py --data_dir=multi30k --work_dir=demo_run

`data_dir` holds the files of the public repository multi30k/dataset, task 1:
train.en.gz, train.de.gz, val.en.gz, val.de.gz. Afterwards
`scripts/export_demo_pair.py` writes the package data and the model card.
"""

import gzip
import pathlib
import random

from absl import app
from absl import flags
from absl import logging
import numpy as np
import sentencepiece

from specdec.models.t5.config import T5Config
from specdec.models.t5.network import T5
from specdec.training import batches as batches_lib
from specdec.training import corrupt as corrupt_lib
from specdec.training import precision
from specdec.training import trainer

_DATA = flags.DEFINE_string("data_dir", None, "Folder with the multi30k files.", required=True)
_WORK = flags.DEFINE_string("work_dir", None, "Folder for everything written.", required=True)
_STAGE = flags.DEFINE_enum("stage", "all", ["all", "vocab", "target", "outputs", "drafter"],
                           "What to run.")
_TARGET_STEPS = flags.DEFINE_integer("target_steps", 5000, "Updates of the target.")
_DRAFTER_STEPS = flags.DEFINE_integer("drafter_steps", 3000, "Updates of the drafter.")
_TOKENS = flags.DEFINE_integer("tokens", 4096, "Source plus target slots of a batch.")

PREFIXES = {"translate": "translate English to German: ", "correct": "correct: "}
WIDTHS = (16, 20, 24, 28, 32, 40, 48, 64)

TARGET = T5Config(vocab_size=4096, emb_dim=256, num_heads=4, head_dim=64, mlp_dim=704,
                  num_encoder_layers=3, num_decoder_layers=3, dropout_rate=0.1)
DRAFTER = T5Config(vocab_size=4096, emb_dim=128, num_heads=2, head_dim=64, mlp_dim=256,
                   num_encoder_layers=2, num_decoder_layers=1, dropout_rate=0.0)


def read_lines(name: str) -> list[str]:
  """Lines of one gzipped file of the data folder."""
  with gzip.open(pathlib.Path(_DATA.value) / f"{name}.gz", "rt", encoding="utf-8") as f:
    return [line.strip() for line in f]


def train_vocabulary(path: pathlib.Path) -> None:
  """A unigram vocabulary with T5's special ids, over both languages."""
  sentences = read_lines("train.en") + read_lines("train.de")
  # Prefixes often enough to become few pieces.
  sentences += [p for p in PREFIXES.values() for _ in range(1000)]
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(sentences), model_prefix=str(path.with_suffix("")),
      vocab_size=4096, model_type="unigram", character_coverage=0.9999,
      pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2)


def correction_sources(clean: list[str], seed: int) -> list[str]:
  """One faulty version of every clean sentence, the same for the same seed."""
  rng = random.Random(seed)
  return [corrupt_lib.corrupt(text, rng) for text in clean]


class Examples:
  """Token ids of both tasks; corrections are drawn anew every epoch."""

  def __init__(self, vocabulary, split: str):
    self._encode = lambda texts: [ids + [1] for ids in vocabulary.encode(texts)]
    self.english, self.german = read_lines(f"{split}.en"), read_lines(f"{split}.de")
    self._english_ids = self._encode(self.english)
    self._translate = list(zip(
        self._encode([PREFIXES["translate"] + t for t in self.english]),
        self._encode(self.german)))

  def epoch(self, number: int, correct_share: float = 0.35):
    """All translations and a share of the captions to correct."""
    rng = np.random.default_rng((1, number))
    chosen = rng.random(len(self.english)) < correct_share
    picked = [i for i in range(len(chosen)) if chosen[i]]
    faulty = correction_sources([self.english[i] for i in picked], number)
    sources = self._encode([PREFIXES["correct"] + t for t in faulty])
    return self._translate + [(s, self._english_ids[i]) for s, i in zip(sources, picked)]


def epochs_of(examples_of, tokens):
  """Adapts `epoch number -> examples` to what `trainer.train` takes."""
  return lambda n: batches_lib.bucketed(
      examples_of(n), tokens, np.random.default_rng((2, n)), WIDTHS)


def train_target(work: pathlib.Path, vocabulary) -> None:
  training, validation = Examples(vocabulary, "train"), Examples(vocabulary, "val")
  recipe = trainer.Recipe(steps=_TARGET_STEPS.value)
  trainer.train(
      T5(TARGET, dot_general=precision.mixed_dot_general), recipe,
      epochs_of(training.epoch, _TOKENS.value), work / "target",
      list(epochs_of(lambda n: validation.epoch(n, 1.0), 2048)(0)), log=logging.info)


def main(argv):
  del argv
  work = pathlib.Path(_WORK.value)
  work.mkdir(parents=True, exist_ok=True)
  stages = ("vocab", "target", "outputs", "drafter")
  wanted = stages if _STAGE.value == "all" else (_STAGE.value,)
  vocab_path = work / "vocab.model"
  if "vocab" in wanted and not vocab_path.exists():
    train_vocabulary(vocab_path)
  vocabulary = sentencepiece.SentencePieceProcessor(model_file=str(vocab_path))
  if "target" in wanted:
    train_target(work, vocabulary)


if __name__ == "__main__":
  app.run(main)
