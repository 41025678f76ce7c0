"""A smaller Transformer as the approximation model (section 3.6 of the paper)."""

import dataclasses
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from specdec.core import controls
from specdec.core import keys
from specdec.core import probs
from specdec.core.contracts import Context
from specdec.core.contracts import Proposal
from specdec.core.contracts import Scorer
from specdec.types import Source

Array = jax.Array
PyTree = Any


@dataclasses.dataclass(frozen=True)
class TransformerDrafter:
  """Drafts with any `Scorer` that shares the target's vocabulary.

  Attributes:
    scorer: the small model.
    vocab_size: the target's logits width. Widths that differ by padding are
      aligned: ids the target lacks are cut before the softmax, ids the drafter
      lacks are given probability 0.
  """

  scorer: Scorer
  vocab_size: int

  def init(self, params: PyTree, source: Source, capacity: int, copies: int = 1) -> PyTree:
    return self.scorer.init(params, source, capacity, copies)

  def catch_up(self, params: PyTree, state: PyTree, ids: Array, length: Array,
               width: int) -> PyTree:
    # Rows that lack fewer tokens write some over with the values they had.
    begin = jnp.maximum(length - width, 0)
    tokens = jnp.take_along_axis(ids, begin[:, None] + jnp.arange(width), 1)
    _, _, state = self.scorer.score(params, tokens, self.scorer.rollback(state, begin))
    return self.scorer.rollback(state, length)

  def _align(self, logits: Array) -> Array:
    lacking = self.vocab_size - logits.shape[-1]
    if lacking <= 0:
      return logits[..., :self.vocab_size]
    return jnp.pad(logits, ((0, 0), (0, 0), (0, lacking)), constant_values=-jnp.inf)

  def _draw(self, logits: Array, context: Context, drafted: Array, index: Array | int,
            noise: Array) -> tuple[Array, Array, Array]:
    """Drafts the token of one position.

    Args:
      logits: [B, 1, V].
      context: what is committed.
      drafted: int32 [B, G], of which the first `index` columns are drafted already.
      index: int scalar.
      noise: [B, 2].

    Returns:
      The token [B], `drafted` with it, and its distribution [B, V].
    """
    q = controls.distribution(self._align(logits), context, drafted, index)[:, 0]
    token = probs.draw(noise, q)
    return token, lax.dynamic_update_slice(drafted, token[:, None], (0, index)), q

  def propose(self, params: PyTree, state: PyTree, context: Context,
              gamma: int) -> tuple[Proposal, PyTree]:
    # The first call always feeds the last two committed tokens. When the whole
    # previous draft stood, its last token was never fed; otherwise the first of
    # the two is written over with the value it had. One shape serves all rows.
    begin = jnp.maximum(context.length - 2, 0)
    pair = jnp.take_along_axis(context.ids, begin[:, None] + jnp.arange(2), 1)
    logits, _, state = self.scorer.score(params, pair, self.scorer.rollback(state, begin))
    newest = context.length - 1 - begin
    logits = jnp.take_along_axis(logits, newest[:, None, None], 1)
    # A row with only its start id has fed one slot too many: take it back.
    state = self.scorer.rollback(state, context.length)
    noise = keys.uniforms(
        context.row_keys, context.length,
        keys.place(keys.Role.DRAFT, jnp.arange(gamma), context.level),
        needed=~probs.is_greedy(context.rules.sampling).all())
    drafted = jnp.zeros((context.ids.shape[0], gamma), jnp.int32)
    token, drafted, q = self._draw(logits, context, drafted, 0, noise[:, 0])

    def scan_step(carry, position):
      state, token, drafted = carry
      index, noise = position
      logits, _, state = self.scorer.score(params, token[:, None], state)
      token, drafted, q = self._draw(logits, context, drafted, index, noise)
      return (state, token, drafted), q

    qs = q[:, None]
    if gamma > 1:
      (state, _, drafted), more_q = lax.scan(
          scan_step, (state, token, drafted),
          (jnp.arange(1, gamma), noise[:, 1:].transpose((1, 0, 2))))
      qs = jnp.concatenate([qs, more_q.transpose((1, 0, 2))], 1)
    return Proposal(drafted, qs, jnp.full(drafted.shape[:1], gamma, jnp.int32)), state

  def commit(self, params: PyTree, state: PyTree, context: Context,
             num_accepted: Array) -> PyTree:
    # Only lengths matter, and `propose` sets them from the committed tokens.
    return self.scorer.rollback(state, context.length + num_accepted)
