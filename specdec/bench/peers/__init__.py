"""Other libraries on the same weights and inputs, as baselines.

Each is imported when it is asked for, and only here: none of them is needed to decode.
A baseline decodes greedily as many tokens as our side and may not end before.
"""

from collections.abc import Callable
import importlib
import importlib.util
from typing import Protocol

from specdec.bench.workload import Workload
from specdec.errors import SpecdecError


class Peer(Protocol):
  """A library, ready to decode a workload.

  Attributes:
    name: as typed.
    version: of the library.
    dtype: that it computes in.
    ids: what the last `whole` generated, by row.
  """

  name: str
  version: str
  dtype: str
  ids: list[list[int]]

  def whole(self) -> float:
    """Encodes and decodes everything; returns the seconds it took."""
    ...


class _Entry:
  """Where a baseline is, what it imports and how to get that."""

  def __init__(self, module: str, make: str, needs: tuple[str, ...], how: str):
    self.module, self.make, self.needs, self.how = module, make, needs, how


_HOW_HF = "pip install 'specdec-jax[bench]'"
_HOW_CT2 = "pip install 'specdec-jax[bench]'"
_HOW_T5X = ("it is not on the package index: git clone https://github.com/google-research/t5x "
            "and put the clone on PYTHONPATH")
_ENTRIES = {
    "t5x": _Entry("t5x", "T5X", ("t5x",), _HOW_T5X),
    "hf": _Entry("hf", "HuggingFace", ("torch", "transformers"), _HOW_HF),
    "hf_assisted": _Entry("hf", "Assisted", ("torch", "transformers"), _HOW_HF),
    "ctranslate2": _Entry("ctranslate2", "float32",
                          ("ctranslate2", "torch", "transformers"), _HOW_CT2),
    "ctranslate2_int8": _Entry("ctranslate2", "int8",
                               ("ctranslate2", "torch", "transformers"), _HOW_CT2),
}
NAMES = tuple(_ENTRIES)


def find(name: str) -> Callable[[Workload], Peer]:
  """What makes a baseline; checks that its library is there, without importing it.

  Raises:
    SpecdecError: there is no such baseline, or a package is missing.
  """
  if name not in _ENTRIES:
    raise SpecdecError(f"there is no baseline {name!r}; expected one of {', '.join(NAMES)}")
  entry = _ENTRIES[name]
  missing = [package for package in entry.needs if not _installed(package)]
  if missing:
    raise SpecdecError(f"--baseline={name} needs {', '.join(missing)}, which this Python does "
                       f"not find; {entry.how}")

  def make(workload: Workload) -> Peer:
    try:
      module = importlib.import_module(f"{__name__}.{entry.module}")
      return getattr(module, entry.make)(workload)
    except ImportError as error:
      # There, but of a version that does not go with the rest.
      raise SpecdecError(f"--baseline={name} cannot be imported ({error}); {entry.how}"
                         ) from error

  return make


def _installed(package: str) -> bool:
  try:
    return importlib.util.find_spec(package) is not None
  except (ImportError, ValueError):
    return False
