"""The compiled programs: starting a batch and running it.

Nothing crosses to the host inside `run`. It takes and returns donated state, so
streaming, clean shutdown and refilling are a matter of calling it again.
"""

import dataclasses
import functools

import jax
from jax import lax
import jax.numpy as jnp

from specdec.core import keys
from specdec.core import layout
from specdec.core import rows as rows_lib
from specdec.core import step as step_lib
from specdec.core.state import DecodeState
from specdec.core.state import Exits
from specdec.core.state import Method
from specdec.core.state import Stats
from specdec.core.state import Trace
from specdec.core.state import Weights
from specdec.types import Rules
from specdec.types import Source
from specdec.types import Status

Array = jax.Array


@functools.partial(jax.jit, static_argnames=("method", "capacity", "copies"))
def start(method: Method, weights: Weights, source: Source, prompt: Source,
          row_keys: Array, in_use: Array, capacity: int, copies: int = 1) -> DecodeState:
  """Encodes a batch with both models, reads its prompts and returns the state to run.

  Args:
    method: static settings.
    weights: of target and drafter.
    source: what to decode from, `B / copies` rows.
    prompt: ids int32 [B, P], the first decoder input (0 for T5) and tokens that every
      output must begin with; lengths of at least 1. P is at most `capacity`.
    row_keys: typed keys [B] from `keys.row_keys`.
    in_use: bool [B]; False rows are padding and never run.
    capacity: slots per row, `state.capacity_for`; static.
    copies: rows per source row, next to each other; static.
  """
  batch, width = prompt.ids.shape
  # A buffer each: donated arrays must not be the same array twice.
  zeros = lambda dtype=jnp.int32: jnp.zeros((batch,), dtype)
  scorer, drafter = method.scorer, method.drafter
  ids = jnp.zeros((batch, capacity), jnp.int32)
  ids = ids.at[:, :width].set(jnp.where(prompt.mask, prompt.ids, 0))
  # Another buffer than the caller's, who keeps it.
  length = prompt.length + zeros()
  cache = scorer.init(weights.target, source, capacity, copies)
  draft_state = drafter and drafter.init(weights.drafter, source, capacity, copies)
  if width > 1:
    # One call for all rows: what a shorter prompt's row is fed too much lies behind
    # its length.
    _, _, cache = scorer.score(weights.target, ids[:, :width - 1], cache)
    cache = scorer.rollback(cache, length - 1)
    draft_state = drafter and drafter.catch_up(weights.drafter, draft_state, ids, length, width)
  return _laid(DecodeState(
      ids=ids,
      length=length,
      status=jnp.where(in_use, Status.RUNNING, Status.UNUSED).astype(jnp.int32),
      log_prob=zeros(jnp.float32),
      adjusted_log_prob=zeros(jnp.float32),
      row_keys=row_keys,
      target_cache=cache,
      draft_state=draft_state,
      stats=Stats(zeros(), zeros(), zeros(), zeros()),
      iterations=jnp.zeros((), jnp.int32),
      drafting=jnp.ones((), bool),
      trace=_empty_trace(batch, capacity, method.gamma) if method.trace else None))


def _laid(state: DecodeState) -> DecodeState:
  """The state as it lies on a mesh, the same before and after every call."""
  batch = state.ids.shape[0]
  # Scorers say more about their caches.
  cache, drafter = layout.rows((state.target_cache, state.draft_state), batch, rest_open=True)
  outer = layout.rows(state.replace(target_cache=None, draft_state=None), batch)
  return outer.replace(target_cache=cache, draft_state=drafter)


@functools.partial(jax.jit, static_argnames=("method", "rows", "width", "capacity"))
def empty(method: Method, weights: Weights, rows: int, width: int, capacity: int) -> DecodeState:
  """A batch of unused rows, to be filled by `insert`; of the shapes that `start` would give.

  Args:
    method: static settings.
    weights: of target and drafter; only their shapes count.
    rows: of the batch; static, and so are the others.
    width: columns of the widest source that is to come.
    capacity: slots per row, `state.capacity_for`.
  """
  zeros = lambda *shape: jnp.zeros(shape, jnp.int32)
  shapes = jax.eval_shape(
      lambda weights: start(
          method, weights, Source(zeros(rows, width), zeros(rows), zeros(rows)),
          Source(zeros(rows, 1), zeros(rows)), keys.row_keys(0, zeros(rows)),
          jnp.zeros((rows,), bool), capacity), weights)
  state = jax.tree.map(lambda x: keys.no_keys(x.shape[0]) if keys.is_key(x) else
                       jnp.zeros(x.shape, x.dtype), shapes)
  # The start id is there: nobody looks for a token before the first.
  return _laid(state.replace(length=jnp.ones((rows,), jnp.int32),
                             status=jnp.full((rows,), Status.UNUSED, jnp.int32)))


@functools.partial(jax.jit, static_argnames=("method",), donate_argnames=("state",))
def insert(method: Method, state: DecodeState, rows: Array, other: DecodeState) -> DecodeState:
  """Puts rows of another batch into the places of ended or unused ones.

  The donated state is written where it stands: of the caches, no more than the new rows is
  touched. Compiled once per `method` and shapes.

  Args:
    method: static settings.
    state: of the batch; donated.
    rows: int32 [N], where each row of `other` goes; one outside the batch goes nowhere.
    other: from `start` with the same method; its source, its capacity and so its trace may
      be narrower than the batch's, never wider.
  """
  scorer, drafter = method.scorer, method.drafter
  # What the batch counts by itself stays: how often it has iterated, and whether it drafts.
  own = {"iterations": None, "drafting": None, "target_cache": None, "draft_state": None}
  replaced = rows_lib.replace(state.replace(**own), rows, other.replace(**own))
  return _laid(replaced.replace(
      iterations=state.iterations, drafting=state.drafting,
      target_cache=scorer.insert(state.target_cache, rows, other.target_cache),
      draft_state=drafter and drafter.insert(state.draft_state, rows, other.draft_state)))


def _empty_trace(batch: int, capacity: int, gamma: int) -> Trace:
  # A row has fewer target calls than slots, as each commits a token.
  one = lambda dtype=jnp.int32: jnp.zeros((batch, capacity), dtype)
  each = lambda dtype=jnp.float32: jnp.zeros((batch, capacity, gamma), dtype)
  return Trace(each(jnp.int32), one(), one(), one(), each(), each(), each(), one(jnp.float32))


@functools.partial(jax.jit, static_argnames=("method", "width"), donate_argnames=("state",))
def catch_up(method: Method, weights: Weights, state: DecodeState, width: int) -> DecodeState:
  """Brings a drafter level that was left out while the target went on, in one call of it.

  Args:
    method: static settings, with the drafter.
    weights: of target and drafter.
    state: of the batch; donated.
    width: no row has committed more tokens than so many meanwhile; static, at most the
      capacity.
  """
  assert method.drafter is not None
  return _laid(state.replace(draft_state=method.drafter.catch_up(
      weights.drafter, state.draft_state, state.ids, state.length, width)))


def _has_draft(method: Method, weights: Weights, state: DecodeState, rules: Rules) -> Array:
  """Whether a running row has both a draft and a use for it, bool scalar."""
  # In the size that would be run, which is not this one-token size.
  some = dataclasses.replace(method, gamma=1)
  context = step_lib.make_context(some, state, rules)
  assert method.drafter is not None  # Or there would be nothing to watch for.
  found = method.drafter.has_draft(weights.drafter, state.draft_state, context)
  return (found & (context.wanted > 0)).any()


@functools.partial(jax.jit, static_argnames=("method",), donate_argnames=("state",))
def run(method: Method, weights: Weights, state: DecodeState, rules: Rules,
        exits: Exits) -> DecodeState:
  """Iterates until an exit is reached.

  Compiled once per `method` and shape; rules and exits are traced.

  Args:
    method: static settings.
    weights: of target and drafter.
    state: of the batch; donated.
    rules: `max_decode_len` must fit the state's capacity.
    exits: when to come back.

  Returns:
    The state, with the same shapes.
  """
  first = state.iterations
  ended_before = (~state.running).sum(dtype=jnp.int32)

  def goes_on(state: DecodeState) -> Array:
    ended = (~state.running).sum(dtype=jnp.int32)
    go = (state.running.any()
          & (state.iterations - first < exits.max_iterations)
          & (ended - ended_before < exits.min_ended))
    if not method.watch:
      return go
    if method.gamma:
      return go & (state.drafting | (state.iterations == first))
    return go & ~_has_draft(method, weights, state, rules)

  def body(state: DecodeState) -> DecodeState:
    return _laid(step_lib.step(method, weights, state, rules))

  return lax.while_loop(goes_on, body, state)
