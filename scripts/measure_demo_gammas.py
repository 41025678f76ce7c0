"""Measures automatic gamma against fixed ones and plain decoding, side by side, as JSON.

    python scripts/measure_demo_gammas.py --data_dir=multi30k --output=demo_gammas.json

For each task of the demo pair and each batch size, all of them take turns in one process,
batch by batch of the same sentences; ratios are taken round by round. A drafter that draws
at random shows what becomes of a useless one. The sentences have one padded width, so that
every size is compiled once per batch size.
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
from specdec.engine import calibrate
from specdec.engine import job as job_lib
from specdec.training import corrupt

_DATA = flags.DEFINE_string("data_dir", None, "Folder with the multi30k files.", required=True)
_REPEATS = flags.DEFINE_integer("repeats", 7, "Rounds.")
_GAMMAS = flags.DEFINE_multi_integer("gammas", [1, 2, 4, 7], "Fixed sizes.")
_BATCHES = flags.DEFINE_multi_integer("batches", [1, 8, 32], "Batch sizes.")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file to write.", required=True)

WIDTH = 32
# As many sentences as make a pass of a second or so.
SENTENCES = {1: 16, 8: 64, 32: 128}


def read(pair: specdec.Pair) -> dict[str, list[str]]:
  """Inputs by task, all of them padded to one width."""
  path = pathlib.Path(_DATA.value) / "test_2016_flickr.en.gz"
  with gzip.open(path, "rt", encoding="utf-8") as f:
    english = [line.strip() for line in f]
  rng = random.Random(2016)
  inputs = {"translate": english, "correct": [corrupt.corrupt(text, rng) for text in english]}
  width = lambda task, text: len(pair.vocabulary.encode(pair.tasks[task] + text))
  return {task: [text for text in texts if WIDTH // 2 < width(task, text) <= WIDTH]
          for task, texts in inputs.items()}


def measure(pair: specdec.Pair, texts: list[str], task: str, batch: int) -> dict:
  """One task at one batch size."""
  def job(ours: specdec.Pair, **settings) -> job_lib.Job:
    return calibrate.ready(job_lib.from_texts(ours, texts, task, {
        "batch_size": batch, "max_decode_len": 48, **settings}))

  useless = pair.with_drafter("uniform")
  jobs = {"plain": job(pair, mode="plain"), "auto": job(pair, gamma="auto"),
          "auto, useless drafter": job(useless, gamma="auto"),
          **{f"gamma {g}": job(pair, gamma=g) for g in _GAMMAS.value}}
  passes = {name: Pass(made) for name, made in jobs.items()}
  for name, one in passes.items():
    logging.info("%s, batch %d: compiling %s", task, batch, name)
    one.timed()
  samples = timing.interleave_parts({name: one.parts for name, one in passes.items()},
                                    _REPEATS.value)
  ids = {name: [r.output_ids for r in one.records()] for name, one in passes.items()}
  ratio = {name: timing.ratios(samples["plain"], times) for name, times in samples.items()}
  fixed = [name for name in jobs if name.startswith("gamma")]
  best = max([*fixed, "plain"], key=lambda name: ratio[name].median)
  row = {
      "task": task, "batch_size": batch, "inputs": len(texts),
      "speed_up": {name: spread.rounded() for name, spread in ratio.items()},
      "best_fixed": best,
      "auto_against_best": timing.ratios(samples[best], samples["auto"]).rounded(),
      "identical": {name: sum(a == b for a, b in zip(ids[name], ids["plain"])) for name in ids},
      "costs": {name: [round(x, 4) for x in jobs[name].costs.iteration]
                for name in jobs if jobs[name].costs},
      "alpha": {name: jobs[name].costs.alpha for name in jobs if jobs[name].costs},
      "samples_s": {name: timing.rounded(v) for name, v in samples.items()}}
  logging.info("%s", {k: v for k, v in row.items() if k != "samples_s"})
  return row


def main(argv):
  del argv
  pair = specdec.load_pair("demo")
  inputs = read(pair)
  record = {**records.environment(), "kind": "demo gammas", "repeats": _REPEATS.value,
            "rows": [measure(pair, inputs[task][:SENTENCES.get(batch, 4 * batch)], task, batch)
                     for batch in _BATCHES.value for task in inputs]}
  pathlib.Path(_OUTPUT.value).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
  app.run(main)
