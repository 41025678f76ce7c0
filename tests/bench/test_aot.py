"""A small pair compiled for a TPU-v4 chip, in another process: libtpu stays out of this one."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from specdec.analysis import paper
from specdec.bench import projection

NO_LIBTPU = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu is not installed, which compiles for TPUs (pip install 'specdec-jax[tpu]')")

# Matrices are large enough to be told from everything else that is large.
PROGRAM = """
import dataclasses
import json

import jax
import jax.numpy as jnp

from specdec.bench import aot
from specdec.bench import aot_mesh
from specdec.core.state import Method
from specdec.models.t5.config import T5Config
from specdec.models.t5.scorer import T5Scorer

target = T5Config(vocab_size=2304, emb_dim=512, num_heads=8, head_dim=64, mlp_dim=1152,
                  num_encoder_layers=1, num_decoder_layers=2, dtype="bfloat16")
drafter = target.replace(emb_dim=256, num_heads=4, mlp_dim=640, num_decoder_layers=1)


@dataclasses.dataclass(frozen=True)
class Casting(T5Scorer):

  def score(self, weights, tokens, cache):
    # A cast alone is undone by the compiler. What is sorted must be written out.
    cast = lambda x: jnp.sort(x.astype(jnp.float32), -1) if x.ndim > 1 else x
    return super().score(jax.tree.map(cast, weights), tokens, cache)


@dataclasses.dataclass(frozen=True)
class Casts(aot.Case):

  def method(self):
    return Method(Casting(self.target, out_in=False))


chips = aot.chips()
chip = chips[0]


def examine(case, with_start):
  report = aot.examine(aot.build(case, chip, with_start))
  return {"figures": report.figures, "failed": [f"{c.name}: {c.found}" for c in report.failed]}


print(json.dumps({
    "pair": examine(aot.Case(target, drafter, 3, 128, 60), True),
    "casting": examine(Casts(target, None, 0, 128, 60), False),
    "mesh": aot_mesh.examine(aot.Case(target, drafter, 3, 128, 60),
                             aot_mesh.make_mesh(chips, 1, 4))}))
"""


@pytest.fixture(scope="module")
def reports():
  done = subprocess.run(
      [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600,
      env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=False)
  assert done.returncode == 0, done.stderr[-3000:]
  return json.loads(done.stdout.splitlines()[-1])


@NO_LIBTPU
def test_the_program_does_with_memory_what_it_should(reports):
  assert reports["pair"]["failed"] == []


@NO_LIBTPU
def test_weights_that_are_cast_in_every_call_are_seen(reports):
  assert any(f.startswith("no float32") for f in reports["casting"]["failed"])


@NO_LIBTPU
def test_an_iteration_reads_the_targets_weights_once(reports):
  figures = reports["pair"]["figures"]
  read = figures["read_bytes"]["target_weights"]
  assert 0 < read <= 1.02 * figures["decoder_weights_bytes"]


@NO_LIBTPU
def test_what_a_chip_of_four_holds_is_what_was_planned(reports):
  found = reports["mesh"]
  parts = found["planned_parts"]
  assert found["weights"] == parts["target weights"] + parts["drafter weights"]
  # Sums of the residual stream, and the logits of gamma + 1 positions put together: no weight
  # goes around, the smallest of which is the drafter's query matrix, a quarter of it on a chip.
  assert {"all-reduce", "all-gather"} <= set(found["collectives"])
  assert 0 < found["largest_exchanged"] <= 4 * 2304 < 256 * 256 // 4
  assert found["memory"]["run"]["arguments"] < 1.2 * (
      found["weights"] + parts["target caches"] + parts["drafter caches"])


def test_the_papers_table_needs_each_of_its_programs_once():
  names = projection.of_paper()
  assert names[0] == projection.PLAIN and "small:7" in names
  assert len(names) == len(set(names)) == 8


def figures(nbytes):
  return {"read_bytes": {"all": nbytes}, "written_bytes": 0}


def test_an_iteration_that_costs_as_much_as_a_token_is_worth_its_tokens():
  same = figures(10**9)
  rows = projection.rows({"plain": same, "small:7": same})
  assert [r["gamma"] for r in rows] == [7, 7]
  assert rows[0]["from_bytes"] == rows[0]["tokens_per_iteration"] == 3.6
  dear = projection.rows({"plain": same, "small:7": figures(2 * 10**9)})
  assert dear[0]["from_bytes"] == 1.8


def test_rows_without_a_program_are_left_out_and_the_papers_figure_is_beside_each():
  assert projection.rows({"plain": figures(1)}) == []
  rows = projection.rows({n: figures(1) for n in projection.of_paper()})
  assert [r["paper"] for r in rows] == [r["speed_up"] for r in paper.read("walltime")["rows"]]
