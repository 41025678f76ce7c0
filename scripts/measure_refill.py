"""Refilled batches beside batches in the order of arrival and of like length, on the demo pair.

    python scripts/measure_refill.py --data_dir=multi30k --output=refill.json

Decodes captions of multi30k's test_2016_flickr, in the order of the file, in each of the three
ways of `Settings.batching`, in turns, and writes seconds, ratios and how many outputs are the
same as a JSON record. A caption has 5 to 40 tokens. The public file is
data/task1/raw/test_2016_flickr.en.gz of multi30k/dataset on GitHub.
"""

import gzip
import json
import pathlib
import random

from absl import app
from absl import flags
from absl import logging

import specdec
from specdec.bench import records
from specdec.bench import timing
from specdec.bench.compare import Pass
from specdec.engine import job as job_lib
from specdec.engine.settings import BATCHING
from specdec.training import corrupt

_DATA = flags.DEFINE_string("data_dir", None, "Folder with the multi30k files.", required=True)
_REPEATS = flags.DEFINE_integer("repeats", 7, "Rounds.")
_BATCH = flags.DEFINE_integer("batch_size", 16, "Rows.")
_INPUTS = flags.DEFINE_integer("inputs", 512, "Captions.")
_TASKS = flags.DEFINE_multi_string("tasks", ["translate", "correct"], "Tasks of the pair.")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file to write.", required=True)

# What is decoded, by name.
WAYS = {"plain": {"mode": "plain"}, "gamma 4": {"gamma": 4},
        "gamma 4, temperature 1": {"gamma": 4, "temperature": 1.0}}


def read() -> dict[str, list[str]]:
  """Inputs by task, in the order of the file."""
  path = pathlib.Path(_DATA.value) / "test_2016_flickr.en.gz"
  with gzip.open(path, "rt", encoding="utf-8") as f:
    english = [line.strip() for line in f][:_INPUTS.value]
  rng = random.Random(2016)
  return {"translate": english, "correct": [corrupt.corrupt(text, rng) for text in english]}


def measure(pair: specdec.Pair, texts: list[str], task: str, way: str) -> dict:
  """One task decoded in one way, in batches of each kind."""
  passes = {kind: Pass(job_lib.from_texts(pair, texts, task, {
      "batch_size": _BATCH.value, "batching": kind, **WAYS[way]})) for kind in BATCHING}
  for kind, one in passes.items():
    logging.info("%s, %s: compiling for batches that are %s", task, way, kind)
    one.timed()
  samples = timing.interleave({kind: one.timed for kind, one in passes.items()},
                              _REPEATS.value)
  made = {kind: one.records() for kind, one in passes.items()}
  ids = {kind: [r.output_ids for r in found] for kind, found in made.items()}
  tokens = {kind: sum(r.num_generated for r in found) for kind, found in made.items()}
  per_token = {kind: [s / tokens[kind] for s in times] for kind, times in samples.items()}
  row = {
      "task": task, "way": way, "batch_size": _BATCH.value, "inputs": len(texts),
      "tokens": tokens,
      "tokens_per_s": {kind: timing.Spread.of([1 / t for t in times]).rounded()
                       for kind, times in per_token.items()},
      "speed_up": {f"refill against {kind}":
                   timing.ratios(per_token[kind], per_token["refill"]).rounded()
                   for kind in BATCHING if kind != "refill"},
      "identical": {kind: sum(a == b for a, b in zip(ids[kind], ids["sorted"])) for kind in ids},
      "samples_s": {kind: timing.rounded(v) for kind, v in samples.items()}}
  logging.info("%s", {k: v for k, v in row.items() if k != "samples_s"})
  return row


def main(argv):
  del argv
  pair = specdec.load_pair("demo")
  inputs = read()
  record = {**records.environment(), "kind": "refill", "repeats": _REPEATS.value,
            "rows": [measure(pair, inputs[task], task, way)
                     for task in _TASKS.value for way in WAYS]}
  pathlib.Path(_OUTPUT.value).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
  app.run(main)
