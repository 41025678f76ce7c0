"""What was said before is said again: drafts copied from the input and the output.

Outputs that are mostly their input (corrections, summaries, edits) need no model to
draft them. Known as prompt lookup decoding, and in grammatical error correction as
aggressive decoding (Sun et al. 2021).
"""

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from specdec.core import rows as rows_lib
from specdec.core.contracts import Context
from specdec.core.contracts import Proposal
from specdec.types import Source

Array = jax.Array
PyTree = Any

# How many of the last tokens say where in the input the output has got to, and by how
# many places each may have moved.
_RECENT, _SLACK = 8, 2
# What counts more than what, as bits of one int32.
_NEAR_BITS, _DISTANCE_BITS = 3, 20
MAX_MATCH = 63


class CopyState(flax.struct.PyTreeNode):
  """The input.

  Attributes:
    ids: int32 [B, S].
    length: int32 [B], tokens in use.
    begin: int32 [B], the first of the text itself.
  """

  ids: Array
  length: Array
  begin: Array


@dataclasses.dataclass(frozen=True)
class CopyDrafter:
  """Finds the last committed tokens in the input or in the output, and drafts what followed.

  Deterministic, and without parameters. Of all places where the last tokens stood before,
  it takes, in this order,

  1. one that matches more of them, up to `max_match`;
  2. one in the input rather than in the output;
  3. in the input, one around which more of the last 8 tokens are found, each within two
     places of where an input without insertions and deletions would have it: where the
     text was copied from until it was changed;
  4. in the input, the one that is as far into its text as the output is into its own, or
     nearest to that; in the output, the latest.

  The draft ends with the input or with the output. The input's own EOS is part of it.

  Attributes:
    vocab_size: the target's logits width.
    max_match: the most tokens that are compared, 1 to 63.
    min_match: the fewest that must agree. With 0, the draft of an output that has not
      begun is the input itself.
  """

  vocab_size: int
  max_match: int = 3
  min_match: int = 1

  abstains = True

  def __post_init__(self):
    if not (1 <= self.max_match <= MAX_MATCH and 0 <= self.min_match <= self.max_match):
      raise ValueError(
          f"max_match is {self.max_match} and min_match is {self.min_match}; expected 0 <= "
          f"min_match <= max_match and 1 <= max_match <= {MAX_MATCH}")

  def init(self, params: PyTree, source: Source, capacity: int, copies: int = 1) -> CopyState:
    length = jnp.asarray(source.length, jnp.int32)
    begin = jnp.zeros_like(length) if source.begin is None else source.begin
    # Sums, so that no array is the caller's own: a state is donated.
    return jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x, jnp.int32), copies, 0) + 0,
                        CopyState(source.ids, length, begin))

  def catch_up(self, params: PyTree, state: CopyState, ids: Array, length: Array,
               width: int) -> CopyState:
    return state

  def propose(self, params: PyTree, state: CopyState, context: Context,
              gamma: int) -> tuple[Proposal, CopyState]:
    text, begin, count = self._find(state, context)
    place = jnp.arange(gamma)
    tokens = jnp.take_along_axis(text, begin[:, None] + place, 1, mode="clip")
    known = (tokens >= 0) & (tokens < self.vocab_size) & (place < count[:, None])
    drafted = jnp.cumprod(known.astype(jnp.int32), 1)
    return Proposal(tokens * drafted, None, drafted.sum(1, dtype=jnp.int32)), state

  def has_draft(self, params: PyTree, state: CopyState, context: Context) -> Array:
    return self.propose(params, state, context, 1)[0].num_drafted > 0

  def commit(self, params: PyTree, state: CopyState, context: Context, num_accepted: Array,
             hidden: Array) -> CopyState:
    return state

  def insert(self, state: CopyState, rows: Array, other: CopyState) -> CopyState:
    return rows_lib.replace(state, rows, other)

  def _find(self, state: CopyState, context: Context) -> tuple[Array, Array, Array]:
    """The text int32 [B, S + T], where in it the draft begins, and how much is there, [B]."""
    size, length = state.ids.shape[1], context.length[:, None]
    text = jnp.concatenate([state.ids, context.ids], 1)
    place = jnp.arange(text.shape[1])
    in_source = place < size
    # Two texts, one behind the other. The start id is no part of the second.
    low = jnp.where(in_source, state.begin[:, None], size + 1)
    high = jnp.where(in_source, state.length[:, None], size + length)

    # Something must follow, which leaves out the last tokens themselves.
    same = place + 1 < high
    match = jnp.zeros(text.shape, jnp.int32)
    for back in range(self.max_match):
      same &= (jnp.roll(text, back, 1) == _newest(context, back)) & (place - back >= low)
      match += same
    near = jnp.pad(_near(state, context), ((0, 0), (0, text.shape[1] - size)))
    expected = jnp.where(in_source, state.begin[:, None] + length - 2, size + length - 1)
    distance = jnp.minimum(jnp.abs(place - expected), (1 << _DISTANCE_BITS) - 1)
    rank = (((match * 2 + in_source) << _NEAR_BITS | near) << _DISTANCE_BITS) - distance
    rank = jnp.where(match >= max(self.min_match, 1), rank, -1)
    best = jnp.argmax(rank, 1)
    at_best = lambda x: jnp.take_along_axis(x, best[:, None], 1)[:, 0]
    begin, end = best.astype(jnp.int32) + 1, at_best(high)
    count = jnp.where(at_best(rank) >= 0, end - begin, 0)
    if self.min_match == 0:
      starting = context.length == 1
      begin = jnp.where(starting, state.begin, begin)
      count = jnp.where(starting, state.length - state.begin, count)
    return text, begin, count


def _newest(context: Context, back: int) -> Array:
  """The committed token `back` before the last, int32 [B, 1]; -1 where there is none."""
  slot = context.length[:, None] - 1 - back
  token = jnp.take_along_axis(context.ids, jnp.maximum(slot, 0), 1)
  return jnp.where(slot > 0, token, -1)


def _near(state: CopyState, context: Context) -> Array:
  """How many of the tokens before the last are found about each place of the input, [B, S]."""
  size = state.ids.shape[1]
  place = jnp.arange(size)
  known = (place >= state.begin[:, None]) & (place < state.length[:, None])
  before = _RECENT - 1 + _SLACK
  # No token, and not the absence of one either.
  padded = jnp.pad(jnp.where(known, state.ids, -2), ((0, 0), (before, _SLACK)),
                   constant_values=-2)
  near = jnp.zeros(state.ids.shape, jnp.int32)
  for back in range(1, _RECENT):
    begin = before - back - _SLACK
    about = padded[:, begin:begin + size + 2 * _SLACK] == _newest(context, back)
    near += jnp.stack([about[:, i:i + size] for i in range(2 * _SLACK + 1)]).any(0)
  return near
