"""What a pair of models takes on each device, worked out of shapes: nothing is loaded.

Weights and caches are counted array by array, as the program has them; the workspace, which
is the compiler's business, is an estimate.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec.core import keys
from specdec.core import layout
from specdec.core import loop
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.core.state import capacity_for
from specdec.drafters.transformer import TransformerDrafter
from specdec.models.t5 import sharding
from specdec.models.t5 import weights as weights_lib
from specdec.models.t5.config import T5Config
from specdec.models.t5.scorer import T5Scorer
from specdec.types import Source

GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Device:
  """A kind of accelerator, as its maker describes it.

  Attributes:
    memory: GiB.
    bandwidth: of its memory, GB (10^9) per second.
  """

  memory: float
  bandwidth: float


# Per chip, as jax counts devices; from Google's and NVIDIA's product pages.
DEVICES = {
    "v3": Device(16, 450), "v4": Device(32, 1228), "v5e": Device(16, 819),
    "v5p": Device(95, 2765), "v6e": Device(32, 1640), "t4": Device(16, 320),
    "l4": Device(24, 300), "a100-40gb": Device(40, 1555), "a100-80gb": Device(80, 2039),
    "h100": Device(80, 3350), "h200": Device(141, 4800)}


@dataclasses.dataclass(frozen=True)
class Wanted:
  """What is to be decoded.

  Attributes:
    target: architecture, its dtype that of weights and caches.
    drafter: architecture; None for a drafter without weights, or plain decoding.
    gamma: tokens drafted per iteration.
    batch_size: rows, over all devices.
    source_len: padded length of the encoder input.
    max_decode_len: most tokens of a row.
    data: devices that rows are split over.
    model: devices that heads and widths are split over.
    whole_drafter: every device holds the whole drafter.
  """

  target: T5Config
  drafter: T5Config | None = None
  gamma: int = 4
  batch_size: int = 1
  source_len: int = 512
  max_decode_len: int = 128
  data: int = 1
  model: int = 1
  whole_drafter: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
  """Bytes per device.

  Attributes:
    parts: by what they are for.
    call_bytes: that a target call of one token reads: weights and caches.
    draft_call_bytes: likewise of the drafter.
  """

  parts: dict[str, int]
  call_bytes: int
  draft_call_bytes: int

  @property
  def total(self) -> int:
    """All of it, bytes."""
    return sum(self.parts.values())


def plan(wanted: Wanted) -> Plan:
  """Works out what a device holds at most while such a batch is decoded."""
  w = wanted
  split = w.model > 1
  # Not the form that suits the machine this runs on.
  target = T5Scorer(w.target, out_in=False, split=split)
  small = w.drafter and T5Scorer(w.drafter, out_in=False, split=split and not w.whole_drafter)
  drafter = small and TransformerDrafter(small, target.vocab_size)
  method = Method(target, drafter or None, w.gamma if drafter else 0)
  weights = Weights(_prepared(target), _prepared(small) if small else None)
  state = _state(method, weights, w)
  rows = math.ceil(w.batch_size / w.data)
  # What is read in a call beside the weights: the encoder's are not.
  ends = lambda scorer, tree: weights_lib.bytes_per_call(
      _sizes(tree, scorer, w.model), scorer.config)
  cache = _cache(state.target_cache, w, target)
  draft_cache = _cache(state.draft_state, w, small) if small else 0
  parts = {
      "target weights": _total(_sizes(weights.target, target, w.model)),
      "drafter weights": _total(_sizes(weights.drafter, small, w.model)) if small else 0,
      "target caches": cache,
      "drafter caches": draft_cache,
      "logits and distributions": _logits(w, rows, small is not None),
      "workspace": max(_workspace(scorer.config, w, rows, scorer.split)
                       for scorer in (target, small) if scorer)}
  return Plan(parts, ends(target, weights.target) + cache,
              ends(small, weights.drafter) + draft_cache if small else 0)


def smallest_model_axis(wanted: Wanted, memory: float, most: int = 64) -> int | None:
  """The fewest devices, a power of two, that the models must be split over to fit.

  Args:
    wanted: what is to be decoded.
    memory: bytes per device.
    most: devices to look at.
  """
  size = 1
  while size <= most:
    if plan(dataclasses.replace(wanted, model=size)).total <= memory:
      return size
    size *= 2
  return None


@functools.lru_cache(maxsize=64)
def _prepared(scorer: T5Scorer) -> Any:
  return jax.eval_shape(scorer.prepare, weights_lib.abstract(scorer.config))


def _state(method: Method, weights: Weights, w: Wanted) -> Any:
  b = w.batch_size

  def begin(weights: Weights) -> Any:
    ids = lambda width: Source(jnp.zeros((b, width), jnp.int32), jnp.ones((b,), jnp.int32))
    return loop.start(method, weights, ids(w.source_len), ids(1),
                      keys.row_keys(0, jnp.arange(b)), jnp.ones((b,), bool),
                      capacity_for(w.max_decode_len, w.gamma))

  return jax.eval_shape(begin, weights)


@dataclasses.dataclass(frozen=True)
class _Size:
  """In place of an array."""

  nbytes: int


def _bytes(x: Any) -> int:
  return math.prod(x.shape) * jnp.dtype(x.dtype).itemsize


def _sizes(tree: Any, scorer: T5Scorer, devices: int) -> Any:
  """What a device holds of each weight."""
  def one(path: Any, x: Any) -> _Size:
    n = _bytes(x)
    if scorer.split and layout.MODEL in sharding.spec(
        sharding.name_of(path), scorer.config, devices):
      n //= devices
    return _Size(n)

  return jax.tree_util.tree_map_with_path(one, tree)


def _total(tree: Any) -> int:
  return sum(x.nbytes for x in jax.tree.leaves(tree))


def _cache(tree: Any, w: Wanted, scorer: T5Scorer) -> int:
  """Rows over `data`, heads over `model`, where they divide."""
  rows = w.data if not w.batch_size % w.data else 1
  heads = w.model if scorer.split and not scorer.config.num_heads % w.model else 1
  return sum(_bytes(x) // (rows if np.ndim(x) else 1) // (heads if len(x.shape) == 4 else 1)
             for x in jax.tree.leaves(tree))


def _logits(w: Wanted, rows: int, drafts: bool) -> int:
  """Logits, log-probabilities, probabilities and what is drawn from, float32, whole in V."""
  positions = w.gamma + 1 if drafts else 1
  return 4 * rows * w.target.vocab_size * (4 * positions + 2 * (positions - 1))


def _workspace(config: T5Config, w: Wanted, rows: int, split: bool) -> int:
  """An encoder layer's attention and feed-forward, which are larger than any of the loop's."""
  devices = w.model if split else 1
  of = lambda n: n // devices if not n % devices else n
  item = jnp.dtype(config.dtype).itemsize
  scores = 3 * 4 * of(config.num_heads) * w.source_len**2
  hidden = 2 * item * len(config.mlp_activations) * of(config.mlp_dim) * w.source_len
  stream = 4 * 4 * config.emb_dim * w.source_len
  return rows * (scores + hidden + stream)
