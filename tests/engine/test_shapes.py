"""How many programs there are: one per bucket, a bounded number, and none after a warm-up."""

import gc
import pathlib

import jax
import numpy as np
import pytest

import specdec
from specdec.core import loop
from specdec.engine import shapes
from specdec.engine import warmup
from specdec.engine.costs import Costs
from specdec.testing import tiny

LENGTHS = range(3, 43, 2)


def ids(length):
  return [3 + i % 40 for i in range(length - 1)] + [1]


@pytest.fixture
def compiled():
  """Counts programs that were compiled or read since the last call."""
  warmup._listen()
  last = dict(warmup._counted)

  def call():
    new = warmup._counted[warmup._COMPILED] - last[warmup._COMPILED]
    last.update(warmup._counted)
    return new
  return call


def test_twenty_inputs_of_twenty_lengths_compile_once_per_bucket(compiled):
  pair = tiny.pair()
  rows = [ids(length) for length in LENGTHS]
  buckets = {max(16, 1 << (n - 1).bit_length()) for n in LENGTHS}
  assert len(rows) == 20 and len(buckets) == 3
  for function in (loop.start, loop.run):
    function.clear_cache()
  for row in rows:
    specdec.generate_ids(pair, [row], max_decode_len=6, gamma=2)
  # The loop itself goes by what comes out of the start: its caches differ by source width.
  assert loop.start._cache_size() == loop.run._cache_size() == len(buckets)
  compiled()
  for row in rows:
    specdec.generate_ids(pair, [row], max_decode_len=6, gamma=2)
  assert compiled() == 0


def test_the_number_of_programs_is_bounded_whatever_is_asked_for(monkeypatch):
  monkeypatch.setattr(shapes, "LIMIT", 3)
  monkeypatch.setattr(shapes, "_seen", set())
  monkeypatch.setattr(shapes, "_functions", [])
  monkeypatch.setattr(shapes, "_maps", lambda: 0)
  function = shapes.bounded(jax.jit(lambda x: x + 1))
  most = 0
  for size in [*range(1, 20), 19, 19]:
    shapes.enter(size)
    function(np.zeros(size))
    most = max(most, function._cache_size())
  assert most == shapes.count() + 2 == 3  # 19 shapes: six times three, and one.
  shapes.enter(19)
  assert function._cache_size() == 1


def test_programs_are_let_go_of_when_memory_maps_run_out(monkeypatch):
  monkeypatch.setattr(shapes, "_seen", set())
  monkeypatch.setattr(shapes, "_functions", [])
  function = shapes.bounded(jax.jit(lambda x: x + 1))
  for size in range(1, 4):
    shapes.enter(size)
    function(np.zeros(size))
  assert function._cache_size() == 3
  monkeypatch.setattr(shapes, "_maps", lambda: 10**6)
  shapes.enter(4)
  assert function._cache_size() == 0


def test_a_process_that_let_go_of_its_programs_decodes_as_before(monkeypatch):
  pair = tiny.pair()
  decode = lambda n: specdec.generate_ids(pair, [ids(9)], max_decode_len=n, mode="plain")
  before = decode(6).decodes
  monkeypatch.setattr(shapes, "LIMIT", 1)
  decode(7)
  assert loop.run._cache_size() == 1
  np.testing.assert_array_equal(decode(6).decodes, before)
  assert loop.run._cache_size() == 1


@pytest.mark.parametrize("settings", [
    {"mode": "plain"}, {"gamma": 2}, {"gamma": "auto"}], ids=["plain", "speculative", "auto"])
def test_after_a_warm_up_nothing_is_compiled(compiled, settings):
  pair = tiny.pair()
  settings = {**settings, "batch_size": 2, "max_decode_len": 12, "max_source_len": 16}
  costs = Costs((1.0, 1.0), 0.9, (0, 1)) if settings.get("gamma") == "auto" else None
  done = warmup.warm(list(warmup.empty_jobs(pair, settings, costs=costs)))
  assert done.shapes == (warmup.Shape(2, 16, 1),)
  compiled()
  # With costs at which drafting does not pay, too.
  for told in [None] if costs is None else [costs, Costs((1.0, 9.0), 0.0, (0, 1))]:
    specdec.generate_ids(pair, [ids(5), ids(14)], costs=told, **settings)
  assert compiled() == 0
  # Another width is another program: the count can fail.
  specdec.generate_ids(pair, [ids(20), ids(14)], costs=costs,
                       **{**settings, "max_source_len": 32})
  assert compiled() >= 2


def test_widths_are_all_that_a_limit_leaves():
  assert warmup.widths_of(2) == (16,)
  assert warmup.widths_of(16) == (16,)
  assert warmup.widths_of(100) == (16, 32, 64, 128)


def test_a_hundred_batches_leave_nothing_behind():
  pair = tiny.pair()
  rng = np.random.default_rng(0)

  def batch():
    rows = [ids(int(n)) for n in rng.integers(2, 16, 2)]
    specdec.generate_ids(pair, rows, max_decode_len=6, gamma=2, temperature=1.0,
                         seed=int(rng.integers(100)))

  def resident():
    gc.collect()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages, len(jax.live_arrays()), sum(x.nbytes for x in jax.live_arrays())

  for _ in range(20):
    batch()
  before = resident()
  for _ in range(80):
    batch()
  after = resident()
  assert after[1:] == before[1:]
  assert after[0] <= 1.02 * before[0]
