"""specdec: lossless speculative decoding of T5 models on JAX.

    import specdec
    pair = specdec.load_pair("demo")
    result = specdec.generate(pair, ["A dog runs across the grass."], gamma=4)
    print(result.texts[0], result.alpha)
"""

import importlib
from typing import TYPE_CHECKING
from typing import Any

from specdec.version import __version__

if TYPE_CHECKING:
  from specdec.engine.allowed import AllowedSequences
  from specdec.engine.costs import Costs
  from specdec.engine.generate import generate
  from specdec.engine.generate import generate_ids
  from specdec.engine.generate import iterate
  from specdec.engine.models import Model
  from specdec.engine.models import load_model
  from specdec.engine.pairs import Pair
  from specdec.engine.pairs import load_pair
  from specdec.engine.pairs import pair_names
  from specdec.engine.result import Record
  from specdec.engine.result import Result
  from specdec.engine.settings import Settings
  from specdec.engine.streaming import Piece
  from specdec.engine.streaming import stream
  from specdec.engine.traces import Iteration
  from specdec.errors import SpecdecError
  from specdec.types import Status

__all__ = [
  "AllowedSequences",
  "Costs",
  "Iteration",
  "Model",
  "Pair",
  "Piece",
  "Record",
  "Result",
  "Settings",
  "SpecdecError",
  "Status",
  "__version__",
  "generate",
  "generate_ids",
  "iterate",
  "load_model",
  "load_pair",
  "pair_names",
  "stream",
]

# Where each public name lives. They are imported when first used (PEP 562): Flax
# alone takes half as long to import as JAX, and `specdec --help` needs neither.
_HOMES = {
    "generate": "specdec.engine.generate",
    "generate_ids": "specdec.engine.generate",
    "iterate": "specdec.engine.generate",
    "stream": "specdec.engine.streaming",
    "AllowedSequences": "specdec.engine.allowed",
    "Costs": "specdec.engine.costs",
    "Iteration": "specdec.engine.traces",
    "Model": "specdec.engine.models",
    "Pair": "specdec.engine.pairs",
    "load_model": "specdec.engine.models",
    "load_pair": "specdec.engine.pairs",
    "pair_names": "specdec.engine.pairs",
    "Piece": "specdec.engine.streaming",
    "Record": "specdec.engine.result",
    "Result": "specdec.engine.result",
    "Settings": "specdec.engine.settings",
    "SpecdecError": "specdec.errors",
    "Status": "specdec.types",
}


def __getattr__(name: str) -> Any:
  if name not in _HOMES:
    raise AttributeError(f"module 'specdec' has no attribute {name!r}")
  value = getattr(importlib.import_module(_HOMES[name]), name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
