"""N-gram tables as the approximation model (section 3.6 of the paper): next to no cost.

What the paper found with a bigram model on a translation task holds for any table: it is
right far less often than a small Transformer, but a look-up is free beside a target call.
"""

import dataclasses
from typing import Any

import flax.struct
import jax
from jax import lax
import jax.numpy as jnp

from specdec.core import controls
from specdec.core import drafting
from specdec.core import probs
from specdec.core.contracts import Context
from specdec.core.contracts import Proposal
from specdec.types import Source

Array = jax.Array
PyTree = Any

MAX_ORDER = 3
# Stands where a row has no token so far back; no history holds it.
_NOTHING = -1


class Tables(flax.struct.PyTreeNode):
  """What follows the histories that are known; each of them is a row of successors.

  Row 0 is the empty history's, then come those of one token, then those of two. Rows have
  as many successors as were seen, so they lie one behind the other.

  Attributes:
    histories: int32 [R_n, n] for n = 1, 2, ... up to the order - 1, oldest token first, sorted.
    begin: int32 [R + 1], where the successors of each row begin; R = 1 + R_1 + R_2 + ...
    tokens: int32 [N], the successors; those of a row differ.
    log_probs: float32 [N], in nats; need not add up to 1.
    width: the most successors that a row has; static.
  """

  histories: tuple[Array, ...]
  begin: Array
  tokens: Array
  log_probs: Array
  width: int = flax.struct.field(pytree_node=False)

  @property
  def order(self) -> int:
    """Tokens that a table looks at, the drafted one included: 2 for bigrams."""
    return len(self.histories) + 1


class _Draft(flax.struct.PyTreeNode):
  """A draft in the making: the candidates of each position instead of all ids.

  Attributes:
    recent: int32 [B, order - 1], the newest tokens, oldest first.
    tokens: int32 [B, G].
    ids: int32 [B, G, K], candidates; those of q = 0 may be any.
    q: float32 [B, G, K].
    num_drafted: int32 [B].
  """

  recent: Array
  tokens: Array
  ids: Array
  q: Array
  num_drafted: Array


@dataclasses.dataclass(frozen=True)
class NgramDrafter:
  """Drafts by what followed the last tokens in the texts that were counted.

  Of the histories in the tables the longest that fits is used, alone: a trigram's, else a
  bigram's, else that of no token at all (backoff without weights). Nothing is smoothed, and
  a row's rare successors may be missing. No more is needed: the output follows the target
  whatever q is, as long as tokens are drawn from the q that is reported, and a token that a
  table lacks comes from the residual. Only how many drafts stand depends on q.

  A row's log-probabilities are the drafter's logits: controls, temperature, top-k and top-p
  apply to them as to anybody's. A row whose candidates are all forbidden stops there.

  Attributes:
    vocab_size: the target's logits width; above every id in the tables.
    order: of the tables, 1 to 3.
  """

  vocab_size: int
  order: int

  abstains = False

  def __post_init__(self):
    if not 1 <= self.order <= MAX_ORDER:
      raise ValueError(f"order is {self.order}; expected 1 to {MAX_ORDER}")

  def init(self, params: Tables, source: Source, capacity: int, copies: int = 1) -> PyTree:
    # The committed tokens are all that counts, and `propose` gets to see them.
    return ()

  def catch_up(self, params: Tables, state: PyTree, ids: Array, length: Array,
               width: int) -> PyTree:
    return state

  def propose(self, params: Tables, state: PyTree, context: Context,
              gamma: int) -> tuple[Proposal, PyTree]:
    assert params.order == self.order, "the tables are of another order"
    batch = context.ids.shape[0]
    noise = drafting.uniforms(context, gamma)
    active = controls.active(context.rules)

    def wants_more(carry: tuple[Array, _Draft]) -> Array:
      index, draft = carry
      wanting = (draft.num_drafted == index) & (context.wanted > index)
      return (index < gamma) & wanting.any()

    def next_token(carry: tuple[Array, _Draft]) -> tuple[Array, _Draft]:
      index, draft = carry
      return index + 1, self._extend(params, context, noise, active, index, draft)

    _, draft = lax.while_loop(wants_more, next_token, (jnp.int32(0), _Draft(
        recent=_newest(context, self.order - 1),
        tokens=jnp.zeros((batch, gamma), jnp.int32),
        ids=jnp.zeros((batch, gamma, params.width), jnp.int32),
        q=jnp.zeros((batch, gamma, params.width), jnp.float32),
        num_drafted=jnp.zeros((batch,), jnp.int32))))
    # Once, and only here, is something as wide as the vocabulary written.
    dense = jnp.zeros((batch, gamma, self.vocab_size), jnp.float32).at[
        jnp.arange(batch)[:, None, None], jnp.arange(gamma)[:, None], draft.ids].add(draft.q)
    return Proposal(draft.tokens, dense, draft.num_drafted), state

  def _extend(self, params: Tables, context: Context, noise: Array, active: Array,
              index: Array, draft: _Draft) -> _Draft:
    """Drafts the token at position `index`."""
    ids, logits = successors(params, draft.recent)
    logits = lax.cond(
        active, lambda: self._adjust(context, draft.tokens, index, ids, logits), lambda: logits)
    q = probs.distribution(logits[:, None], context.rules.sampling)[:, 0]
    token = drafting.draw_among(context, ids, q, index, lax.dynamic_index_in_dim(
        noise, index, 1, keepdims=False))
    possible = jnp.isfinite(logits.max(-1))
    # A row that stopped before goes on for nothing: the others do.
    going_on = (draft.num_drafted == index) & possible
    sure = going_on & drafting.is_confident(context, logits, q)
    at = lambda x, new: lax.dynamic_update_slice_in_dim(x, new[:, None], index, 1)
    return _Draft(
        recent=jnp.concatenate([draft.recent, token[:, None]], 1)[:, 1:],
        tokens=at(draft.tokens, token), ids=at(draft.ids, ids), q=at(draft.q, q),
        num_drafted=draft.num_drafted + sure)

  def _adjust(self, context: Context, drafted: Array, index: Array, ids: Array,
              logits: Array) -> Array:
    """Candidates' logits [B, K] after the controls, which see the whole vocabulary."""
    rows = jnp.arange(ids.shape[0])[:, None]
    dense = jnp.full((ids.shape[0], self.vocab_size), -jnp.inf)
    # Padding is -inf and may share an id with a candidate, so the larger one counts.
    dense = dense.at[rows, ids].max(logits)
    dense = controls.adjust(dense[:, None], context, drafted, index)[:, 0]
    return jnp.where(logits > -jnp.inf, dense[rows, ids], -jnp.inf)

  def has_draft(self, params: Tables, state: PyTree, context: Context) -> Array:
    return jnp.ones(context.length.shape, bool)

  def commit(self, params: Tables, state: PyTree, context: Context, num_accepted: Array,
             hidden: Array) -> PyTree:
    return state

  def insert(self, state: PyTree, rows: Array, other: PyTree) -> PyTree:
    return state


def successors(tables: Tables, recent: Array) -> tuple[Array, Array]:
  """The row of the longest known history.

  Args:
    tables: of any order.
    recent: int32 [B, order - 1], the newest tokens, oldest first; -1 where there is none.

  Returns:
    Candidates int32 [B, K] and their log-probabilities float32 [B, K]; those of -inf are
    none, and may repeat an id.
  """
  row = longest(tables, recent)
  slot = tables.begin[row][:, None] + jnp.arange(tables.width)
  there = slot < tables.begin[row + 1][:, None]
  slot = jnp.where(there, slot, 0)
  return tables.tokens[slot], jnp.where(there, tables.log_probs[slot], -jnp.inf)


def longest(tables: Tables, recent: Array) -> Array:
  """Row of the longest known history [B]; see `successors`."""
  row, first = jnp.zeros(recent.shape[0], jnp.int32), 1
  for histories in tables.histories:
    size = histories.shape[1]
    place, known = _find(histories, recent[:, recent.shape[1] - size:])
    row = jnp.where(known, first + place, row)
    first += histories.shape[0]
  return row


def _find(histories: Array, wanted: Array) -> tuple[Array, Array]:
  """Where [B, n] stands in sorted [R, n]: places int32 [B], and whether it is there at all.

  Token by token, as two of them make no int32, and int64 is off by default.
  """
  size = histories.shape[0]
  if size == 0:
    return jnp.zeros(wanted.shape[0], jnp.int32), jnp.zeros(wanted.shape[0], bool)
  steps = size.bit_length()

  def halve(i: Array, less: Array) -> Array:
    """Raises the number of histories that are known to be less, if by 2**(steps - 1 - i)."""
    more = less + (1 << (steps - 1 - i))
    found = histories[jnp.minimum(more, size) - 1]
    smaller = jnp.zeros(wanted.shape[0], bool)
    for column in reversed(range(wanted.shape[1])):
      a, b = found[:, column], wanted[:, column]
      smaller = (a < b) | ((a == b) & smaller)
    return jnp.where(smaller & (more <= size), more, less)

  less = lax.fori_loop(0, steps, halve, jnp.zeros(wanted.shape[0], jnp.int32))
  place = jnp.minimum(less, size - 1)
  return place, (histories[place] == wanted).all(-1)


def _newest(context: Context, count: int) -> Array:
  """The last tokens committed, int32 [B, count], oldest first; -1 before the start id."""
  slot = context.length[:, None] - count + jnp.arange(count)
  tokens = jnp.take_along_axis(context.ids, jnp.maximum(slot, 0), 1)
  return jnp.where(slot < 0, _NOTHING, tokens)
