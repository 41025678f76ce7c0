"""The T5 network in flax.linen: v1.1 (gated GELU) and v1.0 (ReLU, tied logits).

Parameters are named as in T5X's `t5x/examples/t5/network.py`, so weights that
T5X wrote drop in. The network reads two layouts of the same numbers:

* the T5X layout (`fused=False`): one kernel per projection. Used in training.
* the decode layout (`fused=True`): query, key and value of a self-attention in
  one kernel, the gated projections in one kernel, the relative position bias
  tabulated by distance, and with `out_in=True` the decoder's kernels the other
  way round. `weights.prepare` turns the first into the second once, at load.

The decoder has one path. `decode` runs any number of tokens against a cache, at
an offset of its own for every row; teacher forcing (training and
`T5Scorer.logits`) is the same call without a cache.

Dimensions: `B` batch, `S` source, `G` tokens of this call, `T` cache capacity,
`D` model, `H` heads, `K` head size, `V` vocabulary.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
from jax import lax
import jax.numpy as jnp

from specdec.models.t5 import cache as cache_lib
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

  def self_qkv(self, x: Array) -> tuple[Array, Array, Array]:
    """Projects `x` [B, G, D] to query, key and value, each [B, H, G, K]."""
    if self.fused:
      q, k, v = jnp.split(self.qkv(x), 3, axis=-1)
    else:
      q, k, v = self.query(x), self.key(x), self.value(x)
    return self._heads(q), self._heads(k), self._heads(v)

  def cross_kv(self, encoded: Array) -> tuple[Array, Array]:
    """Projects the encoder output [B, S, D] to key and value [B, H, S, K]."""
    return self._heads(self.key(encoded)), self._heads(self.value(encoded))

  def cross_query(self, x: Array) -> Array:
    return self._heads(self.query(x))

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
    self.query = Projection(width, c, self.dot_general, 1.0 / c.head_dim, out_in=self.out_in)
    # Used once per source, so that no layout of theirs is worth a conversion.
    self.key = Projection(width, c, self.dot_general)
    self.value = Projection(width, c, self.dot_general)
    self.out = Projection(c.emb_dim, c, self.dot_general, out_in=self.out_in)
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
    make = lambda features, name: Projection(
        features, c, self.dot_general, out_in=self.out_in, name=name)
    if self.fused and len(names) > 1:
      wide = make(len(names) * c.mlp_dim, "wi")(x)
      parts = jnp.split(wide, len(names), axis=-1)
    else:
      # T5X: a single projection is `wi`, several are `wi_0`, `wi_1`, ...
      labels = ["wi"] if len(names) == 1 else [f"wi_{i}" for i in range(len(names))]
      parts = [make(c.mlp_dim, label)(x) for label in labels]
    hidden = _ACTIVATIONS[names[0]](parts[0])
    for name, part in zip(names[1:], parts[1:]):
      hidden = hidden * _ACTIVATIONS[name](part)
    hidden = dropout_lib.Dropout(c.dropout_rate)(hidden, deterministic=deterministic)
    return make(c.emb_dim, "wo")(hidden)


class EncoderLayer(nn.Module):
  """Self-attention and feed-forward, each normed before and added after."""

  config: T5Config
  dot_general: DotGeneral = lax.dot_general

  def setup(self):
    c = self.config
    self.pre_attention_layer_norm = RMSNorm(c)
    self.attention = Attention(c, False, self.dot_general)
    self.pre_mlp_layer_norm = RMSNorm(c)
    self.mlp = Mlp(c, False, self.dot_general)
    self.dropout = dropout_lib.Dropout(c.dropout_rate)
    if c.relpos_per_layer:
      self.relpos_bias = relpos.RelativePositionBias(c, bidirectional=True)

  def __call__(self, x: Array, bias: Array, deterministic: bool = True) -> Array:
    q, k, v = self.attention.self_qkv(self.pre_attention_layer_norm(x))
    y = self.attention.attend(q, k, v, bias, deterministic)
    x = x + self.dropout(y, deterministic=deterministic)
    y = self.mlp(self.pre_mlp_layer_norm(x), deterministic)
    return x + self.dropout(y, deterministic=deterministic)


class DecoderLayer(nn.Module):
  """Causal self-attention, attention to the encoder, feed-forward."""

  config: T5Config
  fused: bool = False
  dot_general: DotGeneral = lax.dot_general
  out_in: bool = False

  def setup(self):
    c = self.config
    self.pre_self_attention_layer_norm = RMSNorm(c)
    self.self_attention = Attention(c, self.fused, self.dot_general, self.out_in)
    self.pre_cross_attention_layer_norm = RMSNorm(c)
    self.encoder_decoder_attention = CrossAttention(c, False, self.dot_general, self.out_in)
    self.pre_mlp_layer_norm = RMSNorm(c)
    self.mlp = Mlp(c, self.fused, self.dot_general, self.out_in)
    self.dropout = dropout_lib.Dropout(c.dropout_rate)
    if c.relpos_per_layer:
      self.relpos_bias = relpos.RelativePositionBias(
          c, bidirectional=False, by_distance=self.fused)

  def __call__(
      self,
      x: Array,
      self_bias: Array,
      cross_bias: Array,
      cross_key: Array,
      cross_value: Array,
      cached: tuple[Array, Array, Array] | None = None,
      deterministic: bool = True,
  ) -> tuple[Array, Array, Array]:
    """Runs one layer on `x` [B, G, D].

    Args:
      x: residual stream [B, G, D].
      self_bias: [B or 1, H, G, T] with a cache of capacity T, else [1, H, G, G].
      cross_bias: [B, 1, 1, S].
      cross_key: [B, H, S, K].
      cross_value: [B, H, S, K].
      cached: this layer's keys and values [B, H, T, K] and the row offsets [B]
        at which the new ones are written, or None to attend to `x` alone.
      deterministic: False draws dropout.

    Returns:
      The residual stream and the layer's keys and values, updated.
    """
    q, k, v = self.self_attention.self_qkv(self.pre_self_attention_layer_norm(x))
    if cached is not None:
      old_key, old_value, offset = cached
      k = cache_lib.write(old_key, k, offset)
      v = cache_lib.write(old_value, v, offset)
    y = self.self_attention.attend(q, k, v, self_bias, deterministic)
    x = x + self.dropout(y, deterministic=deterministic)

    q = self.encoder_decoder_attention.cross_query(
        self.pre_cross_attention_layer_norm(x))
    y = self.encoder_decoder_attention.attend(
        q, cross_key, cross_value, cross_bias, deterministic)
    x = x + self.dropout(y, deterministic=deterministic)

    y = self.mlp(self.pre_mlp_layer_norm(x), deterministic)
    return x + self.dropout(y, deterministic=deterministic), k, v

  def cross_kv(self, encoded: Array) -> tuple[Array, Array]:
    return self.encoder_decoder_attention.cross_kv(encoded)


class Encoder(nn.Module):
  """The encoder stack; its layers share one relative position bias or have their own."""

  config: T5Config
  dot_general: DotGeneral = lax.dot_general

  def setup(self):
    c = self.config
    if not c.relpos_per_layer:
      self.relpos_bias = relpos.RelativePositionBias(c, bidirectional=True)
    self.layers = [EncoderLayer(c, self.dot_general)
                   for _ in range(c.num_encoder_layers)]
    self.encoder_norm = RMSNorm(c)
    self.dropout = dropout_lib.Dropout(c.dropout_rate)

  def __call__(self, x: Array, mask: Array, deterministic: bool = True) -> Array:
    biases = _biases(self, lambda relpos_bias: relpos_bias.square(x.shape[1]) + mask_bias(mask))
    x = self.dropout(x, deterministic=deterministic)
    for layer, bias in zip(self.layers, biases):
      x = layer(x, bias, deterministic)
    return self.dropout(self.encoder_norm(x), deterministic=deterministic)


class Decoder(nn.Module):
  """The decoder stack and the output layer."""

  config: T5Config
  fused: bool = False
  dot_general: DotGeneral = lax.dot_general
  out_in: bool = False

  def setup(self):
    c = self.config
    if not c.relpos_per_layer:
      self.relpos_bias = relpos.RelativePositionBias(
          c, bidirectional=False, by_distance=self.fused)
    self.layers = [DecoderLayer(c, self.fused, self.dot_general, self.out_in)
                   for _ in range(c.num_decoder_layers)]
    self.decoder_norm = RMSNorm(c)
    self.dropout = dropout_lib.Dropout(c.dropout_rate)
    if not c.logits_via_embedding:
      self.logits_dense = Projection(
          c.vocab_size, c, self.dot_general, out_dtype=jnp.float32, out_in=self.out_in)

  def cross_kv(self, encoded: Array) -> list[tuple[Array, Array]]:
    return [layer.cross_kv(encoded) for layer in self.layers]

  def __call__(self, x: Array, cross: list[tuple[Array, Array]], source_mask: Array,
               cache: cache_lib.Cache | None = None, deterministic: bool = True):
    """Runs the stack on embedded tokens `x` [B, G, D].

    Returns:
      Hidden states after the last norm [B, G, D] and the self-attention keys and
      values of every layer.
    """
    g = x.shape[1]
    if cache is None:
      causal = mask_bias(jnp.tril(jnp.ones((g, g), bool))[None, None])
      self_biases = _biases(self, lambda relpos_bias: relpos_bias.square(g) + causal)
    else:
      self_biases = _biases(
          self, lambda relpos_bias: relpos_bias.at(cache.length, g, cache.capacity))
    cross_bias = mask_bias(source_mask)
    x = self.dropout(x, deterministic=deterministic)
    kept = []
    for i, layer in enumerate(self.layers):
      cached = None
      if cache is not None:
        cached = (cache.self_key[i], cache.self_value[i], cache.length)
      x, k, v = layer(x, self_biases[i], cross_bias, *cross[i], cached, deterministic)
      kept.append((k, v))
    hidden = self.dropout(self.decoder_norm(x), deterministic=deterministic)
    return hidden, kept

  def output(self, hidden: Array) -> Array:
    return self.logits_dense(hidden)


class T5(nn.Module):
  """T5 encoder-decoder. See the module docstring for the two layouts.

  Attributes:
    config: the architecture.
    fused: True reads the decode layout made by `weights.prepare`.
    dot_general: the matrix product of all projections; training replaces it by
      a mixed-precision one.
    out_in: the decoder's kernels are [out, in], see `weights.prepare`.
  """

  config: T5Config
  fused: bool = False
  dot_general: DotGeneral = lax.dot_general
  out_in: bool = False

  def setup(self):
    c = self.config
    self.token_embedder = nn.Embed(
        c.vocab_size, c.emb_dim, embedding_init=nn.initializers.normal(1.0),
        param_dtype=jnp.float32)
    self.encoder = Encoder(c, self.dot_general)
    self.decoder = Decoder(c, self.fused, self.dot_general, self.out_in)

  def embed(self, ids: Array) -> Array:
    # Gathered, not a one-hot product; ids outside the table give its last row
    # (jnp.take's clip), which no caller reads.
    table = self.token_embedder.embedding
    return jnp.take(table, ids, axis=0, mode="clip").astype(self.config.dtype)

  def encode(self, ids: Array, mask: Array, deterministic: bool = True) -> Array:
    """Encodes a padded batch.

    Args:
      ids: int [B, S].
      mask: bool [B, S], True where a token stands.
      deterministic: False draws dropout.

    Returns:
      [B, S, D].
    """
    return self.encoder(self.embed(ids), mask[:, None, None, :], deterministic)

  def cross_kv(self, encoded: Array) -> list[tuple[Array, Array]]:
    """Keys and values of the encoder output, [B, H, S, K] for every layer."""
    return self.decoder.cross_kv(encoded)

  def logits_of(self, hidden: Array) -> Array:
    """Output layer: [B, G, D] -> float32 [B, G, V]."""
    c = self.config
    if c.scaled_logits:
      hidden = hidden * jnp.asarray(c.emb_dim**-0.5, hidden.dtype)
    if not c.logits_via_embedding:
      return self.decoder.output(hidden)
    table = self.token_embedder.embedding.astype(c.dtype)
    return lax.dot_general(hidden, table, (((2,), (1,)), ((), ())),
                           preferred_element_type=jnp.float32)

  def decode(self, ids: Array, cache: cache_lib.Cache):
    """Feeds `ids` [B, G] at every row's own `cache.length`.

    Returns:
      Logits float32 [B, G, V], hidden states [B, G, D], and the cache, whose
      rows are `G` longer.
    """
    cross = list(zip(cache.cross_key, cache.cross_value))
    hidden, kept = self.decoder(
        self.embed(ids), cross, cache.source_mask[:, None, None, :], cache)
    cache = cache.replace(
        self_key=tuple(k for k, _ in kept),
        self_value=tuple(v for _, v in kept),
        length=cache.length + ids.shape[1])
    return self.logits_of(hidden), hidden, cache

  def __call__(self, encoder_ids: Array, encoder_mask: Array, decoder_ids: Array,
               deterministic: bool = True) -> Array:
    """Teacher-forced logits, float32 [B, T, V].

    Args:
      encoder_ids: int [B, S].
      encoder_mask: bool [B, S].
      decoder_ids: int [B, T], beginning with the start id.
      deterministic: False draws dropout.
    """
    encoded = self.encode(encoder_ids, encoder_mask, deterministic)
    hidden, _ = self.decoder(self.embed(decoder_ids), self.cross_kv(encoded),
                             encoder_mask[:, None, None, :],
                             deterministic=deterministic)
    return self.logits_of(hidden)


def _biases(stack: Encoder | Decoder, make: Callable[[relpos.RelativePositionBias], Array]
            ) -> list[Array]:
  """The self-attention bias of every layer; computed once where they share it."""
  if stack.config.relpos_per_layer:
    return [make(layer.relpos_bias) for layer in stack.layers]
  return [make(stack.relpos_bias)] * len(stack.layers)


def mask_bias(mask: Array) -> Array:
  """Turns a positive mask (True = keep) into a float32 additive bias."""
  return jnp.where(mask, 0.0, relpos.MASK_VALUE).astype(jnp.float32)
