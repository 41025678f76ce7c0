"""A bound on the programs that a process keeps compiled.

Every shape has programs of its own. Those of one job are few, as its inputs are bucketed, but
a process that lives long may see many jobs: other limits, batch sizes, prompts, gammas. Each
program takes dozens of memory maps, a process may have some 65,000 of them (Linux's
vm.max_map_count), and XLA dies of one too many. So when there are too many, all are let go of;
those still in use are compiled again, or read from disk (`engine.program_cache`).
"""

from collections.abc import Hashable
import pathlib
from typing import Any

# Shapes, of two programs or more each, and with automatic gamma of a dozen.
LIMIT = 64
# Where maps can be counted. Other libraries need some as well.
_MAPS = 20_000

_MAPS_FILE = pathlib.Path("/proc/self/maps")
_seen: set[Hashable] = set()
_functions: list[Any] = []


def bounded(function: Any) -> Any:
  """Has the programs of a jitted function let go of with all others; returns the function."""
  _functions.append(function)
  return function


def enter(shape: Hashable) -> None:
  """Notes a shape that the bounded functions are about to be called with."""
  if shape in _seen:
    return
  if len(_seen) >= LIMIT or _maps() > _MAPS:
    for function in _functions:
      function.clear_cache()
    _seen.clear()
  _seen.add(shape)


def count() -> int:
  """Shapes with programs."""
  return len(_seen)


def programs() -> int:
  """Programs of the bounded functions."""
  return sum(function._cache_size() for function in _functions)


def _maps() -> int:
  """Memory maps of this process; 0 where nobody knows."""
  try:
    return _MAPS_FILE.read_bytes().count(b"\n")
  except OSError:
    return 0
