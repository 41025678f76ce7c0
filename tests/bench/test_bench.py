"""`specdec bench`: what it measures, what it works out from it, and what it records."""

import contextlib
import io
import json
import statistics

import numpy as np
import pytest

from specdec.analysis import records
from specdec.analysis import theory
from specdec.bench import measure as measure_lib
from specdec.bench import memory
from specdec.bench import peers
from specdec.bench import records as records_lib
from specdec.bench import runs
from specdec.bench import sweep as sweep_lib
from specdec.bench import timing
from specdec.bench import walltime
from specdec.bench import widen
from specdec.bench import workload as workload_lib
from specdec.cli import bench_report
from specdec.cli.main import run
from specdec.drafters.copy import CopyDrafter
from specdec.engine import pairs
from specdec.errors import SpecdecError
from specdec.models.t5 import sizes
from specdec.models.t5 import weights as weights_lib
from specdec.testing import tiny
from tests.bench import models

TEXTS = ("A small boat.", "The cat sleeps.")
BUFFER = 2**20


@pytest.fixture(scope="module")
def screen_and_record(tmp_path_factory):
  """What `specdec bench` prints and writes; the tiny pair and a small buffer keep it short."""
  out, path = io.StringIO(), tmp_path_factory.mktemp("bench") / "record.json"
  with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
    patch.setattr(pairs, "check_pair", lambda *args, **named: None)
    patch.setattr(pairs, "load_pair", lambda *args, **named: tiny.pair())
    patch.setattr(measure_lib.measure, "__kwdefaults__",
                  measure_lib.measure.__kwdefaults__ | {"buffer_bytes": BUFFER})
    assert run(["bench", "--pair=tiny", "--task=none", "--gamma=2", "--max_decode_len=12",
                "--batch_size=1", "--record_task=ende", "--repeats=3", f"--json={path}",
                *TEXTS]) == 0
  return out.getvalue(), json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def record(screen_and_record):
  return screen_and_record[1]


def test_the_screen_shows_what_matters(screen_and_record):
  for words in ("target call, 3 tokens", "loop overhead", "memory read", "paper's formula",
                "2 of 2", "measured: ", "expected at its alpha", "with v = 1", "gamma 2, batch 1"):
    assert words in screen_and_record[0]


def test_the_record_says_what_was_measured_and_where(record):
  for field in ("commit", "device", "cpu", "jax", "date", "dtype", "matmul_precision", "target",
                "gamma", "batch_size", "max_decode_len", "weights", "compile_s"):
    assert field in record
  assert record["weights"] == "trained" and record["batches"] == 2
  for name in ("plain iteration", "speculative iteration", "target call, 1 token",
               "target call, 2 tokens", "target call, 3 tokens", "drafter call, 1 token",
               "drafter call, 2 tokens", "drafter proposal"):
    spread = record["seconds"][name]
    assert len(record["samples_s"][name]) == 3
    assert 0 < spread["low"] <= spread["quartiles"][0] <= spread["median"] <= spread["high"]


def test_ratios_are_worked_out_from_the_samples(record):
  s = record["samples_s"]
  rounds = zip(s["speculative iteration"], s["drafter call, 1 token"], s["target call, 3 tokens"])
  overhead = statistics.median((i - 2 * d - t) / i for i, d, t in rounds)
  assert record["loop_overhead"]["median"] == pytest.approx(overhead, abs=1e-3)
  c = statistics.median(d / t for d, t in zip(s["drafter call, 1 token"],
                                              s["target call, 1 token"]))
  assert record["cost_ratio"]["median"] == pytest.approx(c, rel=1e-3)
  share = statistics.median(
      record["bytes_per_call"]["target"] / t / (BUFFER / m)
      for t, m in zip(s["plain iteration"], s[record["memory_read"]["method"]]))
  assert record["plain_read_share"]["median"] == pytest.approx(share, rel=1e-3)


def test_expected_speed_ups_stand_beside_the_measured_one(record):
  e, s = record["expected_at_alpha"], record["seconds"]
  one, c, v = (s[name]["median"] for name in (
      "target call, 1 token", "drafter call, 1 token", "target call, 3 tokens"))
  assert e["alpha"] == pytest.approx(record["alpha"], rel=1e-4)
  assert e["paper"] == pytest.approx(theory.speed_up(e["alpha"], 2, c / one), rel=1e-3)
  assert e["with_verify_ratio"] == pytest.approx(
      theory.speed_up(e["alpha"], 2, c / one, v / one), rel=1e-3)
  assert e["measured"] == pytest.approx(record["speed_up"]["median"], rel=1e-3)


def test_the_record_is_a_row_of_the_tables(record, tmp_path):
  path = tmp_path / "record.json"
  path.write_text(json.dumps(record), encoding="utf-8")
  read = records.read(str(path))
  row, = read.rows
  assert (row.task, row.temperature, row.gamma) == ("ende", 0, 2)
  assert "2 outputs" in row.note and ", trained weights," in read.label


def test_widened_weights_are_called_so():
  shape = tiny.config().replace(emb_dim=20, vocab_size=200)
  widened = widen.widen(tiny.pair(), shape, shape)
  work = workload_lib.from_pair(widened, TEXTS, task="", gamma=2, batch_size=1, source_len=8,
                                max_decode_len=8, temperature=1.0)
  about = measure_lib.describe(work, 3)
  assert about["weights"] == "widened" and about["temperature"] == 1.0
  assert len(work.sources) == 2 and work.sources[0].ids.shape == work.sources[1].ids.shape


def test_what_wanders_is_named():
  assert measure_lib.unsteady({"a": [1.0, 1.01, 1.02, 1.03], "b": [1.0, 1.1, 1.5, 2.0]}) == ["b"]


def test_rows_of_the_walltime_table_go_by_what_fits():
  plan = walltime.plan("xxl", {"ende": "translate", "cnndm": "summarize"})
  assert len(plan) == 12 and {r.drafter for r in plan} == {"small", "base", "large"}
  assert {(r.drafter, r.temperature, r.gamma) for r in plan if r.row == "cnndm"} >= {
      ("small", 0, 5), ("large", 1, 3)}
  some = walltime.plan("large", {"correct": "correct"}, [2, 3])
  assert len(some) == 8 and {r.gamma for r in some} == {2, 3}
  gib = 2**30
  assert walltime.target_for(32 * gib, on_cpu=False) == "xxl"
  assert walltime.target_for(10 * gib, on_cpu=False) == "xl"
  assert walltime.target_for(64 * gib, on_cpu=True) == "base"
  with pytest.raises(SpecdecError, match="use a device with more memory"):
    walltime.target_for(gib / 4, on_cpu=True)


def test_counts_are_those_of_decoding(record):
  import specdec

  result = specdec.generate(tiny.pair(), TEXTS, task="", gamma=2)
  assert record["tokens"] == result.tokens and record["accepted"] == result.accepted
  assert record["alpha"] == pytest.approx(result.alpha)
  counts = record["accepted_lengths"]
  assert len(counts) == 3 and sum(counts) == record["target_calls"] == result.target_calls
  assert sum(n * k for n, k in enumerate(counts)) == record["accepted"]
  assert record["identical_outputs"] == 2
  assert record["speed_up"]["median"] > 0


def test_a_drafter_without_calls_of_its_own_is_measured_as_a_whole(capsys):
  """A token of the proposal stands for a call."""
  drafting = workload_lib.Drafting("copy", CopyDrafter(models.VOCAB), ())
  done = json.loads(json.dumps(measure_lib.measure(
      models.workload(drafter=drafting), repeats=2, buffer_bytes=BUFFER)))
  assert not any(name.startswith("drafter call") for name in done["seconds"])
  assert done["seconds"]["drafter proposal"]["median"] > 0
  s = done["samples_s"]
  c = statistics.median(p / models.GAMMA / t for p, t in zip(s["drafter proposal"],
                                                             s["target call, 1 token"]))
  assert done["cost_ratio"]["median"] == pytest.approx(c, rel=1e-3)
  assert done["bytes_per_call"]["drafter"] is None and done["identical_outputs"] == 1
  bench_report.show(done)
  assert "c, drafted token / target call" in capsys.readouterr().out


def test_drafters_without_weights_go_by_their_names():
  for spec, words in (("copy:max_match=0", "from 1 to 63"), ("uniform:x=1", "it takes none"),
                      ("copy:max_match=2+uniform", "cannot be drafted for"),
                      ("copy:max_match=2+./x", "expected a single drafter"),
                      ("huge", "expected one of base")):
    with pytest.raises(SpecdecError, match=words):
      workload_lib.from_sizes("tiny", spec, gamma=2, batch_size=1, source_len=8,
                              max_decode_len=8)


def test_baselines_are_greedy_and_sweeps_decode_one_batch():
  two = models.workload(1, more=(models.workload(1).source,))
  with pytest.raises(SpecdecError, match="2 batches; expected a single one"):
    sweep_lib.sweep(two, [2])
  with pytest.raises(SpecdecError, match=r"temperature 1 .* expected 0"):
    measure_lib.measure(models.workload(1, temperature=1.0), peers=[lambda work: None])


def test_random_weights_run_to_the_end_without_eos():
  decode = _decoded(models.workload(2))
  assert {len(row) for row in decode.ids} == {models.MAX_LEN}
  assert decode.state.iterations == models.MAX_LEN


def _decoded(work, gamma=0):
  decode = runs.Decode(work, gamma)
  decode.whole()
  return decode


def test_rows_of_a_batch_are_compared_with_their_own_runs(capsys):
  done = json.loads(json.dumps(sweep_lib.sweep(models.workload(2), [2], repeats=2)))
  bench_report.show(done)
  assert "plain tokens/s" in capsys.readouterr().out
  assert [b["batch_size"] for b in done["batches"]] == [1, 2]
  for b in done["batches"]:
    assert b["rows_alike_plain"] == b["rows_alike_speculative"] == b["batch_size"]
  assert done["batches"][0]["times_batch_1"]["median"] == 1


def test_bytes_of_a_call_are_counted_by_hand():
  c = models.TARGET
  width = c.num_heads * c.head_dim
  per_layer = (3 * width + width + 2 * width + 3 * c.mlp_dim) * c.emb_dim + 3 * c.emb_dim
  bias = c.num_heads * (c.relpos_max_distance + 1)
  total = per_layer * c.num_decoder_layers + c.vocab_size * c.emb_dim + c.emb_dim + bias
  assert models.part(c).bytes_per_call == 4 * total
  tied = c.replace(logits_via_embedding=True)
  assert models.part(tied).bytes_per_call == 4 * total


def test_turns_alternate_and_ratios_pair_rounds():
  order = []

  def subject(name, seconds):
    def sample():
      order.append(name)
      return next(seconds)
    return sample

  samples = timing.interleave({"a": subject("a", iter([2.0, 9.0, 4.0])),
                               "b": subject("b", iter([1.0, 3.0, 4.0]))}, 3)
  assert order == ["a", "b", "b", "a", "a", "b"]
  spread = timing.ratios(samples["a"], samples["b"])
  assert (spread.low, spread.median, spread.high) == (1, 2, 3)


def test_every_reader_reads_the_whole_buffer():
  for read in memory.readers(BUFFER).values():
    out = read()
    total = sum(map(float, out)) if isinstance(out, list) else float(np.sum(out))
    assert total == BUFFER // 4


def test_sizes_are_found():
  assert {"tiny", "small", "base", "large", "xl", "xxl"} <= set(sizes.names())
  with pytest.raises(SpecdecError, match="expected one of base, large"):
    sizes.load("huge")


@pytest.mark.parametrize("out_in", [False, True])
def test_prepared_weights_are_restored(out_in):
  params = workload_lib.random_params(models.TARGET)
  part = models.part(models.TARGET, out_in=out_in)
  restored = weights_lib.restore(part.weights, models.TARGET)
  assert weights_lib.mismatch(restored, models.TARGET) == ""
  import jax

  jax.tree.map(np.testing.assert_array_equal, restored, params)


@pytest.mark.parametrize("name", peers.NAMES)
def test_a_baseline_gives_our_ids(name):
  try:
    make = peers.find(name)
  except SpecdecError as error:
    pytest.skip(str(error))
  rows = 1 if "assisted" in name else 2
  work = models.workload(
      rows, more=(workload_lib.random_source(rows, 7, models.VOCAB, seed=5),))
  peer = make(work)
  assert peer.name == name and peer.whole() > 0
  assert [len(row) for row in peer.ids] == [models.MAX_LEN] * 2 * rows
  if "int8" not in name:
    assert peer.ids == _decoded(work).ids


def test_assisted_generation_is_for_one_row_and_a_t5():
  try:
    make = peers.find("hf_assisted")
  except SpecdecError as error:
    pytest.skip(str(error))
  with pytest.raises(SpecdecError, match="one row at a time: expected 1"):
    make(models.workload(2))
  copy = workload_lib.from_sizes("tiny", "copy", gamma=2, batch_size=1, source_len=8,
                                 max_decode_len=8)
  with pytest.raises(SpecdecError, match="is no T5"):
    make(copy)


def test_a_baseline_that_is_not_there_says_how_to_get_it(monkeypatch):
  monkeypatch.setattr(peers, "_installed", lambda package: False)
  for name, how in (("hf", "pip install"), ("ctranslate2", "specdec-jax\\[bench\\]"),
                    ("t5x", "git clone")):
    with pytest.raises(SpecdecError, match=how):
      peers.find(name)


def test_models_of_the_package_are_named_by_their_pair(tmp_path):
  assert records_lib.model_name(str(pairs.ASSETS / "demo" / "target")) == "demo/target"
  assert records_lib.model_name(str(tmp_path / "demo")) == str(tmp_path / "demo")
  assert records_lib.model_name("base") == "base"


def test_no_record_names_a_path_of_the_machine_it_was_made_on():
  for path in (pairs.ASSETS / "bench").glob("*.json"):
    record = json.loads(path.read_text(encoding="utf-8"))
    for field in ("target", "drafter"):
      assert not str(record.get(field, "")).startswith("/"), path.name
