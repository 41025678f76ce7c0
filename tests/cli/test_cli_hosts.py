"""`specdec infer` and `specdec eval` in two processes: what one process gives, whatever happens."""

import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest

import specdec
from specdec.cli.main import run
from specdec.engine.run_folder import RunFolder
from specdec.errors import SpecdecError
from specdec.testing import tiny

needs_seqio = pytest.mark.skipif(
    importlib.util.find_spec("seqio") is None or importlib.util.find_spec("tensorflow") is None,
    reason="seqio and TensorFlow are not installed (pip install 'specdec-jax[seqio]')")
ROOT = pathlib.Path(specdec.__file__).parents[1]
TEXTS = [s[:n] for n in (8, 20) for s in tiny.SENTENCES] * 2
COMMON = ("--task=none", "--max_decode_len=10", "--batch_size=4", "--temperature=1", "--gamma=2",
          "--shard_size=4")
# Several commands in one process, to start up once.
MANY = """
import sys, json
from specdec.cli.main import run
sys.exit(max(run(args) for args in json.loads(sys.argv[1])))
"""


def free_port():
  with socket.socket() as free:
    free.bind(("", 0))
    return free.getsockname()[1]


def launch(commands, folder, changes=()):
  """Two processes that run the same commands together, one after another.

  Args:
    commands: what is typed.
    folder: where.
    changes: what is typed besides in the second.
  """
  ports = [free_port() for _ in commands]
  started = []
  for i in range(2):
    typed = [[*command, *(changes if i else ()), f"--coordinator_address=127.0.0.1:{port}",
              "--num_processes=2", f"--process_id={i}", "--connect_timeout=200"]
             for command, port in zip(commands, ports)]
    started.append(subprocess.Popen(
        [sys.executable, "-c", MANY, json.dumps(typed)], stderr=subprocess.PIPE, text=True,
        cwd=folder, stdout=subprocess.PIPE,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}))
  return started


def ended(processes):
  """Codes and what was said on standard error."""
  try:
    said = [process.communicate(timeout=300)[1] for process in processes]
  finally:
    for process in processes:
      process.kill()
  return [process.returncode for process in processes], said


def shards(folder):
  return {p.name: p.read_bytes() for p in sorted(pathlib.Path(folder).glob("outputs-*"))}


def wait_for_shards(folder, count, processes):
  until = time.monotonic() + 200
  while len(list(pathlib.Path(folder).glob("outputs-*.jsonl"))) < count:
    assert time.monotonic() < until and all(p.poll() is None for p in processes)
    time.sleep(0.01)


def infer(pair, folder, *args):
  return ["infer", f"--pair={pair}", "--input_file=in.txt", f"--output_dir={folder}", *COMMON,
          *args]


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
  return tmp_path


def test_killed_and_asked_to_end_two_processes_end_like_one(saved_pair, folder):
  """Real processes, a real SIGKILL and a real SIGTERM, and the same command each time."""
  (folder / "in.txt").write_text("\n".join(TEXTS * 8) + "\n", encoding="utf-8")
  assert run(infer(saved_pair, "whole")) == 0
  whole, command = shards("whole"), infer(saved_pair, "out")
  assert len(whole) == 96

  processes = launch([command], folder)
  wait_for_shards("out", 1, processes)
  processes[1].send_signal(signal.SIGKILL)
  (code, _), (err, _) = ended(processes)
  assert code == 2 and "process 1 of 2" in err and "is gone" in err
  assert "of 96 shards are in out; the same command goes on" in err and err.count("\n") == 1
  kept = shards("out")
  assert 0 < len(kept) < 96 and not (folder / "out" / "summary.json").exists()

  processes = launch([command], folder)
  wait_for_shards("out", len(kept) + 1, processes)
  with pytest.raises(SpecdecError, match="another process is writing to out"):
    RunFolder("out", {}, 96)  # As another job does.
  processes[1].send_signal(signal.SIGTERM)
  codes, said = ended(processes)
  assert codes == [130, 130] and "ending after this shard" in said[1]
  assert all("of 96 shards are in out; the same command goes on" in err for err in said)
  assert len(kept) < len(shards("out")) <= 96

  codes, said = ended(launch([command], folder))
  assert codes == [0, 0] and "written to out" in said[0] and said[1] == ""
  assert shards("out") == whole and not list((folder / "out").glob("*.partial"))
  for name in ("summary.json", "operative.gin"):
    there = (folder / "out" / name).read_text().replace("'out'", "'whole'")
    assert there == (folder / "whole" / name).read_text()


def test_every_kind_of_drafter_gives_the_ids_of_one_process(saved_pair, folder):
  drafters = ("copy", "uniform", f"copy:gamma=1+{saved_pair}/drafter")
  commands = [infer(saved_pair, f"out{i}", f"--drafter={drafter}", "--shard_size=16")
              for i, drafter in enumerate(drafters)]
  processes = launch([*commands, infer(saved_pair, "auto", "--gamma=auto", "--max_decode_len=3",
                                              "--shard_size=16")],
                     folder)
  codes, said = ended(processes)
  assert codes == [0, 0], said
  for i, drafter in enumerate(drafters):
    assert run(infer(saved_pair, f"one{i}", f"--drafter={drafter}", "--shard_size=16")) == 0
    assert shards(f"one{i}") == shards(f"out{i}")
  # What automatic gamma goes by is measured once; by the same costs one process says the same.
  assert run(["infer", "--gin_file=auto/operative.gin", "--output_dir=again"]) == 0
  assert shards("auto") == shards("again") and len(shards("auto")) == 3


def test_processes_that_are_started_differently_are_told(saved_pair, folder):
  for changes, expected in (
      (["--seed=1"], "do different things (seed 0 in process 0, 1 here)"),
      (["--input_file=-"], "--input_file is -, and several processes read it")):
    codes, said = ended(launch([infer(saved_pair, "out")], folder, changes))
    assert codes == [2, 2] and all(expected in err and err.count("\n") == 1 for err in said), said


def test_layouts_that_cannot_be(folder, saved_pair, mistake):
  command = infer(saved_pair, "out")
  assert "--num_processes and --process_id are missing" in mistake(
      *command, "--coordinator_address=a:1")
  assert "--connect_timeout is 0; expected seconds" in mistake(*command, "--connect_timeout=0")
  assert "cannot reach process 0 at 127.0.0.1:" in mistake(
      *command, f"--coordinator_address=127.0.0.1:{free_port()}", "--num_processes=2",
      "--process_id=1", "--connect_timeout=1")
  assert not (folder / "out").exists()


@needs_seqio
def test_an_evaluation_in_two_processes_has_the_digits_of_one(saved_pair, folder):
  (folder / "a.tsv").write_text("".join(f"{text}\t{text}\n" for text in TEXTS))
  command = lambda out: [
      "eval", f"--pair={saved_pair}", "--data_file=a.tsv", f"--output_dir={out}",
      "--metrics=sequence_accuracy,bleu", "--max_decode_len=8", "--batch_size=4", "--gamma=2",
      "--temperature=1", "--baseline=plain"]
  codes, said = ended(launch([command("both")], folder))
  # TensorFlow has its own things to say.
  assert codes == [0, 0] and "written to both" in said[0] and "written to" not in said[1], said
  assert run(command("one")) == 0
  one, both = (json.loads((folder / out / "results.json").read_text()) for out in ("one", "both"))
  assert (one.pop("processes"), both.pop("processes")) == (1, 2)
  times = ("seconds", "tokens_per_s", "warm_up_s", "time_ratio", "environment")
  for found in (one, one["baseline"], both, both["baseline"]):
    for name in times:
      found.pop(name, None)
  assert one == both and one["tokens"] > 0
  assert ((folder / "one" / "predictions.jsonl").read_bytes()
          == (folder / "both" / "predictions.jsonl").read_bytes())
