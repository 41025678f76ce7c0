"""Checks that several processes write what one does, with every drafter of the demo pair.

    python scripts/check_processes.py --data_dir=multi30k --processes=2

Sentences of multi30k's test set go through `specdec infer` in one process and in several on this
machine, greedily and at temperature 1. The last line says whether all shards are the same, byte
for byte: ids, texts, scores and counts.
"""

import gzip
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags

_DATA = flags.DEFINE_string("data_dir", None, "Folder with the multi30k files.", required=True)
_LIMIT = flags.DEFINE_integer("limit", 200, "How many sentences.", lower_bound=1)
_PROCESSES = flags.DEFINE_integer("processes", 2, "How many share the work.", lower_bound=2)
_SHARD_SIZE = flags.DEFINE_integer("shard_size", 20, "Sentences per shard.", lower_bound=1)
_DRAFTERS = flags.DEFINE_list(
    "drafters", ["drafter", "bigram", "copy", "uniform", "bigram+drafter"], "Which drafters.")
_TEMPERATURES = flags.DEFINE_list("temperatures", ["0", "1"], "At which temperatures.")


def run(source: pathlib.Path, folder: pathlib.Path, count: int, args: list[str]) -> float:
  """Decodes in so many processes; returns how long they took."""
  with socket.socket() as free:
    free.bind(("", 0))
    port = free.getsockname()[1]
  command = [sys.executable, "-m", "specdec", "infer", f"--input_file={source}",
             f"--output_dir={folder}", f"--shard_size={_SHARD_SIZE.value}", *args]
  begin = time.monotonic()
  started = []
  for i in range(count):
    layout = [f"--coordinator_address=127.0.0.1:{port}", f"--num_processes={count}",
              f"--process_id={i}"]
    started.append(subprocess.Popen(command + layout, stderr=subprocess.PIPE, text=True))
  for process in started:
    err = process.communicate()[1]
    if process.returncode:
      sys.exit(f"specdec infer ended with {process.returncode}: {err.strip()}")
  return time.monotonic() - begin


def contents(folder: pathlib.Path) -> dict[str, bytes]:
  """Shards and the summary by name."""
  names = [*sorted(folder.glob("outputs-*.jsonl")), folder / "summary.json"]
  return {path.name: path.read_bytes() for path in names}


def main(argv):
  del argv
  path = pathlib.Path(_DATA.value) / "test_2016_flickr.en.gz"
  with gzip.open(path, "rt", encoding="utf-8") as f:
    lines = f.read().splitlines()[:_LIMIT.value]
  every = True
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "in.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for drafter in _DRAFTERS.value:
      for temperature in _TEMPERATURES.value:
        args = [f"--drafter={drafter}", f"--temperature={temperature}", "--seed=3"]
        one, several = (folder / f"{drafter}-{temperature}-{n}" for n in ("one", "several"))
        seconds = [round(run(folder / "in.txt", one, 1, args), 1),
                   round(run(folder / "in.txt", several, _PROCESSES.value, args), 1)]
        found = contents(one)
        same = found == contents(several)
        every &= same
        print(json.dumps({
            "drafter": drafter, "temperature": float(temperature), "inputs": len(lines),
            "shards": len(found) - 1, "processes": _PROCESSES.value, "seconds": seconds,
            "identical": same}), flush=True)
  print("ALL IS WELL: shards are byte-identical" if every else "NOT THE SAME")
  sys.exit(0 if every else 1)


if __name__ == "__main__":
  app.run(main)
