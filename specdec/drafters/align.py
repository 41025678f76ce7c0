"""Keeping a model that drafts in line with the target: its vocabulary and its cache."""

from typing import Any

import jax
import jax.numpy as jnp

from specdec.core.contracts import Scorer

Array = jax.Array
PyTree = Any


def align(logits: Array, vocab_size: int) -> Array:
  """Logits [B, G, V] at the target's width.

  Ids the target lacks are cut before the softmax, ids the drafter lacks are forbidden.
  """
  lacking = vocab_size - logits.shape[-1]
  if lacking <= 0:
    return logits[..., :vocab_size]
  return jnp.pad(logits, ((0, 0), (0, 0), (0, lacking)), constant_values=-jnp.inf)


def catch_up(scorer: Scorer, weights: PyTree, cache: PyTree, ids: Array, length: Array,
             width: int) -> PyTree:
  """`Drafter.catch_up` of a model's cache: feeds the last `width` committed tokens."""
  # Rows that lack fewer tokens write some over with the values they had.
  begin = jnp.maximum(length - width, 0)
  _, _, cache = scorer.score(weights, window(ids, begin, width), scorer.rollback(cache, begin))
  return scorer.rollback(cache, length)


def window(ids: Array, begin: Array, width: int) -> Array:
  """The `width` ids [B, width] from `begin` [B] on; the last one again behind the end."""
  return jnp.take_along_axis(ids, begin[:, None] + jnp.arange(width), 1, mode="clip")
