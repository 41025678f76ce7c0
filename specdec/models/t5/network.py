"""The T5 network in flax.linen: v1.1 (gated GELU) and v1.0 (ReLU, tied logits).

Parameters are named as in T5X's `t5x/examples/t5/network.py`, so weights that
T5X wrote drop in. The network reads two layouts of the same numbers:

* the T5X layout (`fused=False`): one kernel per projection. Used in training.
* the decode layout (`fused=True`): query, key and value of a self-attention in
  one kernel, the gated projections in one kernel, the relative position bias
  tabulated by distance, and with `out_in=True` the decoder's kernels the other
  way round. With `split=True` projections keep kernels of their own, each of which
  several devices share, see `models.t5.sharding`. `weights.prepare` turns the first
  into the second once, at load.

The decoder has one path. `decode` runs any number of tokens against a cache, at
an offset of its own for every row; teacher forcing (training and
`T5Scorer.logits`) is the same call without a cache.

Dimensions: `B` batch, `S` source, `G` tokens of this call, `T` cache capacity,
`D` model, `H` heads, `K` head size, `V` vocabulary.
"""

from collections.abc import Callable

import flax.linen as nn
import jax
from jax import lax
import jax.numpy as jnp

from specdec.models.t5 import cache as cache_lib
from specdec.models.t5 import dropout as dropout_lib
from specdec.models.t5 import layers
from specdec.models.t5 import relpos
from specdec.models.t5.config import T5Config

Array = jax.Array


class EncoderLayer(nn.Module):
  """Self-attention and feed-forward, each normed before and added after."""

  config: T5Config
  dot_general: layers.DotGeneral = lax.dot_general
  out_in: bool = False

  def setup(self):
    c = self.config
    self.pre_attention_layer_norm = layers.RMSNorm(c)
    self.attention = layers.Attention(c, False, self.dot_general, self.out_in)
    self.pre_mlp_layer_norm = layers.RMSNorm(c)
    self.mlp = layers.Mlp(c, False, self.dot_general, self.out_in)
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
  dot_general: layers.DotGeneral = lax.dot_general
  out_in: bool = False
  split: bool = False

  def setup(self):
    c = self.config
    joint = self.fused and not self.split
    self.pre_self_attention_layer_norm = layers.RMSNorm(c)
    self.self_attention = layers.Attention(c, joint, self.dot_general, self.out_in)
    self.pre_cross_attention_layer_norm = layers.RMSNorm(c)
    self.encoder_decoder_attention = layers.CrossAttention(c, False, self.dot_general, self.out_in)
    self.pre_mlp_layer_norm = layers.RMSNorm(c)
    self.mlp = layers.Mlp(c, joint, self.dot_general, self.out_in)
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
    q, k, v = self.self_attention.self_qkv(
        self.pre_self_attention_layer_norm(x), decoding=cached is not None)
    if cached is not None:
      old_key, old_value, offset = cached
      k = cache_lib.write(old_key, k, offset)
      v = cache_lib.write(old_value, v, offset)
    y = self.self_attention.attend(q, k, v, self_bias, deterministic)
    x = x + self.dropout(y, deterministic=deterministic)

    q = self.encoder_decoder_attention.cross_query(
        self.pre_cross_attention_layer_norm(x), decoding=cached is not None)
    y = self.encoder_decoder_attention.attend(
        q, cross_key, cross_value, cross_bias, deterministic)
    x = x + self.dropout(y, deterministic=deterministic)

    y = self.mlp(self.pre_mlp_layer_norm(x), deterministic)
    return x + self.dropout(y, deterministic=deterministic), k, v

  def cross_kv(self, encoded: Array) -> tuple[Array, Array]:
    """Keys and values of the encoder output, [B, H, S, K]."""
    return self.encoder_decoder_attention.cross_kv(encoded)


class Encoder(nn.Module):
  """The encoder stack; its layers share one relative position bias or have their own."""

  config: T5Config
  dot_general: layers.DotGeneral = lax.dot_general
  out_in: bool = False

  def setup(self):
    c = self.config
    if not c.relpos_per_layer:
      self.relpos_bias = relpos.RelativePositionBias(c, bidirectional=True)
    self.layers = [EncoderLayer(c, self.dot_general, self.out_in)
                   for _ in range(c.num_encoder_layers)]
    self.encoder_norm = layers.RMSNorm(c)
    self.dropout = dropout_lib.Dropout(c.dropout_rate)

  def __call__(self, x: Array, mask: Array, deterministic: bool = True) -> Array:
    masked = layers.mask_bias(mask)
    biases = _biases(self, lambda relpos_bias: relpos_bias.square(x.shape[1]) + masked)
    x = self.dropout(x, deterministic=deterministic)
    for layer, bias in zip(self.layers, biases):
      x = layer(x, bias, deterministic)
    return self.dropout(self.encoder_norm(x), deterministic=deterministic)


class Decoder(nn.Module):
  """The decoder stack and the output layer."""

  config: T5Config
  fused: bool = False
  dot_general: layers.DotGeneral = lax.dot_general
  out_in: bool = False
  split: bool = False

  def setup(self):
    c = self.config
    if not c.relpos_per_layer:
      self.relpos_bias = relpos.RelativePositionBias(
          c, bidirectional=False, by_distance=self.fused)
    self.layers = [DecoderLayer(c, self.fused, self.dot_general, self.out_in, self.split)
                   for _ in range(c.num_decoder_layers)]
    self.decoder_norm = layers.RMSNorm(c)
    self.dropout = dropout_lib.Dropout(c.dropout_rate)
    if not c.logits_via_embedding:
      self.logits_dense = layers.Projection(
          c.vocab_size, c, self.dot_general, out_dtype=jnp.float32, out_in=self.out_in)

  def cross_kv(self, encoded: Array) -> list[tuple[Array, Array]]:
    """Keys and values of the encoder output, [B, H, S, K] for every layer."""
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
      causal = layers.mask_bias(jnp.tril(jnp.ones((g, g), bool))[None, None])
      self_biases = _biases(self, lambda relpos_bias: relpos_bias.square(g) + causal)
    else:
      self_biases = _biases(
          self, lambda relpos_bias: relpos_bias.at(cache.length, g, cache.capacity))
    cross_bias = layers.mask_bias(source_mask)
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
    """Logits of hidden states, where they are not those of the embedding."""
    return self.logits_dense(hidden)


class T5(nn.Module):
  """T5 encoder-decoder. See the module docstring for the two layouts.

  Attributes:
    config: the architecture.
    fused: True reads the decode layout made by `weights.prepare`.
    dot_general: the matrix product of all projections; training replaces it by
      a mixed-precision one.
    out_in: kernels are [out, in], see `weights.prepare`.
    split: in the decode layout too every projection has a kernel of its own; likewise.
  """

  config: T5Config
  fused: bool = False
  dot_general: layers.DotGeneral = lax.dot_general
  out_in: bool = False
  split: bool = False

  def setup(self):
    c = self.config
    self.token_embedder = nn.Embed(
        c.vocab_size, c.emb_dim, embedding_init=nn.initializers.normal(1.0),
        param_dtype=jnp.float32)
    self.encoder = Encoder(c, self.dot_general, self.out_in)
    self.decoder = Decoder(c, self.fused, self.dot_general, self.out_in, self.split)

  def embed(self, ids: Array) -> Array:
    """The first layer: ids [...] -> [..., D]."""
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
      logits = self.decoder.output(hidden)
    else:
      table = self.token_embedder.embedding.astype(c.dtype)
      logits = lax.dot_general(hidden, table, (((2,), (1,)), ((), ())),
                               preferred_element_type=jnp.float32)
    if c.used_vocab_size is None:
      return logits
    return jnp.where(jnp.arange(c.vocab_size) < c.used_vocab_size, logits, -jnp.inf)

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
    return self.logits_of(self.hidden(encoder_ids, encoder_mask, decoder_ids, deterministic))

  def hidden(self, encoder_ids: Array, encoder_mask: Array, decoder_ids: Array,
             deterministic: bool = True) -> Array:
    """Teacher-forced hidden states after the last norm, [B, T, D]."""
    encoded = self.encode(encoder_ids, encoder_mask, deterministic)
    hidden, _ = self.decoder(self.embed(decoder_ids), self.cross_kv(encoded),
                             encoder_mask[:, None, None, :],
                             deterministic=deterministic)
    return hidden


def _biases(stack: Encoder | Decoder, make: Callable[[relpos.RelativePositionBias], Array]
            ) -> list[Array]:
  """The self-attention bias of every layer; computed once where they share it."""
  if stack.config.relpos_per_layer:
    return [make(layer.relpos_bias) for layer in stack.layers]
  return [make(stack.relpos_bias)] * len(stack.layers)
