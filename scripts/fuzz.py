"""Damages what specdec reads, thousands of times, and looks at what becomes of it.

    python scripts/fuzz.py --examples=10000
    python scripts/fuzz.py --examples=10000 --reader=safetensors --seed=7

Every outcome must be a result or an error of one line (see tests/fuzz/readers.py, whose
strategies these are). One line of JSON a reader; a reader that fails prints the smallest example
that makes it, and the others go on. A reader that crashes Python ends with the signal's number.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags

_ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

_EXAMPLES = flags.DEFINE_integer("examples", 10_000, "Inputs per reader.", lower_bound=1)
_READER = flags.DEFINE_multi_string("reader", [], "Readers; all by default.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the damage.")


def fuzz(name: str, examples: int, seed: int) -> dict:
  """Tries a reader; returns what became of how many."""
  import hypothesis
  from hypothesis import strategies as st

  from tests.fuzz import readers

  found = {"read": 0, "refused": 0}
  with tempfile.TemporaryDirectory(prefix="specdec-fuzz-") as folder:
    bench = readers.Bench(readers.READERS[name], pathlib.Path(folder))

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples, deadline=None, database=None, report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(st.data())
    def run(data):
      found[bench.check(data.draw(bench.damages))] += 1

    begin = time.monotonic()
    with readers.limits(hang_s=3600):
      run()
  return {"reader": name, "examples": sum(found.values()), **found,
          "seconds": round(time.monotonic() - begin, 1)}


def main(argv):
  del argv
  from tests.fuzz import readers

  names = _READER.value or list(readers.READERS)
  unknown = sorted(set(names) - set(readers.READERS))
  if unknown:
    sys.exit(f"there is no reader {unknown[0]}; expected some of {', '.join(readers.READERS)}")
  if len(names) == 1:
    print(json.dumps(fuzz(names[0], _EXAMPLES.value, _SEED.value)), flush=True)
    return
  failed = []
  for name in names:
    # A process each: one that crashes takes no other along.
    done = subprocess.run([sys.executable, __file__, f"--reader={name}", f"--seed={_SEED.value}",
                           f"--examples={_EXAMPLES.value}"], capture_output=True, text=True)
    if done.returncode:
      failed.append(name)
      lines = [line[:400] for line in done.stderr.splitlines()][-40:]
      print(f"{name} FAILED with {done.returncode}:", *lines, sep="\n", flush=True)
    else:
      print(done.stdout.strip().splitlines()[-1], flush=True)
  print(f"{len(names) - len(failed)} of {len(names)} readers are sound"
        + (f"; FAILED: {', '.join(failed)}" if failed else ""))
  sys.exit(bool(failed))


if __name__ == "__main__":
  app.run(main)
