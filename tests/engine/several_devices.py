"""Decodes on eight virtual devices, in a process of its own; prints JSON.

The number of devices is fixed when a process begins, so `test_mesh.py` runs this:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.engine.several_devices DIR
"""

import json
import pathlib
import sys

import jax
import numpy as np

import specdec
from specdec.bench.collectives import collectives
from specdec.core import loop
from specdec.core.state import Exits
from specdec.engine import costs
from specdec.engine import generate
from specdec.engine import heads
from specdec.engine import job as job_lib
from specdec.engine import mesh as mesh_lib
from specdec.engine import models
from specdec.engine import ngrams
from specdec.engine import run as run_lib
from specdec.engine import streaming
from specdec.models.t5 import sharding
from specdec.testing import tiny

SHAPE = {"num_heads": 8, "head_dim": 4, "mlp_dim": 64}
DRAFTERS = ("drafter", "bigram", "copy:min_match=0", "uniform", "heads", "bigram+drafter")
MIXED = "data:2,model:4"
OPTIONS = {"task": "", "gamma": 3, "batch_size": 8, "max_decode_len": 12}
# One batch: a second one of another size would be twice as many programs.
TEXTS = list(tiny.SENTENCES[:8])


def make(folder: pathlib.Path) -> pathlib.Path:
  """A pair of eight heads with drafters of all kinds."""
  tiny.save(folder, **SHAPE)
  config = tiny.config(**SHAPE)
  outputs = [tiny.vocabulary().encode(s) for s in tiny.SENTENCES]
  ngrams.save(folder / "bigram", ngrams.count(outputs, 2, config.vocab_size), tiny.vocabulary())
  size = config.emb_dim
  kernel = np.random.default_rng(0).normal(0, 0.1, (3, size, 2 * size))
  heads.save(folder / "heads", models.load_model(folder / "target"),
             {"kernel": kernel, "bias": np.zeros((3, size))}, "random")
  about = json.loads((folder / "pair.json").read_text())
  about["drafters"] = {"bigram": "bigram", "heads": "heads"}
  (folder / "pair.json").write_text(json.dumps(about))
  return folder


def ids(pair, **options):
  return [r.output_ids for r in specdec.generate(pair, TEXTS, **{**OPTIONS, **options}).records]


def both(pair, **options):
  return [ids(pair, temperature=temperature, **options) for temperature in (0.0, 1.0)]


def by_hand(pair):
  """Ids, greedy and sampled, and what can be seen of the one program that they come of."""
  exits = Exits(np.int32(2**30), np.int32(2**30))
  program, out, stable = None, [], True
  for temperature in (0.0, 1.0):
    job = job_lib.from_texts(pair, TEXTS, "", {
        **{k: v for k, v in OPTIONS.items() if k != "task"}, "temperature": temperature})
    (batch,), = job_lib.plan(job)
    run = run_lib.Run(job, batch)
    before = [x.sharding for x in jax.tree.leaves(run._state)]
    with run._scope():
      program = program or loop.run.lower(
          run._method(OPTIONS["gamma"]), run._weights, run._state, run._rules, exits).compile()
      run._state = program(run._weights, run._state, run._rules, exits)
    stable &= all(old.is_equivalent_to(x.sharding, x.ndim) for old, x in zip(
        before, jax.tree.leaves(run._state), strict=True))
    records = generate.make_records(job, batch, run.fetch())
    out.append([records[i][0].output_ids for i in range(len(TEXTS))])
  key = run._state.target_cache.self_key[0]
  return out, {
      "exchanged": [[c.kind, c.size, c.line] for c in collectives(program.as_text())],
      "stable": stable, "batch": len(TEXTS),
      "cache": [key.addressable_shards[0].data.size, key.size],
      "devices": len(key.addressable_shards)}


class Recorder:
  """Stands for an array on disk and remembers what was read of it."""

  def __init__(self, values):
    self.values, self.shape, self.parts = values, values.shape, []

  def read(self, index, dtype=None):
    self.parts.append(self.values[index].shape)
    return self.values[index].astype(dtype)


def main(folder):
  folder = make(folder / "pair")
  out = {"devices": len(jax.devices())}
  alone = specdec.load_pair(folder)
  one = {name: alone.with_drafter(name) for name in DRAFTERS}
  out["one"] = {name: both(pair) for name, pair in one.items()}
  out["layouts"], out["bytes"], out["programs"] = {}, {}, {}
  pairs = {layout: specdec.load_pair(folder, mesh=layout)
           for layout in ("data:8", "model:8", MIXED)}
  # A mesh of its own, over some of the devices.
  pairs["two devices, whole drafter"] = specdec.load_pair(
      folder, drafter_layout="whole",
      mesh=jax.make_mesh((1, 2), ("data", "model"), devices=jax.devices()[:2]))
  for layout, pair in pairs.items():
    out["layouts"][layout], out["programs"][layout] = by_hand(pair)
    leaves = jax.tree.leaves(pair.target.weights)
    out["bytes"][layout] = [sum(x.addressable_shards[0].data.nbytes for x in leaves),
                            sum(x.nbytes for x in leaves)]

  mixed = pairs[MIXED]
  out["mixed"] = {name: both(mixed.with_drafter(name)) for name in DRAFTERS}
  out["odd batches"] = both(mixed, batch_size=7)
  dear = costs.Costs((1.0, 2.0), 0.9, (0, 3))
  out["auto"] = ids(mixed, gamma="auto", costs=dear)
  out["streamed"] = [piece.record.output_ids for piece in sorted(
      (p for p in streaming.stream(mixed, TEXTS, **OPTIONS, temperature=1.0) if p.record),
      key=lambda p: p.index)]
  out["first samples"] = [r.output_ids for r in specdec.generate(
      mixed, TEXTS, **{**OPTIONS, "batch_size": 4}, num_decodes=2, temperature=1.0).records
                          if r.sample == 0]
  out["compiled again"] = loop.run._cache_size()
  ids(mixed, temperature=1.0)
  out["compiled again"] -= loop.run._cache_size()
  logits = [pair.target.logits([[5, 6, 1]], [[0, 7, 8]]) for pair in (alone, mixed)]
  out["logits differ by"] = float(abs(logits[0] - logits[1]).max())

  config = tiny.config(**SHAPE)
  mesh = mesh_lib.make("data:2,model:4")
  where = sharding.places(config, mesh, True)
  values = np.arange(16.0 * 64).reshape(16, 64)
  for name in ("decoder/layers_0/mlp/wi_0/kernel", "decoder/decoder_norm/scale"):
    disk = Recorder(values if name.endswith("kernel") else values[0, :16])
    made = sharding.put(disk, "float32", where(name))
    assert (np.asarray(made) == disk.values).all()
    out.setdefault("read", {})[name] = disk.parts
  print("\n" + json.dumps(out))


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]))
