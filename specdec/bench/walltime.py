"""Which rows of the paper's walltime table a device can run, on widened pairs."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import math
import pathlib

import jax

from specdec.analysis import paper
from specdec.checkpoints import mapping
from specdec.errors import SpecdecError
from specdec.models.t5 import sizes

# Largest last.
TARGETS = ("base", "large", "xl", "xxl")
# The paper's target first; a CPU would take hours over it, and base stands in.
_CPU_TARGET = "base"
# Caches, activations and programs, beside the weights. A CPU packs weights into a second copy.
_SLACK, _CPU_SLACK = 1.25, 2.2
_ORDER = ("tiny", "small", *TARGETS)
_PREFIX = "t5_1_1_"


@dataclasses.dataclass(frozen=True)
class Run:
  """A run of `specdec bench`.

  Attributes:
    target: size.
    drafter: size, below the target's.
    row: the task's name in the record.
    task: the task of the pair.
    temperature: as in the paper's row.
    gamma: likewise, or what was asked for.
  """

  target: str
  drafter: str
  row: str
  task: str
  temperature: float
  gamma: int


def plan(target: str, tasks: Mapping[str, str], gammas: Sequence[int] = ()) -> list[Run]:
  """The runs of a target: twelve, and fewer for one that is no larger than some drafters.

  Args:
    target: a size.
    tasks: the pair's tasks by their names in records. One that is not the paper's takes
      the drafters, temperatures and gammas of its rows for EnDe.
    gammas: instead of the paper's.

  >>> [(r.drafter, r.temperature, r.gamma) for r in plan("base", {"ende": "translate"})]
  [('small', 0, 7), ('small', 1, 7)]
  """
  if target not in _ORDER:
    raise SpecdecError(f"the target is {target!r}; expected one of {', '.join(_ORDER)}")
  rows = paper.read("walltime")["rows"]
  runs = []
  for name, task in tasks.items():
    like = name if any(row["task"] == name for row in rows) else "ende"
    for row in rows:
      drafter = row["drafter"].removeprefix(_PREFIX)
      if row["task"] == like and _ORDER.index(drafter) < _ORDER.index(target):
        runs += [Run(target, drafter, name, task, row["temperature"], gamma)
                 for gamma in gammas or (row["gamma"],)]
  return runs


def target_for(memory_bytes: float, on_cpu: bool) -> str:
  """The largest target whose weights, and those of the largest drafter, fit into a device.

  In float32 on a CPU, where no target beyond base is taken for the time it would need, and in
  bfloat16 elsewhere.

  Raises:
    SpecdecError: not even the smallest does.
  """
  def needed(target: str) -> float:
    drafter = _ORDER[min(_ORDER.index(target) - 1, _ORDER.index("large"))]
    shapes = [shape for size in (target, drafter)
              for shape in mapping.parameter_shapes(sizes.load(size).to_dict()).values()]
    return sum(map(math.prod, shapes)) * (4 * _CPU_SLACK if on_cpu else 2 * _SLACK)

  wanted = TARGETS[:TARGETS.index(_CPU_TARGET) + 1] if on_cpu else TARGETS
  fitting = [target for target in wanted if needed(target) <= memory_bytes]
  if not fitting:
    raise SpecdecError(f"T5-{wanted[0]} and a drafter need {needed(wanted[0]) / 2**30:.1f} GiB and "
                       f"there are {memory_bytes / 2**30:.1f} GiB; use a device with more memory")
  return fitting[-1]


def memory_bytes() -> float:
  """Memory of the first device, or what the system has left for a CPU."""
  stats = jax.devices()[0].memory_stats() or {}
  if "bytes_limit" in stats:
    return float(stats["bytes_limit"])
  for line in pathlib.Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
    if line.startswith("MemAvailable:"):
      return float(line.split()[1]) * 1024
  raise SpecdecError("this device does not tell its memory; name a target yourself")
