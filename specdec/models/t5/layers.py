"""What the layers of T5 consist of: norm, projection, attention, feed-forward.

Each reads the T5X layout or the decode layout, see `models.t5.network`.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
from jax import lax
import jax.numpy as jnp

from specdec.models.t5 import dropout as dropout_lib
from specdec.models.t5 import products
from specdec.models.t5 import relpos
from specdec.models.t5.config import T5Config

Array = jax.Array
DotGeneral = Callable[..., Array]

_ACTIVATIONS = {
    "gelu": lambda x: nn.gelu(x, approximate=True),
    "relu": nn.relu,
    "silu": nn.silu,
    "linear": lambda x: x,
}


def _kernel_init(scale: float = 1.0):
  return nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal")


class RMSNorm(nn.Module):
  """T5 layer norm: no mean subtraction, no bias, statistics in float32."""

  config: T5Config

  @nn.compact
  def __call__(self, x: Array) -> Array:
    scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
    x = x.astype(jnp.float32)
    mean_square = jnp.mean(lax.square(x), axis=-1, keepdims=True)
    x = x * lax.rsqrt(mean_square + self.config.layer_norm_epsilon)
    return (x * scale.astype(jnp.float32)).astype(self.config.dtype)


class Projection(nn.Module):
  """A bias-free dense layer on the last axis, `[..., I] -> [..., O]`.

  Attributes:
    features: `O`.
    config: the architecture.
    dot_general: the matrix product.
    init_scale: of the initial kernel's variance.
    out_dtype: of the result; the configuration's by default.
    out_in: reads the decode layout `kernel_out_in` [O, I] instead of `kernel` [I, O].
  """

  features: int
  config: T5Config
  dot_general: DotGeneral = lax.dot_general
  init_scale: float = 1.0
  out_dtype: Any = None
  out_in: bool = False

  @nn.compact
  def __call__(self, x: Array) -> Array:
    if self.out_in:
      kernel = self.param("kernel_out_in", nn.initializers.zeros,
                          (self.features, x.shape[-1]), jnp.float32)
    else:
      kernel = self.param("kernel", _kernel_init(self.init_scale),
                          (x.shape[-1], self.features), jnp.float32)
    dtype = jnp.dtype(self.config.dtype)
    # Rows and positions form one matrix: XLA then sees the plain product that
    # it has its fastest kernels for, whatever the batch.
    flat = x.astype(dtype).reshape((-1, x.shape[-1]))
    if self.out_in and dtype == jnp.float32 and 1 < flat.shape[0] <= products.FEW_ROWS:
      out = products.few_rows(flat, kernel.astype(dtype))
    else:
      contracted = 1 if self.out_in else 0
      out = self.dot_general(flat, kernel.astype(dtype), (((1,), (contracted,)), ((), ())),
                             preferred_element_type=self.out_dtype or dtype)
    return out.reshape((*x.shape[:-1], self.features))


class Attention(nn.Module):
  """Multi-head attention without the 1/sqrt(K) factor, as in T5."""

  config: T5Config
  fused: bool = False
  dot_general: DotGeneral = lax.dot_general
  out_in: bool = False

  def setup(self):
    c = self.config
    width = c.num_heads * c.head_dim
    make = lambda features, scale=1.0: Projection(
        features, c, self.dot_general, scale, out_in=self.out_in)
    if self.fused:
      self.qkv = make(3 * width)
    else:
      # T5 folds the missing 1/sqrt(K) into the initial query weights.
      self.query = make(width, 1.0 / c.head_dim)
      self.key = make(width)
      self.value = make(width)
    self.out = make(c.emb_dim)
    self.dropout = dropout_lib.Dropout(c.dropout_rate)

  def _heads(self, x: Array) -> Array:
    """[B, G, H*K] -> [B, H, G, K]."""
    c = self.config
    x = x.reshape((*x.shape[:2], c.num_heads, c.head_dim))
    return x.transpose((0, 2, 1, 3))

  def self_qkv(self, x: Array, decoding: bool = False) -> tuple[Array, Array, Array]:
    """Projects `x` [B, G, D] to query, key and value, each [B, H, G, K].

    `decoding` is against a cache.
    """
    if self.fused:
      q, k, v = jnp.split(self.qkv(x), 3, axis=-1)
    else:
      q, k, v = self.query(x), self.key(x), self.value(x)
      if decoding and not self.out_in:
        # See `cross_query`: no matrix is to be turned around.
        q, k, v = lax.optimization_barrier((q, k, v))
    return self._heads(q), self._heads(k), self._heads(v)

  def cross_kv(self, encoded: Array) -> tuple[Array, Array]:
    """Projects the encoder output [B, S, D] to key and value [B, H, S, K]."""
    return self._heads(self.key(encoded)), self._heads(self.value(encoded))

  def cross_query(self, x: Array, decoding: bool = False) -> Array:
    """Projects `x` [B, G, D] to the query [B, H, G, K]; `decoding` is against a cache."""
    q = self.query(x)
    if decoding and not self.out_in:
      # A TPU's compiler makes one operation of a projection and of what follows it if that
      # is nothing but a reshape to heads. It then wants the matrix turned around, and copies
      # it for that; behind a barrier it turns the product, which is small.
      q = lax.optimization_barrier(q)
    return self._heads(q)

  def attend(self, q: Array, k: Array, v: Array, bias: Array,
             deterministic: bool = True) -> Array:
    """Softmax attention.

    Args:
      q: [B, H, G, K].
      k: [B, H, T, K].
      v: [B, H, T, K].
      bias: float32, broadcastable to [B, H, G, T]; carries mask and position.
      deterministic: False draws dropout on the attention weights.

    Returns:
      [B, G, D] in the configuration's dtype.
    """
    # TPU, GPU and CPU all take a product batched over leading axes without
    # moving the cache; scores and softmax are float32.
    scores = lax.dot_general(q, k, (((3,), (3,)), ((0, 1), (0, 1))),
                             preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(scores + bias, axis=-1)
    weights = self.dropout(weights, deterministic=deterministic)
    out = lax.dot_general(weights.astype(v.dtype), v,
                          (((3,), (2,)), ((0, 1), (0, 1))),
                          preferred_element_type=jnp.dtype(self.config.dtype))
    b, h, g, d = out.shape
    return self.out(out.transpose((0, 2, 1, 3)).reshape((b, g, h * d)))


class CrossAttention(Attention):
  """Attention to the encoder: its keys and values are never fused with the query."""

  def setup(self):
    c = self.config
    width = c.num_heads * c.head_dim
    make = lambda features, scale=1.0: Projection(
        features, c, self.dot_general, scale, out_in=self.out_in)
    self.query = make(width, 1.0 / c.head_dim)
    self.key = make(width)
    self.value = make(width)
    self.out = make(c.emb_dim)
    self.dropout = dropout_lib.Dropout(c.dropout_rate)


class Mlp(nn.Module):
  """Feed-forward block: activations on parallel projections, multiplied."""

  config: T5Config
  fused: bool = False
  dot_general: DotGeneral = lax.dot_general
  out_in: bool = False

  @nn.compact
  def __call__(self, x: Array, deterministic: bool = True) -> Array:
    c = self.config
    names = c.mlp_activations
    gates = len(names)
    make = lambda features, name: Projection(
        features, c, self.dot_general, out_in=self.out_in, name=name)
    if self.fused and gates > 1:
      wide = make(gates * c.mlp_dim, "wi")(x)
      parts = jnp.split(wide, gates, axis=-1)
    else:
      # T5X: a single projection is `wi`, several are `wi_0`, `wi_1`, ...
      labels = ["wi"] if gates == 1 else [f"wi_{i}" for i in range(gates)]
      parts = [make(c.mlp_dim, label)(x) for label in labels]
    hidden = _ACTIVATIONS[names[0]](parts[0])
    for name, part in zip(names[1:], parts[1:]):
      hidden = hidden * _ACTIVATIONS[name](part)
    hidden = dropout_lib.Dropout(c.dropout_rate)(hidden, deterministic=deterministic)
    return make(c.emb_dim, "wo")(hidden)


def mask_bias(mask: Array) -> Array:
  """Turns a positive mask (True = keep) into a float32 additive bias."""
  return jnp.where(mask, 0.0, relpos.MASK_VALUE).astype(jnp.float32)
