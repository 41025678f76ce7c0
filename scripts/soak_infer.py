"""Kills `specdec infer` at random and looks at what is left: nothing lost, nothing doubled.

    python scripts/soak_infer.py --input_file=in.txt --kills=10 -- --batch_size=32 --temperature=1

What stands behind -- goes to `specdec infer`. One run is killed with SIGKILL at random moments
and started again, another is left alone; the last line says whether their shards are the same,
byte for byte, and hold every input once, in order.
"""

import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags

_INPUT = flags.DEFINE_string("input_file", None, "A text a line.", required=True)
_KILLS = flags.DEFINE_integer("kills", 10, "How often the run is killed.", lower_bound=1)
_SEED = flags.DEFINE_integer("seed", 0, "Of the moments.")


def start(folder: pathlib.Path, args: list[str]) -> subprocess.Popen:
  """A run into a folder."""
  return subprocess.Popen(
      [sys.executable, "-m", "specdec", "infer", f"--input_file={_INPUT.value}",
       f"--output_dir={folder}", *args], stderr=subprocess.PIPE, text=True)


def contents(folder: pathlib.Path) -> dict[str, bytes]:
  """Shards by name."""
  return {path.name: path.read_bytes() for path in sorted(folder.glob("outputs-*.jsonl"))}


def seconds_to_first_shard(folder: pathlib.Path, process: subprocess.Popen) -> float:
  """Until something is there, or the run has ended."""
  begin = time.monotonic()
  while not contents(folder) and process.poll() is None:
    time.sleep(0.05)
  return time.monotonic() - begin


def finish(process: subprocess.Popen) -> None:
  """Waits for a run, which must succeed."""
  err = process.communicate()[1]
  if process.returncode:
    sys.exit(f"specdec infer ended with {process.returncode}: {err.strip()}")


def main(argv):
  args = argv[1:]
  rng = random.Random(_SEED.value)
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    whole, killed = folder / "whole", folder / "killed"
    begin = time.monotonic()
    process = start(whole, args)
    first_s = seconds_to_first_shard(whole, process)
    finish(process)
    whole_s = time.monotonic() - begin
    # Moments between the start of a process and three shards on.
    longest = first_s + 3 * max((whole_s - first_s) / len(contents(whole)), 0.1)
    left = []
    for i in range(_KILLS.value):
      process = start(killed, args)
      try:
        process.wait(rng.uniform(0.2, 1.0) * longest)
        sys.exit(f"the run ended by itself after {i} kills; give it more inputs")
      except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
      process.communicate()
      left.append(len(contents(killed)))
      print(f"killed {i + 1} times, {left[-1]} shards", flush=True)
    finish(start(killed, args))
    found = contents(killed)
    indices = [json.loads(line)["index"] for data in found.values() for line in data.splitlines()]
    same = found == contents(whole)
    once = indices == sorted(set(indices)) == list(range(len(indices)))
  print(json.dumps({"inputs": len(indices), "shards": len(found), "kills": _KILLS.value,
                    "shards_after_each_kill": left, "first_shard_s": round(first_s, 1),
                    "undisturbed_s": round(whole_s, 1)}))
  print(f"{'ALL IS WELL' if same and once else 'NOT THE SAME'}: shards "
        f"{'are' if same else 'are not'} byte-identical, inputs {'once' if once else 'not once'} "
        "each, in order")
  sys.exit(0 if same and once else 1)


if __name__ == "__main__":
  app.run(main)
