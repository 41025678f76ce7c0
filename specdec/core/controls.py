"""Controls on the logits: lengths, forbidden ids, repetition, and the user's own.

One function serves plain decoding, drafting and verification: position j of a draft
is adjusted by the committed tokens and the first j drafted ones, whoever asks. A
control has no state that a rejected draft could leave a trace in; whatever it needs
it reads from that history.

The order is that of common libraries: repetition penalty, then what is forbidden,
then the user's `logits_fn`; temperature and filters (`core.probs`) come after.
"""

from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from specdec.core import probs
from specdec.core.contracts import Context
from specdec.errors import SpecdecError
from specdec.types import Controls
from specdec.types import Limits
from specdec.types import Rules

Array = jax.Array


def distribution(logits: Array, context: Context, drafted: Array,
                 first: Array | int = 0) -> Array:
  """Adjusted and normalised logits: what is sampled from. See `adjust`."""
  return probs.distribution(adjust(logits, context, drafted, first), context.rules.sampling)


def adjust(logits: Array, context: Context, drafted: Array, first: Array | int = 0) -> Array:
  """Applies the controls of `context.rules` to the logits of consecutive positions.

  Nothing but a flag is computed while no row asks for anything.

  A `logits_fn` is called with logits float32 [N, V], with ids int32 [N, T], which are
  the start id, the prompt and the tokens before the position, then zeros, and with
  lengths int32 [N], how many of these are in use. Each of the N entries is a position
  of some row: committed, drafted or still to be verified. It must be pure and return
  logits of the same shape and dtype. -inf forbids a token; +inf and NaN are no logits and
  end the row, so force a token by forbidding the others.

  Args:
    logits: float [B, N, V]; entry j is for the position after `first + j` drafted
      tokens.
    context: committed tokens and rules.
    drafted: int32 [B, G], tokens drafted after them; those that entry j must not see
      yet may hold anything.
    first: int scalar.

  Returns:
    float32 [B, N, V].

  Raises:
    SpecdecError: the `logits_fn` returns another shape or dtype.
  """
  logits = logits.astype(jnp.float32)
  limits, controls = context.rules.limits, context.rules.controls
  length = context.length[:, None] + first + jnp.arange(logits.shape[1])

  def built_in() -> Array:
    ids = _histories(context, drafted, length)
    out = lax.cond(jnp.any(controls.repetition_penalty != 1), _penalise, lambda x, *_: x,
                   logits, ids, length, controls.repetition_penalty)
    out = lax.cond(jnp.any(controls.no_repeat_ngram > 0), _forbid_ngrams, lambda x, *_: x,
                   out, ids, length, controls.no_repeat_ngram)
    return _forbid_ids(out, length - 1, limits, controls)

  logits = lax.cond(_active(limits, controls), built_in, lambda: logits)
  if controls.logits_fn is None:
    return logits
  flat = lambda x: x.reshape((-1, *x.shape[2:]))
  return call(controls.logits_fn, flat(logits), flat(_histories(context, drafted, length)),
              flat(length)).reshape(logits.shape)


def active(rules: Rules) -> Array:
  """Whether `adjust` would do anything for some row, bool scalar.

  For drafters that know a few candidates, and need not spread them over the vocabulary
  when it would not.
  """
  if rules.controls.logits_fn is not None:
    return jnp.ones((), bool)
  return _active(rules.limits, rules.controls)


def _active(limits: Limits, controls: Controls) -> Array:
  """Whether any row asks for a built-in control, bool scalar."""
  return (jnp.any(limits.min_decode_len > 1) | jnp.any(controls.repetition_penalty != 1)
          | jnp.any(controls.no_repeat_ngram > 0) | jnp.any(controls.forbidden_ids >= 0))


def _histories(context: Context, drafted: Array, length: Array) -> Array:
  """Tokens before each position, zeros behind them: int32 [B, N, T]."""
  ids, committed = context.ids, context.length[:, None]
  rows = jnp.arange(ids.shape[0])[:, None]
  slots = committed + jnp.arange(drafted.shape[1])
  ids = ids.at[rows, slots].set(drafted, mode="drop")
  return jnp.where(jnp.arange(ids.shape[1]) < length[..., None], ids[:, None], 0)


def _mark(ids: Array, where: Array, size: int) -> Array:
  """bool [B, N, V], True at the ids [B, N, M] that `where` [B, N, M] selects."""
  chosen = jnp.where(where & (ids >= 0), ids, size)  # A negative index would wrap around.
  batch, num, _ = chosen.shape
  return jnp.zeros((batch, num, size), bool).at[
      jnp.arange(batch)[:, None, None], jnp.arange(num)[:, None], chosen].set(True, mode="drop")


def _penalise(logits: Array, ids: Array, length: Array, penalty: Array) -> Array:
  """Keskar et al. 2019 (CTRL), section 4.1, in the form that never rewards a repetition."""
  slot = jnp.arange(ids.shape[-1])
  seen = _mark(ids, (slot > 0) & (slot < length[..., None]), logits.shape[-1])
  penalty = penalty[:, None, None]
  return jnp.where(seen, jnp.where(logits < 0, logits * penalty, logits / penalty), logits)


def _forbid_ngrams(logits: Array, ids: Array, length: Array, size: Array) -> Array:
  """Forbids every token that once followed the last `size - 1` tokens."""
  slot, size = jnp.arange(ids.shape[-1]), size[:, None, None]
  length = length[..., None]

  def one_back(k: Array, match: Array) -> Array:
    """Compares the tokens k before every slot with the one k before the position."""
    newest = jnp.take_along_axis(ids, jnp.maximum(length - k, 0), -1)
    # The start id is no token; what rolls around the end lies at slots up to k.
    same = (jnp.roll(ids, k, -1) == newest) & (slot - k > 0) & (length - k > 0)
    return match & (same | (k >= size))

  match = (slot > 0) & (slot < length) & (size > 0)
  match = lax.fori_loop(1, jnp.minimum(size.max(), ids.shape[-1]), one_back,
                        jnp.broadcast_to(match, ids.shape))
  return jnp.where(_mark(ids, match, logits.shape[-1]), -jnp.inf, logits)


def _forbid_ids(logits: Array, position: Array, limits: Limits, controls: Controls) -> Array:
  """Forbids ids by absolute position [B, N], and EOS ids before the minimum length."""
  position = position[..., None]
  listed = (position >= controls.forbidden_from) & (position < controls.forbidden_until)
  early = position + 1 < limits.min_decode_len[:, None, None]
  early = jnp.broadcast_to(early, (*position.shape[:2], limits.eos_ids.shape[0]))
  ids = jnp.concatenate([controls.forbidden_ids, limits.eos_ids])
  where = jnp.concatenate([listed, early], -1)
  mask = _mark(jnp.broadcast_to(ids, where.shape), where, logits.shape[-1])
  return jnp.where(mask, -jnp.inf, logits)


def call(logits_fn: Any, logits: Array, ids: Array, lengths: Array) -> Array:
  """Calls a hook and refuses what it must not return, while the program is traced."""
  out = logits_fn(logits, ids, lengths)
  name = getattr(getattr(logits_fn, "func", None), "__name__", type(logits_fn).__name__)
  expected = f"float32 of shape {logits.shape}, as its first argument"
  if not isinstance(out, jax.Array):
    raise SpecdecError(f"logits_fn {name} returned "
                       f"{type(out).__name__}; expected {expected}")
  if out.shape != logits.shape or out.dtype != logits.dtype:
    raise SpecdecError(f"logits_fn {name} returned {out.dtype} of shape "
                       f"{out.shape}; expected {expected}")
  return out
