"""Measures a pair on the multi30k test set and writes the figures as JSON.

    python scripts/evaluate_demo_pair.py --data_dir=multi30k --pair=demo --output=evaluation.json

BLEU of translations, exact match of corrections, and alpha (accepted / tested) of
the drafter, at temperature 0 and 1. Greedy speculative outputs are compared with
greedy plain ones.
"""

import gzip
import json
import pathlib
import random

from absl import app
from absl import flags
from absl import logging
import jax
import sacrebleu

import specdec
from specdec.training import corrupt

_DATA = flags.DEFINE_string("data_dir", None, "Folder with the multi30k files.", required=True)
_PAIR = flags.DEFINE_string("pair", "demo", "Pair to measure.")
_SPLIT = flags.DEFINE_string("split", "test_2016_flickr", "Part of the data.")
_LIMIT = flags.DEFINE_integer("limit", None, "Use only so many sentences.")
_BATCH = flags.DEFINE_integer("batch_size", 8, "Sentences decoded together.")
_GAMMA = flags.DEFINE_integer("gamma", 4, "Drafted tokens per target call.")
_SEED = flags.DEFINE_integer("corruption_seed", 2016, "Of the faulty sentences to correct.")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file to write; stdout by default.")


def read(language: str) -> list[str]:
  """Lines of one side of the split."""
  path = pathlib.Path(_DATA.value) / f"{_SPLIT.value}.{language}.gz"
  with gzip.open(path, "rt", encoding="utf-8") as f:
    return [line.strip() for line in f][:_LIMIT.value]


def main(argv):
  del argv
  pair = specdec.load_pair(_PAIR.value)
  english, german = read("en"), read("de")
  rng = random.Random(_SEED.value)
  faulty = [corrupt.corrupt(text, rng) for text in english]
  record = {
      "split": _SPLIT.value, "sentences": len(english), "gamma": _GAMMA.value,
      "batch_size": _BATCH.value, "dtype": pair.target.config.dtype,
      "backend": jax.default_backend(), "jax": jax.__version__, "results": []}

  for task, sources in (("translate", english), ("correct", faulty)):
    for temperature in (0.0, 1.0):
      row = {"task": task, "temperature": temperature}
      for mode in ("plain", "speculative"):
        result = specdec.generate(
            pair, sources, task=task, mode=mode, gamma=_GAMMA.value,
            temperature=temperature, batch_size=_BATCH.value)
        if task == "translate":
          row[f"{mode}_bleu"] = round(sacrebleu.corpus_bleu(result.texts, [german]).score, 2)
        else:
          hits = sum(a == b for a, b in zip(result.texts, english))
          row[f"{mode}_exact_match"] = round(hits / len(english), 4)
        if mode == "plain":
          plain_ids = result.ids
          continue
        row["alpha"] = round(result.alpha, 4)
        row["tokens_per_call"] = round(result.tokens_per_call, 3)
        if temperature == 0:
          row["identical"] = sum(a == b for a, b in zip(result.ids, plain_ids))
      logging.info("%s", row)
      record["results"].append(row)
  text = json.dumps(record, indent=2) + "\n"
  if _OUTPUT.value:
    pathlib.Path(_OUTPUT.value).write_text(text, encoding="utf-8")
  else:
    print(text, end="")


if __name__ == "__main__":
  app.run(main)
