"""Decodes batch after batch and looks at what stays: resident memory and arrays on the device.

    python scripts/soak_memory.py --batches=500
    python scripts/soak_memory.py --pair=tiny --batches=500 --gamma=auto

Batches have 1 to --batch_size inputs of many lengths, all shapes are seen in the first --warm of
them, and none of what is measured afterwards may grow by more than --most.
"""

import gc
import json
import pathlib
import random
import resource
import sys
import time

from absl import app
from absl import flags

_PAIR = flags.DEFINE_string("pair", "demo", "A pair of specdec, or tiny: one of random weights.")
_BATCHES = flags.DEFINE_integer("batches", 500, "How many.", lower_bound=2)
_WARM = flags.DEFINE_integer("warm", 20, "How many of them come before the first look.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 4, "Most inputs of a batch.")
_GAMMA = flags.DEFINE_string("gamma", "4", "Tokens drafted, or auto.")
_MOST = flags.DEFINE_float("most", 0.02, "Growth that is no growth.")
_WORDS = "a dog runs across the grass and two children are building a tower".split()


def look() -> dict[str, int]:
  """What there is now."""
  import jax

  gc.collect()
  pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
  live = jax.live_arrays()
  return {"resident_bytes": pages * resource.getpagesize(), "arrays": len(live),
          "array_bytes": sum(x.nbytes for x in live)}


def main(argv):
  del argv
  import specdec
  from specdec.engine import shapes
  from specdec.testing import tiny

  pair = tiny.pair() if _PAIR.value == "tiny" else specdec.load_pair(_PAIR.value)
  gamma = _GAMMA.value if _GAMMA.value == "auto" else int(_GAMMA.value)
  costs = specdec.Costs((1.0, 1.2, 1.4), 0.7, (0, 1, 4)) if gamma == "auto" else None
  rng = random.Random(0)
  seen, begin = [], time.monotonic()
  for i in range(_BATCHES.value):
    # Every size and width is there before the first look.
    count = rng.randint(1, _BATCH_SIZE.value) if i >= _WARM.value else 1 + i % _BATCH_SIZE.value
    words = rng.choice((3, 12)) if i >= _WARM.value else (3, 12)[i // _BATCH_SIZE.value % 2]
    texts = [" ".join(rng.choices(_WORDS, k=rng.randint(1, words))) for _ in range(count)]
    specdec.generate(pair, texts, gamma=gamma, costs=costs, temperature=1.0, seed=i,
                     batch_size=_BATCH_SIZE.value, max_decode_len=12)
    if i + 1 == _WARM.value or (i + 1) % 50 == 0 or i + 1 == _BATCHES.value:
      seen.append({"batches": i + 1, **look(), "shapes": shapes.count()})
      print(json.dumps(seen[-1]), flush=True)
  first = next(s for s in seen if s["batches"] >= _WARM.value)
  growth = {name: seen[-1][name] / first[name] - 1
            for name in ("resident_bytes", "arrays", "array_bytes")}
  well = all(value <= _MOST.value for value in growth.values())
  print(f"{'ALL IS WELL' if well else 'IT GROWS'}: "
        + ", ".join(f"{name} {value:+.2%}" for name, value in growth.items())
        + f" from batch {first['batches']} to {seen[-1]['batches']}, "
        f"{time.monotonic() - begin:.0f} s")
  sys.exit(not well)


if __name__ == "__main__":
  app.run(main)
