"""A smaller Transformer as the approximation model (section 3.6 of the paper)."""

import dataclasses
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from specdec.core import controls
from specdec.core import drafting
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

  abstains = False

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

  def _extend(self, logits: Array, context: Context, noise: Array, index: Array | int,
              draft: Proposal) -> Proposal:
    """Drafts the token at position `index` out of logits [B, 1, V]."""
    adjusted = controls.adjust(self._align(logits), context, draft.tokens, index)
    q = probs.distribution(adjusted, context.rules.sampling)
    token = drafting.draw(context, q[:, 0], index, lax.dynamic_index_in_dim(
        noise, index, 1, keepdims=False))
    # A row that stopped before goes on for nothing: the others do.
    going_on = draft.num_drafted == index
    sure = going_on & drafting.is_confident(context, adjusted[:, 0], q[:, 0])
    return Proposal(
        tokens=lax.dynamic_update_slice(draft.tokens, token[:, None], (0, index)),
        probs=lax.dynamic_update_slice(draft.probs, q, (0, index, 0)),
        num_drafted=draft.num_drafted + sure)

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
    noise = drafting.uniforms(context, gamma)
    batch = context.ids.shape[0]
    draft = Proposal(jnp.zeros((batch, gamma), jnp.int32),
                     jnp.zeros((batch, gamma, self.vocab_size), jnp.float32),
                     jnp.zeros((batch,), jnp.int32))
    draft = self._extend(logits, context, noise, 0, draft)
    if gamma == 1:
      return draft, state

    def wants_more(carry: tuple[Array, PyTree, Proposal]) -> Array:
      index, _, draft = carry
      # Rows that are unsure, near their limit or adaptive need not pay for a whole draft.
      wanting = (draft.num_drafted == index) & (context.wanted > index)
      return (index < gamma) & wanting.any()

    def next_token(carry: tuple[Array, PyTree, Proposal]) -> tuple[Array, PyTree, Proposal]:
      index, state, draft = carry
      token = lax.dynamic_slice_in_dim(draft.tokens, index - 1, 1, 1)
      logits, _, state = self.scorer.score(params, token, state)
      return index + 1, state, self._extend(logits, context, noise, index, draft)

    _, state, draft = lax.while_loop(wants_more, next_token, (jnp.int32(1), state, draft))
    return draft, state

  def has_draft(self, params: PyTree, state: PyTree, context: Context) -> Array:
    return jnp.ones(context.length.shape, bool)

  def commit(self, params: PyTree, state: PyTree, context: Context, num_accepted: Array,
             hidden: Array) -> PyTree:
    # Only lengths matter, and `propose` sets them from the committed tokens.
    return self.scorer.rollback(state, context.length + num_accepted)
