"""`specdec infer`: what it writes, how it goes on, and what it refuses."""

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from specdec.cli.main import run
from specdec.testing import tiny

TEXTS = [s[:n] for n in (8, 20) for s in tiny.SENTENCES]
COMMON = ("--task=none", "--max_decode_len=10", "--batch_size=4", "--temperature=1", "--gamma=2",
          "--shard_size=8")


@pytest.fixture
def infer(memory_pair, capsys, tmp_path, monkeypatch):
  """Runs `specdec infer` on the tiny pair, in a folder with an input: -> code, stderr."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")

  def call(*args):
    code = run(["infer", "--pair=tiny", "--output_dir=out", *COMMON, *args])
    return code, capsys.readouterr().err
  return call


def shards(folder="out"):
  return {p.name: p.read_bytes() for p in sorted(pathlib.Path(folder).glob("outputs-*"))}


def records(folder="out"):
  return [json.loads(line) for data in shards(folder).values() for line in data.splitlines()]


def test_shards_a_summary_and_what_took_effect(infer, tmp_path):
  code, err = infer("--input_file=in.txt")
  assert code == 0 and "written to out" in err
  assert sorted(shards()) == [f"outputs-0000{i}-of-00003.jsonl" for i in range(3)]
  found = records()
  assert [r["input"] for r in found] == TEXTS and [r["index"] for r in found] == list(range(24))
  summary = json.loads((tmp_path / "out" / "summary.json").read_text())
  assert summary["outputs"] == 24 and summary["failed"] == 0 and summary["lossless"]
  assert summary["tokens"] == sum(len(r["output_ids"]) for r in found)
  before = shards()
  code, err = infer("--input_file=in.txt")  # All of it is there.
  assert code == 0 and "3 of 3 shards are there already" in err and shards() == before
  code, _ = infer("--gin_file=out/operative.gin", "--output_dir=again", "--input_file=in.txt")
  assert code == 0 and shards("again") == before


def test_standard_input_and_fields(infer, tmp_path, monkeypatch):
  infer("--input_file=in.txt")
  lines = "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TEXTS))
  monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
  code, _ = infer("--input_file=-", "--format=jsonl", "--field=text", "--output_dir=piped")
  assert code == 0 and shards("piped") == shards()


def test_faulty_lines_are_told_of_and_counted(infer, tmp_path):
  (tmp_path / "in.jsonl").write_text('{"input": "A boat."}\nno\n{"input": "A cat."}\n')
  code, err = infer("--input_file=in.jsonl")
  assert code == 0 and "1 of 3 inputs could not be decoded" in err
  first, broken, last = records()
  assert broken["line"] == 2 and "not JSON" in broken["error"] and last["index"] == 2
  assert first["output_ids"]


def test_files_of_something_else_are_not_replaced_unless_told(infer, tmp_path):
  (tmp_path / "out").mkdir()
  (tmp_path / "out" / "summary.json").write_text("mine")
  code, err = infer("--input_file=in.txt")
  assert code == 2 and "out holds summary.json of something else; add --overwrite" in err
  assert (tmp_path / "out" / "summary.json").read_text() == "mine"
  code, _ = infer("--input_file=in.txt", "--overwrite")
  assert code == 0 and len(shards()) == 3
  (tmp_path / "out" / "run.json").write_text("{")
  code, err = infer("--input_file=in.txt")
  assert code == 2 and "run.json is broken" in err and len(shards()) == 3


def test_a_shard_that_lost_lines_is_named(infer, tmp_path):
  infer("--input_file=in.txt")
  path = tmp_path / "out" / "outputs-00001-of-00003.jsonl"
  path.write_text(path.read_text().split("\n")[0] + "\n")
  code, err = infer("--input_file=in.txt")
  assert code == 2 and "outputs-00001-of-00003.jsonl is broken (1 of 8 inputs)" in err
  path.unlink()
  code, _ = infer("--input_file=in.txt")
  assert code == 0 and len(records()) == 24


def test_an_input_that_changed_is_told(infer, tmp_path):
  infer("--input_file=in.txt")
  with (tmp_path / "in.txt").open("a") as f:
    f.write("one more\n")
  code, err = infer("--input_file=in.txt")
  assert code == 2 and "another run (the input has changed)" in err


def test_measured_costs_are_those_of_what_took_effect(infer, tmp_path):
  args = ["--input_file=in.txt", "--gin.Settings.gamma='auto'", "--output_dir=auto"]
  without = [a for a in COMMON if a != "--gamma=2"]
  assert run(["infer", "--pair=tiny", *without, *args]) == 0
  assert run(["infer", "--pair=tiny", *without, *args, "--gin_file=auto/operative.gin"]) == 0
  code = run(["infer", "--pair=tiny", *without, *args, "--gin.Costs.iteration=(1.0, 2.0)",
              "--gin.Costs.sizes=(0, 1)", "--gin.Costs.alpha=0.5"])
  assert code == 2


@pytest.mark.parametrize("args, expected", [
    ([], "--input_file is missing"),
    (["--input_file=in.txt", "--output_dir="], "--output_dir is missing"),
    (["--input_file=nowhere.txt"], "cannot read nowhere.txt: No such file"),
    (["--input_file=in.txt", "A dog."], "there are texts ('A dog.')"),
    (["--input_file=in.txt", "--shard_size=0"], "shard_size is 0; expected an integer from 1"),
    (["--input_file=in.txt", "--field=text"], "which has none; expected the format tsv or jsonl"),
    (["--input_file=in.txt", "--seqio_task=ende"], "--input_file does not go with --seqio_task"),
    (["--input_file=in.txt", "--split=train"], "--split does not go with --input_file"),
    (["--input_file=in.txt", f"--output_dir={'x' * 300}"], "File name too long"),
    (["--input_file=in.txt", "--format=csv"], "expected one of text, tsv, jsonl"),
    (["--input_file=in.txt", "--gin.Settings.top_k=[0, 1]"], "expects one value for all"),
    (["--input_file=in.txt", "--output_dir=in.txt"], "in.txt is no folder"),
    (["--input_file=in.txt", "--output_dir=a/b/c"], "there is no folder a/b; create it first"),
])
def test_mistakes(infer, args, expected):
  code, err = infer(*args)
  assert code == 2 and expected in err and err.count("\n") == 1


def test_another_run_is_refused_by_what_differs(infer):
  infer("--input_file=in.txt")
  before = shards()
  code, err = infer("--input_file=in.txt", "--seed=5")
  assert code == 2 and "another run (seed 0 there, 5 now)" in err and "--overwrite" in err
  assert shards() == before
  code, _ = infer("--input_file=in.txt", "--seed=5", "--overwrite")
  assert code == 0 and shards() != before


def test_killed_and_started_again_it_ends_like_an_undisturbed_run(saved_pair, tmp_path):
  """A real process and a real SIGKILL."""
  source = tmp_path / "in.txt"
  source.write_text("\n".join(TEXTS * 8) + "\n", encoding="utf-8")

  def start(folder):
    args = [f"--pair={saved_pair}", f"--input_file={source}", f"--output_dir={folder}", *COMMON]
    return subprocess.Popen([sys.executable, "-m", "specdec", "infer", *args],
                            stderr=subprocess.DEVNULL, env={**os.environ, "JAX_PLATFORMS": "cpu"})

  killed = tmp_path / "killed"
  process = start(killed)
  # As soon as there is a shard, most likely in the middle of the next.
  until = time.monotonic() + 120
  while not shards(killed) and time.monotonic() < until and process.poll() is None:
    time.sleep(0.01)
  process.send_signal(signal.SIGKILL)
  assert process.wait() == -signal.SIGKILL
  assert 0 < len(shards(killed)) < 24
  for folder in (killed, tmp_path / "whole"):
    assert start(folder).wait() == 0
  assert shards(killed) == shards(tmp_path / "whole") and len(shards(killed)) == 24


def test_a_request_to_end_finishes_the_shard(infer, monkeypatch):
  from specdec.engine import run_folder

  real = run_folder.RunFolder.write_shard

  def write(self, index, lines):
    os.kill(os.getpid(), signal.SIGTERM)
    real(self, index, lines)

  monkeypatch.setattr(run_folder.RunFolder, "write_shard", write)
  code, err = infer("--input_file=in.txt")
  assert code == 130 and "1 of 3 shards are in out; the same command goes on" in err
  assert len(shards()) == 1
