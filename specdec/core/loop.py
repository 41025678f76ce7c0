"""The compiled programs: starting a batch and running it.

Nothing crosses to the host inside `run`. It takes and returns donated state, so
streaming, clean shutdown and refilling are a matter of calling it again.
"""

import functools

import jax
from jax import lax
import jax.numpy as jnp

from specdec.core import step as step_lib
from specdec.core.state import DecodeState
from specdec.core.state import Exits
from specdec.core.state import Method
from specdec.core.state import Stats
from specdec.core.state import Weights
from specdec.types import Limits
from specdec.types import Sampling
from specdec.types import Source
from specdec.types import Status

Array = jax.Array


@functools.partial(jax.jit, static_argnames=("method", "capacity"))
def start(method: Method, weights: Weights, source: Source, start_ids: Array,
          row_keys: Array, in_use: Array, capacity: int) -> DecodeState:
  """Encodes a batch with both models and returns the state to run.

  Args:
    method: static settings.
    weights: of target and drafter.
    source: what to decode from.
    start_ids: int32 [B], the first decoder input (0 for T5).
    row_keys: typed keys [B] from `keys.row_keys`.
    in_use: bool [B]; False rows are padding and never run.
    capacity: slots per row, `state.capacity_for`; static.
  """
  batch = start_ids.shape[0]
  # A buffer each: donated arrays must not be the same array twice.
  zeros = lambda dtype=jnp.int32: jnp.zeros((batch,), dtype)
  drafter = method.drafter
  return DecodeState(
      ids=jnp.zeros((batch, capacity), jnp.int32).at[:, 0].set(start_ids),
      length=jnp.ones((batch,), jnp.int32),
      status=jnp.where(in_use, Status.RUNNING, Status.UNUSED).astype(jnp.int32),
      log_prob=zeros(jnp.float32),
      row_keys=row_keys,
      target_cache=method.scorer.init(weights.target, source, capacity),
      draft_state=drafter and drafter.init(weights.drafter, source, capacity),
      stats=Stats(zeros(), zeros(), zeros(), zeros()),
      iterations=jnp.zeros((), jnp.int32))


@functools.partial(jax.jit, static_argnames=("method",), donate_argnames=("state",))
def run(method: Method, weights: Weights, state: DecodeState, sampling: Sampling,
        limits: Limits, exits: Exits) -> DecodeState:
  """Iterates until an exit is reached.

  Compiled once per `method` and shape; sampling, limits and exits are traced.

  Args:
    method: static settings.
    weights: of target and drafter.
    state: of the batch; donated.
    sampling: a value per row.
    limits: `max_decode_len` must fit the state's capacity.
    exits: when to come back.

  Returns:
    The state, with the same shapes.
  """
  first = state.iterations
  ended_before = (~state.running).sum(dtype=jnp.int32)

  def goes_on(state: DecodeState) -> Array:
    ended = (~state.running).sum(dtype=jnp.int32)
    return (state.running.any()
            & (state.iterations - first < exits.max_iterations)
            & (ended - ended_before < exits.min_ended))

  def body(state: DecodeState) -> DecodeState:
    return step_lib.step(method, weights, state, sampling, limits)

  return lax.while_loop(goes_on, body, state)
