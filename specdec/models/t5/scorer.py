"""T5 behind the core's `Scorer` contract."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specdec.core import layout
from specdec.core import rows as rows_lib
from specdec.models.t5 import sharding
from specdec.models.t5 import weights as weights_lib
from specdec.models.t5.cache import Cache
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import T5
from specdec.types import Source

Array = jax.Array
PyTree = Any


@dataclasses.dataclass(frozen=True)
class T5Scorer:
  """Scores decoder tokens of a T5 given its encoder input.

  Attributes:
    config: the architecture.
    out_in: the decoder's kernels are laid out [out, in], see `weights.prepare`; by
      default on a CPU, where that was measured to be faster for calls of one token and
      of several. Other backends choose a layout of their own.
    split: heads, feed-forward and vocabulary are split over the axis `model` of a mesh of
      devices; all that the program knows of it.
  """

  config: T5Config
  out_in: bool = dataclasses.field(default_factory=lambda: jax.default_backend() == "cpu")
  split: bool = False

  @property
  def vocab_size(self) -> int:
    """Width of the logits."""
    return self.config.vocab_size

  def _apply(self, weights: PyTree, *args: Any, method: str = "__call__") -> Any:
    """What a method of the network makes of its arguments."""
    network = T5(self.config, fused=True, out_in=self.out_in, split=self.split)
    return network.apply({"params": weights}, *args, method=method)

  def prepare(self, params: PyTree, places: sharding.Places | None = None) -> PyTree:
    """See `weights.prepare`, and `weights.pack` on a CPU."""
    weights = weights_lib.prepare(params, self.config, self.out_in, self.split, places)
    one_cpu = jax.default_backend() == "cpu" and places is None
    return weights_lib.pack(weights) if one_cpu else weights

  def _laid(self, cache: Cache) -> Cache:
    """The cache as it lies on a mesh: rows over `data`, heads over `model`."""
    heads = (layout.MODEL,) if self.split else ()
    return jax.tree.map(
        lambda x: layout.constrain(x, layout.DATA, *heads[:x.ndim // 4]), cache)

  def _gathered(self, logits: Array) -> Array:
    """Logits, whole for every row: what follows looks at all of a distribution."""
    return layout.constrain(logits, layout.DATA)

  def init(self, weights: PyTree, source: Source, capacity: int, copies: int = 1) -> Cache:
    """Encodes the source once and keeps its keys and values for every layer."""
    c = self.config
    encoded = self._apply(weights, source.ids, source.mask, method="encode")
    cross = self._apply(weights, encoded, method="cross_kv")
    batch = source.ids.shape[0] * copies
    spread = lambda x: jnp.repeat(x, copies, axis=0) if copies > 1 else x
    empty = lambda: jnp.zeros((batch, c.num_heads, capacity, c.head_dim), c.dtype)
    return self._laid(Cache(
        self_key=tuple(empty() for _ in cross),
        self_value=tuple(empty() for _ in cross),
        cross_key=tuple(spread(k) for k, _ in cross),
        cross_value=tuple(spread(v) for _, v in cross),
        source_mask=spread(source.mask),
        length=jnp.zeros((batch,), jnp.int32)))

  def score(self, weights: PyTree, tokens: Array, cache: Cache) -> tuple[Array, Array, Cache]:
    """Feeds tokens [B, G] at every row's own length."""
    logits, hidden, cache = self._apply(weights, tokens, cache, method="decode")
    return self._gathered(logits), layout.constrain(hidden, layout.DATA), self._laid(cache)

  def rollback(self, cache: Cache, length: Array) -> Cache:
    """Shortens rows to `length` [B]; what lies behind is masked by length."""
    return cache.replace(length=length.astype(jnp.int32))

  def insert(self, cache: Cache, rows: Array, other: Cache) -> Cache:
    """Replaces rows of the cache; the other's source and capacity may be smaller."""
    # Zeros behind a narrower source are masked, as its mask is filled up with False.
    return rows_lib.replace(cache, rows, other)

  def logits(self, weights: PyTree, source: Source, decoder_ids: Array) -> Array:
    """Teacher-forced logits, float32 [B, T, V], of decoder inputs [B, T]."""
    return self._apply(weights, source.ids, source.mask, decoder_ids)

  def embed(self, weights: PyTree, ids: Array) -> Array:
    """The first layer alone: ids [...] -> [..., D]."""
    return self._apply(weights, ids, method="embed")

  def output(self, weights: PyTree, hidden: Array) -> Array:
    """The last layer alone: hidden states [B, G, D] -> logits float32 [B, G, V]."""
    return self._gathered(self._apply(
        weights, hidden.astype(self.config.dtype), method="logits_of"))

  def ends(self, weights: PyTree) -> PyTree:
    """The part of the weights that `embed` and `output` need; the same arrays."""
    part = {"token_embedder": weights["token_embedder"]}
    if not self.config.logits_via_embedding:
      part["decoder"] = {"logits_dense": weights["decoder"]["logits_dense"]}
    return part
