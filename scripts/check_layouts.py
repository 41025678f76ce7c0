"""Decodes real sentences on one device and on meshes of several, and compares the ids.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_PLATFORMS=cpu \
        python scripts/check_layouts.py --data_dir=multi30k --output=layouts.json

The target is the demo's in a shape of eight heads. Each layout decodes with every drafter,
greedily and at temperature 1; with the pair's own drafter also with the texts in another
order and in batches that the devices do not divide. A greedy row that differs is reported
with the margin between the target's two best logits where it first does; the exit code is 1
unless all differences are greedy ones with margins below 1e-5.
"""

import gzip
import json
import math
import pathlib
import sys
import time

from absl import app
from absl import flags
from absl import logging
import jax
import numpy as np

import specdec
from specdec.bench import widen
from specdec.engine import drafters
from specdec.engine import generate
from specdec.engine import heads
from specdec.engine import job as job_lib
from specdec.engine import mesh as mesh_lib

_DATA = flags.DEFINE_string("data_dir", None, "Folder with the multi30k files.", required=True)
_LIMIT = flags.DEFINE_integer("limit", 200, "Sentences.")
_BATCH = flags.DEFINE_integer("batch_size", 40, "Sentences decoded together.")
_LAYOUTS = flags.DEFINE_multi_string(
    "layout", ["data:1,model:2", "data:8", "model:8", "data:2,model:4"],
    "Meshes to compare with one device; smaller ones take the first devices.")
_DRAFTERS = flags.DEFINE_multi_string(
    "drafter", ["drafter", "bigram", "copy", "uniform", "heads", "bigram+drafter"],
    "Drafters; heads are untrained ones.")
_OUTPUT = flags.DEFINE_string("output", None, "JSON file to write; stdout by default.")

_HEADS = 8
_MARGIN = 1e-5


def load(layout: str | None) -> specdec.Pair:
  """The demo pair with a target of eight heads, on one device or on a mesh."""
  mesh = None
  if layout is not None:
    sizes = mesh_lib.parse(layout)
    count = math.prod(sizes.values())
    mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), devices=jax.devices()[:count])
  pair = specdec.load_pair("demo", mesh=mesh)
  wide = widen.widen_model(pair.target, pair.target.config.replace(num_heads=_HEADS))
  # A widened model's name is its own; drafters are those of the pair.
  return specdec.engine.pairs.Pair(
      pair.name, wide, pair.drafter, pair.tasks, pair.max_source_len, pair.max_decode_len,
      pair.known)


def with_drafter(pair: specdec.Pair, name: str) -> specdec.Pair:
  """The pair with one of its drafters."""
  if name == pair.drafter.name:
    return pair
  if name != "heads":
    return pair.with_drafter(name)
  size = pair.target.config.emb_dim
  kernel = np.random.default_rng(0).normal(0, 0.02, (4, size, 2 * size))
  drafter, params = heads.of_params(
      pair.target, {"kernel": kernel, "bias": np.zeros((4, size), np.float32)})
  loaded = drafters.LoadedDrafter(
      name, drafter, mesh_lib.replicate(params, pair.target.mesh))
  return specdec.engine.pairs.Pair(
      pair.name, pair.target, loaded, pair.tasks, pair.max_source_len, pair.max_decode_len,
      pair.known)


def decode(pair: specdec.Pair, texts: list[str], temperature: float, order: list[int],
           batch_size: int) -> list[list[int]]:
  """Ids of the texts; decoded in another order, and put back."""
  job = job_lib.from_texts(
      pair, [texts[i] for i in order], None,
      {"temperature": temperature, "batch_size": batch_size, "max_decode_len": 64},
      places=order)
  found = {record.index: record.output_ids for record in generate.decode(job)}
  return [found[i] for i in range(len(texts))]


def margin(pair: specdec.Pair, text: str, ours: list[int], theirs: list[int]) -> float:
  """How far the target's two best logits are apart where two outputs part."""
  at = next(i for i, (a, b) in enumerate(zip([*ours, -1], [*theirs, -1])) if a != b)
  source = pair.vocabulary.encode(next(iter(pair.tasks.values())) + text)
  logits = np.sort(pair.target.logits([source], [[0, *ours[:at]]])[0, -1])
  return float(logits[-1] - logits[-2])


def main(argv):
  del argv
  path = pathlib.Path(_DATA.value) / "test_2016_flickr.en.gz"
  with gzip.open(path, "rt", encoding="utf-8") as f:
    texts = [line.strip() for line in f][:_LIMIT.value]
  straight = list(range(len(texts)))
  shuffled = np.random.default_rng(0).permutation(len(texts)).tolist()
  alone = load(None)
  expected, rows, sound = {}, [], True
  for layout in [None, *_LAYOUTS.value]:
    base = alone if layout is None else load(layout)
    for name in _DRAFTERS.value:
      pair = with_drafter(base, name)
      runs = [(straight, _BATCH.value)]
      if name == base.drafter.name:
        runs.append((shuffled, max(_BATCH.value - 7, 1)))
      for order, size in runs:
        for temperature in (0.0, 1.0):
          begin = time.perf_counter()
          ids = decode(pair, texts, temperature, order, size)
          first = expected.setdefault((name, temperature), ids)
          differ = [i for i in straight if ids[i] != first[i]]
          margins = [margin(alone, texts[i], first[i], ids[i]) if temperature == 0 else None
                     for i in differ]
          sound &= all(m is not None and m < _MARGIN for m in margins)
          rows.append({"layout": layout or "one device", "drafter": name,
                       "temperature": temperature, "permuted": order is shuffled,
                       "batch_size": size, "rows": len(ids), "tokens": sum(map(len, ids)),
                       "different": len(differ), "margins": margins,
                       "seconds": round(time.perf_counter() - begin, 1)})
          logging.info("%s", rows[-1])
  config = alone.target.config
  text = json.dumps({
      "sentences": len(texts), "target": {"heads": config.num_heads, "emb_dim": config.emb_dim},
      "devices": len(jax.devices()), "backend": jax.default_backend(), "jax": jax.__version__,
      "results": rows}, indent=2) + "\n"
  if _OUTPUT.value:
    pathlib.Path(_OUTPUT.value).write_text(text, encoding="utf-8")
  else:
    print(text, end="")
  return 0 if sound else 1


if __name__ == "__main__":
  app.run(lambda argv: sys.exit(main(argv)))
