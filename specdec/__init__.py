"""specdec: lossless speculative decoding of T5 models on JAX.

    import specdec
    pair = specdec.load_pair("demo")
    result = specdec.generate(pair, ["A dog runs across the grass."], gamma=4)
    print(result.texts[0], result.alpha)
"""

from specdec.engine.generate import generate
from specdec.engine.generate import generate_ids
from specdec.engine.generate import iterate
from specdec.engine.models import Model
from specdec.engine.models import Pair
from specdec.engine.models import load_model
from specdec.engine.models import load_pair
from specdec.engine.models import pair_names
from specdec.engine.result import Record
from specdec.engine.result import Result
from specdec.engine.settings import Settings
from specdec.types import SpecdecError
from specdec.types import Status

__version__ = "0.1.0"

__all__ = [
    "Model", "Pair", "Record", "Result", "Settings", "SpecdecError", "Status",
    "generate", "generate_ids", "iterate", "load_model", "load_pair", "pair_names",
]
