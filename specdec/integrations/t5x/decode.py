"""One batch of a T5X job, decoded in the program that T5X builds."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from specdec.core import keys
from specdec.core import loop
from specdec.core import rules as rules_lib
from specdec.core.state import DecodeState
from specdec.core.state import Exits
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.core.state import capacity_for
from specdec.integrations.t5x import knobs as knobs_lib
from specdec.integrations.t5x.knobs import Knobs
from specdec.types import Rules
from specdec.types import Source
from specdec.types import Status

Array = jax.Array

# Counts that a caller may ask for, by the names under which T5X gets to see them.
COUNTS = ("target_calls", "drafted", "tested", "accepted")


@dataclasses.dataclass(frozen=True)
class Request:
  """What is asked of a batch.

  Attributes:
    inputs: int32 [B, S], encoder ids, 0 behind them.
    prompts: int32 [B, L], decoder ids from the second on are the prompt, up to the first 0;
      None for no prompts.
    width: L, columns of the output.
    num_decodes: samples per input.
    eos_id: ends a row; may be traced.
    key: of the batch, of any kind.
    knobs: parameters of `temperature_sample`.
    confidence: see `types.Speculation`.
    logits_fn: see `types.Controls`.
  """

  inputs: Array
  prompts: Array | None
  width: int
  num_decodes: int
  eos_id: Any
  key: Array
  knobs: Knobs
  confidence: float = 0.0
  logits_fn: Any = None


def decode(method: Method, weights: Weights, request: Request
           ) -> tuple[Array, Array, dict[str, Array]]:
  """Decodes a batch to its end.

  Returns:
    As `temperature_sample` does: ids int32 [B, num_decodes, L] with zeros behind the EOS,
    scores float32 [B, num_decodes], sorted by increasing score. A row that ended because its
    logits were not finite, or left no id, has the score -inf and so comes first. And, in the
    same order, the counts of each.
  """
  batch, copies = request.inputs.shape[0], request.num_decodes
  rows = batch * copies
  prompt = _prompt(request, copies)
  rules = _rules(request, prompt.length - 1)
  base = keys.adopt(request.key)
  row_keys = keys.row_keys_under(base, jnp.repeat(jnp.arange(batch), copies),
                                 jnp.tile(jnp.arange(copies), batch))
  state = loop.start(method, weights, _source(request.inputs), prompt, row_keys,
                     jnp.ones((rows,), bool), capacity_for(request.width, method.gamma), copies)
  state = loop.run(method, weights, state, rules, Exits())
  ids = state.ids[:, 1:1 + request.width]
  scores = _scores(state, request.knobs.rescale_log_probs)
  grouped = lambda x: x.reshape((batch, copies, *x.shape[1:]))
  order = jnp.argsort(grouped(scores), axis=-1)
  by_score = lambda x: jnp.take_along_axis(grouped(x), order, 1)
  return (jnp.take_along_axis(grouped(ids), order[..., None], 1), by_score(scores),
          {name: by_score(getattr(state.stats, name)) for name in COUNTS})


def _source(inputs: Array) -> Source:
  """Encoder ids up to the last that is not padding."""
  place = jnp.arange(1, inputs.shape[1] + 1)
  length = jnp.where(inputs != 0, place, 0).max(1)
  # Attention needs a key, if only in a row that holds nothing.
  return Source(ids=inputs.astype(jnp.int32), length=jnp.maximum(length, 1).astype(jnp.int32))


def _prompt(request: Request, copies: int) -> Source:
  """Start ids and prompts, a row per sample."""
  batch = request.inputs.shape[0]
  if request.prompts is None:
    return Source(ids=jnp.zeros((batch * copies, 1), jnp.int32),
                  length=jnp.ones((batch * copies,), jnp.int32))
  begun = jnp.cumprod((request.prompts[:, 1:] != 0).astype(jnp.int32), axis=1)
  ids = request.prompts.astype(jnp.int32).at[:, 0].set(0)
  return Source(ids=jnp.repeat(ids, copies, 0),
                length=jnp.repeat(1 + begun.sum(1, dtype=jnp.int32), copies))


def _rules(request: Request, prompt: Array) -> Rules:
  knobs, batch, copies = request.knobs, request.inputs.shape[0], request.num_decodes
  rows = batch * copies
  spread = lambda name: knobs_lib.per_row(name, getattr(knobs, name), batch, copies)
  return Rules(
      rules_lib.sampling(rows, spread("temperature"), spread("topk"), spread("topp")),
      rules_lib.limits(rows, knobs.limit(request.width, prompt), (request.eos_id,)),
      rules_lib.controls(rows, logits_fn=request.logits_fn),
      rules_lib.speculation(rows, confidence=request.confidence))


def _scores(state: DecodeState, rescaled: bool) -> Array:
  scores = state.adjusted_log_prob if rescaled else state.log_prob
  sound = (state.status == Status.EOS) | (state.status == Status.LENGTH)
  return jnp.where(sound, scores, -jnp.inf)
