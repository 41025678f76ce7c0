"""Rules of a batch from plain numbers: what is not said is off."""

from typing import Any

import jax.numpy as jnp

from specdec.types import Array
from specdec.types import Controls
from specdec.types import Limits
from specdec.types import Sampling
from specdec.types import Speculation


def sampling(batch: int, temperature: Any = 0.0, top_k: Any = 0, top_p: Any = 0.0) -> Sampling:
  """Spreads scalars or per-row values over a batch."""
  return Sampling(temperature=_spread(batch, temperature, jnp.float32),
                  top_k=_spread(batch, top_k, jnp.int32),
                  top_p=_spread(batch, top_p, jnp.float32))


def limits(batch: int, max_decode_len: Any, eos_ids: Any = (1,), min_decode_len: Any = 0,
           size: int = 1) -> Limits:
  """Likewise; `eos_ids` is padded to a multiple of `size`, so that shapes are few."""
  return Limits(max_decode_len=_spread(batch, max_decode_len, jnp.int32),
                eos_ids=_padded(eos_ids, -1, size),
                min_decode_len=_spread(batch, min_decode_len, jnp.int32))


def controls(batch: int, repetition_penalty: Any = 1.0, no_repeat_ngram: Any = 0,
             forbidden: Any = (), logits_fn: Any = None, size: int = 1) -> Controls:
  """Likewise.

  Args:
    batch: rows.
    repetition_penalty: a number or one per row.
    no_repeat_ngram: a number or one per row.
    forbidden: triples (id, first position, first position after), for all rows.
    logits_fn: a callable pytree, or None.
    size: the triples are padded to a multiple of it.
  """
  ids, begin, end = zip(*forbidden) if len(forbidden) else ((), (), ())
  return Controls(
      repetition_penalty=_spread(batch, repetition_penalty, jnp.float32),
      no_repeat_ngram=_spread(batch, no_repeat_ngram, jnp.int32),
      forbidden_ids=_padded(ids, -1, size), forbidden_from=_padded(begin, 0, size),
      forbidden_until=_padded(end, 0, size), logits_fn=logits_fn)


def speculation(batch: int, gamma: Any = 2**30, confidence: Any = 0.0,
                lenience: Any = 1.0) -> Speculation:
  """Likewise."""
  return Speculation(gamma=_spread(batch, gamma, jnp.int32),
                     confidence=_spread(batch, confidence, jnp.float32),
                     lenience=_spread(batch, lenience, jnp.float32))


def _spread(batch: int, value: Any, dtype: Any) -> Array:
  return jnp.broadcast_to(jnp.asarray(value, dtype), (batch,))


def _padded(values: Any, fill: int, size: int) -> Array:
  values = tuple(values)
  # One entry at least: an empty array would be a shape of its own.
  wanted = max(-(-len(values) // size), 1) * size
  return jnp.asarray((*values, *[fill] * (wanted - len(values))), jnp.int32)
