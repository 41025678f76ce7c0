"""Measures drafters, verifiers and lenience on the demo pair and writes the counts as JSON.

    python scripts/measure_demo_drafters.py --data_dir=multi30k --output=demo_drafters.json

Counts, not times: alpha (accepted / tested), target calls and tokens per call of every
drafter on both tasks; greedy outputs compared with plain ones; block against token verification
over several seeds; and alpha at the paper's values of lenience. Further drafters, such as a
distilled one, are named with --extra.
"""

import gzip
import json
import pathlib
import random
import statistics

from absl import app
from absl import flags
from absl import logging

import specdec
from specdec.bench import records
from specdec.training import corrupt

_DATA = flags.DEFINE_string("data_dir", None, "Folder with the multi30k files.", required=True)
_LIMIT = flags.DEFINE_integer("limit", 200, "How many sentences of the test set.")
_GAMMA = flags.DEFINE_integer("gamma", 4, "Drafted tokens per target call.")
_SEEDS = flags.DEFINE_integer("seeds", 5, "Of block against token verification.")
_EXTRA = flags.DEFINE_multi_string("extra", [], "NAME=SPEC of a further drafter, for translate.")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file to write.", required=True)

DRAFTERS = ("drafter", "bigram", "copy", "uniform", "bigram+drafter")
LENIENCES = (1.0, 0.5, 0.3, 0.1)
BLOCK_GAMMA = 7


def read() -> dict[str, list[str]]:
  """Inputs by task."""
  path = pathlib.Path(_DATA.value) / "test_2016_flickr.en.gz"
  with gzip.open(path, "rt", encoding="utf-8") as f:
    english = [line.strip() for line in f][:_LIMIT.value]
  rng = random.Random(2016)
  return {"translate": english, "correct": [corrupt.corrupt(text, rng) for text in english]}


def counts(result: specdec.Result) -> dict[str, float]:
  """What a run counted."""
  return {"alpha": round(result.alpha or 0.0, 4), "target_calls": result.target_calls,
          "tokens": result.tokens, "tokens_per_call": round(result.tokens_per_call, 4)}


def drafters(pair: specdec.Pair, texts: dict[str, list[str]], plain: dict) -> list[dict]:
  """Every drafter on every task, at temperature 0 and 1."""
  named = [(name, name, tuple(texts)) for name in DRAFTERS]
  named += [(*extra.split("=", 1), ("translate",)) for extra in _EXTRA.value]
  rows = []
  for name, spec, tasks in named:
    ours = pair.with_drafter(spec)
    gamma = min(_GAMMA.value, ours.max_gamma)
    for task in tasks:
      for temperature in (0.0, 1.0):
        result = specdec.generate(ours, texts[task], task=task, gamma=gamma,
                                  temperature=temperature, batch_size=8)
        row = {"drafter": name, "task": task, "temperature": temperature, "gamma": gamma,
               **counts(result)}
        if not temperature:
          row["identical"] = sum(a == b for a, b in zip(result.ids, plain[task]))
        logging.info("%s", row)
        rows.append(row)
  return rows


def verifiers(pair: specdec.Pair, texts: dict[str, list[str]]) -> list[dict]:
  """Tokens per call of both lossless verifiers, the same seeds for both."""
  rows = []
  for task in texts:
    for verifier in ("token", "block"):
      seen = [specdec.generate(pair, texts[task], task=task, gamma=BLOCK_GAMMA, temperature=1.0,
                               verifier=verifier, seed=seed, batch_size=8).tokens_per_call
              for seed in range(_SEEDS.value)]
      row = {"verifier": verifier, "task": task, "gamma": BLOCK_GAMMA,
             "tokens_per_call": [round(x, 4) for x in seen],
             "mean": round(statistics.mean(seen), 4),
             "standard_error": round(statistics.stdev(seen) / len(seen) ** 0.5, 4)}
      logging.info("%s", row)
      rows.append(row)
  return rows


def leniences(pair: specdec.Pair, texts: dict[str, list[str]]) -> list[dict]:
  """Alpha by lenience, on translations."""
  rows = []
  for temperature in (0.0, 1.0):
    for lenience in LENIENCES:
      result = specdec.generate(pair, texts["translate"], task="translate", gamma=_GAMMA.value,
                                temperature=temperature, verifier="lenient", lenience=lenience,
                                batch_size=8)
      row = {"lenience": lenience, "temperature": temperature, **counts(result)}
      logging.info("%s", row)
      rows.append(row)
  return rows


def main(argv):
  del argv
  pair, texts = specdec.load_pair("demo"), read()
  plain = {task: specdec.generate(pair, texts[task], task=task, mode="plain", batch_size=8).ids
           for task in texts}
  record = {**records.environment(), "kind": "demo drafters", "sentences": _LIMIT.value,
            "drafters": drafters(pair, texts, plain), "verifiers": verifiers(pair, texts),
            "leniences": leniences(pair, texts)}
  pathlib.Path(_OUTPUT.value).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
  app.run(main)
