"""A smaller Transformer as the approximation model (section 3.6 of the paper)."""

import dataclasses
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from specdec.core import drafting
from specdec.core.contracts import Context
from specdec.core.contracts import Proposal
from specdec.core.contracts import Scorer
from specdec.drafters import align
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
    return align.catch_up(self.scorer, params, state, ids, length, width)

  def propose(self, params: PyTree, state: PyTree, context: Context,
              gamma: int) -> tuple[Proposal, PyTree]:
    # The first call always feeds the last committed tokens that may be lacking: two,
    # unless in a cascade. When the whole previous draft stood, its last token was never
    # fed; otherwise the first of the two is written over with the value it had. One
    # shape serves all rows.
    begin = jnp.maximum(context.length - context.lag, 0)
    newest = align.window(context.ids, begin, context.lag)
    logits, _, state = self.scorer.score(params, newest, self.scorer.rollback(state, begin))
    logits = jnp.take_along_axis(logits, (context.length - 1 - begin)[:, None, None], 1)
    # A row with fewer tokens than that has fed some slots too many: take them back.
    state = self.scorer.rollback(state, context.length)
    noise = drafting.uniforms(context, gamma)

    def extend(draft: Proposal, logits: Array, index: Array | int) -> Proposal:
      return drafting.extend(draft, context, align.align(logits, self.vocab_size), noise, index)

    draft = extend(drafting.nothing(context, gamma, self.vocab_size), logits, 0)
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
      return index + 1, state, extend(draft, logits, index)

    _, state, draft = lax.while_loop(wants_more, next_token, (jnp.int32(1), state, draft))
    return draft, state

  def has_draft(self, params: PyTree, state: PyTree, context: Context) -> Array:
    return jnp.ones(context.length.shape, bool)

  def commit(self, params: PyTree, state: PyTree, context: Context, num_accepted: Array,
             hidden: Array) -> PyTree:
    # Only lengths matter, and `propose` sets them from the committed tokens.
    return self.scorer.rollback(state, context.length + num_accepted)

  def insert(self, state: PyTree, rows: Array, other: PyTree) -> PyTree:
    return self.scorer.insert(state, rows, other)
