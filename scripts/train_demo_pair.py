"""Trains the pair that ships with specdec: vocabulary, target and drafter.

Runs in stages, each resumable and each skipped when its result is there:

  vocab    a sentencepiece vocabulary of 4096 pieces
  target   the target, from the data
  outputs  the target's own greedy outputs on the training sources
  drafter  the drafter, distilled from those outputs

    python scripts/train_demo_pair.py --data_dir=multi30k --work_dir=demo_run

`data_dir` holds the files of the public repository multi30k/dataset, task 1:
train.en.gz, train.de.gz, val.en.gz, val.de.gz. The pair is then in
`work_dir/demo`, which `scripts/evaluate_demo_pair.py` measures.
"""

import dataclasses
import gzip
import json
import pathlib
import random

from absl import app
from absl import flags
from absl import logging
import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece

from specdec.checkpoints import bundle
from specdec.data.vocabulary import Vocabulary
from specdec.engine import generate
from specdec.engine import models
from specdec.engine import pairs
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
_TARGET_STEPS = flags.DEFINE_integer("target_steps", 3400, "Updates of the target.")
_DRAFTER_STEPS = flags.DEFINE_integer("drafter_steps", 4500, "Updates of the drafter.")
_SENTENCES = flags.DEFINE_integer("sentences", None, "Use only so many training sentences.")
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
    self._encode = lambda texts: [vocabulary.encode(t) for t in texts]
    self.english, self.german = read_lines(f"{split}.en"), read_lines(f"{split}.de")
    self._english_ids = self._encode(self.english)
    self._translate = list(zip(
        self._encode([PREFIXES["translate"] + t for t in self.english]),
        self._encode(self.german)))

  def epoch(self, number: int):
    """All translations, and corrections of a share of the captions.

    The share is a third at first and all from the sixth epoch on: translation takes
    longer to learn, and what it learns of English serves both.
    """
    correct_share = 0.35 if number < 5 else 1.0
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


def train_target(work: pathlib.Path, vocabulary):
  """Trains the target on translations and corrections; returns its parameters."""
  training, validation = Examples(vocabulary, "train"), Examples(vocabulary, "val")
  recipe = trainer.Recipe(steps=_TARGET_STEPS.value)
  return trainer.train(
      T5(TARGET, dot_general=precision.mixed_dot_general), recipe,
      epochs_of(training.epoch, _TOKENS.value), work / "target",
      list(epochs_of(lambda n: validation.epoch(5), 2048)(0)), log=logging.info)


def write_model(path: pathlib.Path, config: T5Config, params, vocabulary, source: str) -> None:
  """Saves a finished model as a bundle, bfloat16 on disk."""
  about = bundle.Bundle(dataclasses.replace(config, dropout_rate=0.0).to_dict(), params,
                        vocabulary.model, vocabulary.fingerprint, source)
  bundle.save(path, about, "bfloat16")


def write_outputs(work: pathlib.Path, vocabulary) -> None:
  """Greedy outputs of the finished target on the training sources, as token ids."""
  target = models.load_model(work / "demo" / "target", "float32")
  pair = pairs.Pair("demo", target, target)
  english = read_lines("train.en")[:_SENTENCES.value]
  texts = [PREFIXES["translate"] + t for t in english]
  texts += [PREFIXES["correct"] + t for t in correction_sources(english, 10_000)]
  sources = [vocabulary.encode(t) for t in texts]
  with open(work / "outputs.tmp", "w", encoding="utf-8") as f:
    chunk = 4096
    for begin in range(0, len(sources), chunk):
      result = generate.generate_ids(pair, sources[begin:begin + chunk], mode="plain",
                                     batch_size=64, max_decode_len=64)
      for source, record in zip(sources[begin:begin + chunk], result.records):
        if record.status == "eos":
          f.write(json.dumps([source, record.output_ids]) + "\n")
      logging.info("outputs: %d of %d", begin + len(result.records), len(sources))
  (work / "outputs.tmp").rename(work / "outputs.jsonl")


def train_drafter(work: pathlib.Path, vocabulary):
  """Distils the drafter on the target's own outputs and distributions."""
  with open(work / "outputs.jsonl", encoding="utf-8") as f:
    examples = [tuple(json.loads(line)) for line in f]
  held_out, training = examples[::50], [e for i, e in enumerate(examples) if i % 50]
  # Corrections are mostly copies, which even a small drafter learns soon: a third of
  # them leaves its time to translation.
  first = vocabulary.encode(PREFIXES["translate"])[0]
  training = [e for i, e in enumerate(training) if e[0][0] == first or i % 3 == 0]
  teacher = bundle.load(work / "demo" / "target").params
  teacher = jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float32)), teacher)
  recipe = trainer.Recipe(steps=_DRAFTER_STEPS.value, label_smoothing=0.0, distill_weight=0.7)
  dot = precision.mixed_dot_general
  return trainer.train(
      T5(DRAFTER, dot_general=dot), recipe,
      epochs_of(lambda n: training, _TOKENS.value), work / "drafter",
      list(epochs_of(lambda n: held_out, 2048)(0)),
      teacher=(T5(dataclasses.replace(TARGET, dropout_rate=0.0), dot_general=dot), teacher),
      log=logging.info)


def main(argv):
  del argv
  work = pathlib.Path(_WORK.value)
  work.mkdir(parents=True, exist_ok=True)
  stages = ("vocab", "target", "outputs", "drafter")
  wanted = stages if _STAGE.value == "all" else (_STAGE.value,)
  if "vocab" in wanted and not (work / "vocab.model").exists():
    train_vocabulary(work / "vocab.model")
  vocabulary = Vocabulary.load(work / "vocab.model")
  demo = work / "demo"
  if "target" in wanted and not (demo / "target").exists():
    params = train_target(work, vocabulary)
    write_model(demo / "target", TARGET, params, vocabulary,
                f"multi30k task 1, {_TARGET_STEPS.value} steps")
  if "outputs" in wanted and not (work / "outputs.jsonl").exists():
    write_outputs(work, vocabulary)
  if "drafter" in wanted and not (demo / "drafter").exists():
    params = train_drafter(work, vocabulary)
    write_model(demo / "drafter", DRAFTER, params, vocabulary,
                f"distilled from demo/target, {_DRAFTER_STEPS.value} steps")
    (demo / "pair.json").write_text(json.dumps({
        "target": "target", "drafter": "drafter", "drafters": {"bigram": "bigram"},
        "tasks": PREFIXES, "max_source_len": 128, "max_decode_len": 128},
        indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
  app.run(main)
