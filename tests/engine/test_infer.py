"""Long runs: shards are whole or not there; one that was killed ends like one that was not."""

import json
import random

import pytest

import specdec
from specdec.data.lines import LineFile
from specdec.engine.infer import Inference
from specdec.engine.run_folder import RunFolder
from specdec.errors import SpecdecError
from specdec.testing import tiny

OPTIONS = {"max_decode_len": 12, "batch_size": 4, "temperature": 1.0, "gamma": 2}
TEXTS = [s[:n] for n in (6, 14, 30) for s in tiny.SENTENCES[:8]]


@pytest.fixture
def lines(tmp_path):
  path = tmp_path / "in.jsonl"
  written = [json.dumps({"input": text}) for text in TEXTS]
  written[5] = "{broken"
  path.write_text("\n".join(written) + "\n")
  return LineFile(path)


def work(lines, shard_size=7, **changes):
  return Inference(tiny.pair(), lines, shard_size, OPTIONS | changes, task="")


def folder(path, made, **options):
  return RunFolder(path, {"size": made.shard_size, **options}, made.shards)


def run(path, made, progress=lambda record: None, **options):
  with folder(path, made) as opened:
    made.pin(opened)
    finished = made.run(opened, json.dumps, progress, **options)
    return finished, made.counts(opened)


def contents(path):
  return {p.name: p.read_bytes() for p in sorted(path.glob("outputs-*"))}


def test_records_are_those_of_generate_in_the_order_of_the_file(lines, tmp_path):
  finished, counts = run(tmp_path / "out", work(lines))
  assert finished and (counts.inputs, counts.failed) == (len(TEXTS) - 1, 1)
  found = [json.loads(line) for data in contents(tmp_path / "out").values()
           for line in data.splitlines()]
  assert [r["index"] for r in found] == list(range(len(TEXTS)))
  assert found[5] == {"index": 5, "line": 6, "error": found[5]["error"]}
  assert "not JSON" in found[5]["error"]
  whole = specdec.generate(tiny.pair(), TEXTS, task="", **OPTIONS)
  for record, expected in zip(found, whole.records):
    assert "error" in record or record["output_ids"] == expected.output_ids
  assert not any("time" in name or name.endswith("_s") for name in found[0])


def test_samples_of_an_input_stand_together(lines, tmp_path):
  _, counts = run(tmp_path / "out", work(lines, num_decodes=2))
  assert counts.outputs == 2 * counts.inputs == 2 * (len(TEXTS) - 1)
  first = json.loads(next(iter(contents(tmp_path / "out").values())).splitlines()[1])
  assert first["index"] == 0


class Killed(BaseException):
  """Nobody catches it."""


def test_killed_anywhere_it_ends_byte_for_byte_like_an_undisturbed_run(lines, tmp_path):
  run(tmp_path / "whole", work(lines))
  rng = random.Random(3)

  def kill(record):
    if rng.random() < 0.15:
      raise Killed

  deaths, finished = 0, False
  while not finished:
    try:
      finished, _ = run(tmp_path / "killed", work(lines), kill)
    except Killed:
      deaths += 1
      assert not list((tmp_path / "killed").glob("*.partial"))
  assert deaths > 3
  assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_what_a_real_kill_leaves_is_cleared_away(lines, tmp_path):
  run(tmp_path / "whole", work(lines))
  made = work(lines)
  with folder(tmp_path / "killed", made) as opened:
    left = opened.path / (opened.shard_path(1).name + ".partial")
    left.write_text('{"half of a li')
  run(tmp_path / "killed", work(lines))
  assert not left.exists() and contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_request_to_stop_is_obeyed_after_a_shard(lines, tmp_path):
  asked = iter([False, True])
  finished, _ = run(tmp_path / "out", work(lines), stop=lambda: next(asked))
  assert not finished and len(contents(tmp_path / "out")) == 1


def test_costs_of_automatic_gamma_are_measured_once_per_run(lines, tmp_path):
  made = work(lines, gamma="auto", shard_size=30)
  with folder(tmp_path / "out", made) as opened:
    made.pin(opened)
  again = work(lines, gamma="auto", shard_size=30)
  with folder(tmp_path / "out", again) as opened:
    again.pin(opened)
  assert made.costs == again.costs and made.costs is not None


def test_inputs_that_would_be_cut_are_told_of_where_that_is_wanted(lines, tmp_path):
  _, counts = run(tmp_path / "out", work(lines, strict_length=True, max_source_len=8))
  assert 1 < counts.failed < len(TEXTS)
  found = [json.loads(line) for data in contents(tmp_path / "out").values()
           for line in data.splitlines()]
  assert any("expected at most 8" in r.get("error", "") for r in found)


def test_another_run_is_refused_and_replaced_only_when_told(lines, tmp_path):
  out = tmp_path / "out"
  run(out, work(lines))
  before = contents(out)
  with pytest.raises(SpecdecError, match=r"another run \(size 7 there, 9 here|size 7 there, 9 now"):
    folder(out, work(lines, shard_size=9))
  assert contents(out) == before
  with RunFolder(out, {"size": 9}, 3, overwrite=True) as opened:
    assert not contents(out) and not opened.is_done(0)
  (out / "run.json").unlink()
  (out / "outputs-00000-of-00002.jsonl").write_text("mine\n")
  with pytest.raises(SpecdecError, match="another run"):
    folder(out, work(lines))


def test_two_processes_do_not_write_to_one_folder(lines, tmp_path):
  made = work(lines)
  with folder(tmp_path / "out", made):
    with pytest.raises(SpecdecError, match="another process is writing"):
      folder(tmp_path / "out", made)
  folder(tmp_path / "out", made).__exit__()


def test_a_full_disk_is_told_and_finished_shards_are_kept(lines, tmp_path):
  made = work(lines)
  with folder(tmp_path / "out", made) as opened:
    opened.write_shard(0, ["{}"])

    def full():
      yield "{}"
      raise OSError(28, "No space left on device")

    with pytest.raises(SpecdecError, match="No space left on device; 1 finished shards are kept"):
      opened.write_shard(1, full())
    assert not list(opened.path.glob("*.partial")) and opened.is_done(0)


def test_a_broken_shard_is_named(lines, tmp_path):
  made = work(lines)
  run(tmp_path / "out", made)
  with folder(tmp_path / "out", made) as opened:
    opened.shard_path(1).write_text("{")
    with pytest.raises(SpecdecError, match=r"outputs-00001.*is broken.*remove it"):
      made.counts(opened)
