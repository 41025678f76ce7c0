"""A drafter that is itself drafted for: a cascade of models."""

import dataclasses
from typing import Any

import flax.struct
import jax
from jax import lax
import jax.numpy as jnp

from specdec.core import drafting
from specdec.core import keys
from specdec.core import step
from specdec.core import verify
from specdec.core.contracts import Context
from specdec.core.contracts import Drafter
from specdec.core.contracts import Proposal
from specdec.core.contracts import Scorer
from specdec.drafters import align
from specdec.types import Source

Array = jax.Array
PyTree = Any


class CascadeParams(flax.struct.PyTreeNode):
  """Prepared weights of the middle model and parameters of its drafter."""

  scorer: PyTree
  drafter: PyTree = None


class CascadeState(flax.struct.PyTreeNode):
  """What a cascade keeps.

  Attributes:
    cache: the middle model's.
    drafter: its drafter's state.
    hidden: [B, G + 1, D], the hidden states that scored the positions of a draft, between
      `propose` and `commit`; None elsewhere.
  """

  cache: PyTree
  drafter: PyTree
  hidden: Array | None = None


class _Carry(flax.struct.PyTreeNode):
  """A draft in the making.

  Attributes:
    state: between inner iterations.
    draft: so far.
    lacking: int32 [B], how many tokens a row still has a use for.
    hidden: [B, G + 1, D].
    first: bool scalar, nothing has been done yet.
  """

  state: CascadeState
  draft: Proposal
  lacking: Array
  hidden: Array
  first: Array


@dataclasses.dataclass(frozen=True)
class CascadeDrafter:
  """Drafts with a middle model that decodes speculatively, with a drafter of its own.

  What the middle model accepts and what it adds follow its own distribution q exactly, and
  that is all the target needs to know: what its drafter proposed is of no further
  consequence. A drafter may be a cascade again.

  Attributes:
    scorer: the middle model.
    drafter: the one that drafts for it.
    vocab_size: the target's logits width.
    gamma: tokens that `drafter` proposes in an iteration, at least 1.
    verifier: of the middle model; must be lossless. Coupled decoding brings its own.
  """

  scorer: Scorer
  drafter: Drafter
  vocab_size: int
  gamma: int = 2
  verifier: verify.TokenVerifier = dataclasses.field(default_factory=verify.TokenVerifier)

  # Where its drafter has nothing to say, the middle model goes on alone.
  abstains = False

  def __post_init__(self):
    if self.gamma < 1 or not self.verifier.lossless:
      raise ValueError(
          f"gamma is {self.gamma} and the verifier {self.verifier.name!r}; expected gamma 1 "
          "or more and a lossless verifier")

  def init(self, params: CascadeParams, source: Source, capacity: int,
           copies: int = 1) -> CascadeState:
    # A row may run an inner draft past what the target has room for.
    capacity += self.gamma
    return CascadeState(self.scorer.init(params.scorer, source, capacity, copies),
                        self.drafter.init(params.drafter, source, capacity, copies))

  def catch_up(self, params: CascadeParams, state: CascadeState, ids: Array, length: Array,
               width: int) -> CascadeState:
    return CascadeState(
        align.catch_up(self.scorer, params.scorer, state.cache, ids, length, width),
        self.drafter.catch_up(params.drafter, state.drafter, ids, length, width))

  def propose(self, params: CascadeParams, state: CascadeState, context: Context,
              gamma: int) -> tuple[Proposal, CascadeState]:
    """Runs iterations of speculative decoding inside of one until no row wants more.

    A position is dropped by the middle model's q alone, as in any drafter.
    """
    hidden = self._no_hidden(params, state, context, gamma)
    carry = _Carry(
        state=state.replace(hidden=None),
        draft=drafting.nothing(context, gamma, self.vocab_size),
        lacking=jnp.minimum(context.wanted, gamma), hidden=hidden, first=jnp.ones((), bool))
    # Once at least: rows that want nothing must stay level with what they have committed.
    carry = lax.while_loop(lambda carry: carry.first | (carry.lacking > 0).any(),
                           lambda carry: self._iterate(params, context, carry), carry)
    return carry.draft, carry.state.replace(hidden=carry.hidden)

  def has_draft(self, params: CascadeParams, state: CascadeState, context: Context) -> Array:
    return jnp.ones(context.length.shape, bool)

  def commit(self, params: CascadeParams, state: CascadeState, context: Context,
             num_accepted: Array, hidden: Array) -> CascadeState:
    # The target's hidden states are nothing to a drafter that lives on the middle model's.
    own = state.hidden
    if own is None:
      # It got ahead inside a cascade, and what scored these positions is gone.
      own = self._no_hidden(params, state, context, hidden.shape[1] - 1)
    return CascadeState(
        self.scorer.rollback(state.cache, context.length + num_accepted),
        self.drafter.commit(params.drafter, state.drafter, context, num_accepted, own))

  def insert(self, state: CascadeState, rows: Array, other: CascadeState) -> CascadeState:
    return CascadeState(self.scorer.insert(state.cache, rows, other.cache),
                        self.drafter.insert(state.drafter, rows, other.drafter))

  def _no_hidden(self, params: CascadeParams, state: CascadeState, context: Context,
                 gamma: int) -> Array:
    tokens = jnp.zeros((context.ids.shape[0], gamma + 1), jnp.int32)
    _, hidden, _ = jax.eval_shape(self.scorer.score, params.scorer, tokens, state.cache)
    return jnp.zeros(hidden.shape, hidden.dtype)

  def _inside(self, context: Context, draft: Proposal, lacking: Array) -> Context:
    """The middle model's drafter takes what is drafted for what is committed."""
    rows = jnp.arange(context.ids.shape[0])[:, None]
    slots = context.length[:, None] + jnp.arange(draft.tokens.shape[1])
    speculation = context.rules.speculation
    speculation = speculation.replace(confidence=jnp.zeros_like(speculation.confidence))
    return context.replace(
        ids=context.ids.at[rows, slots].set(draft.tokens, mode="drop"),
        length=context.length + draft.num_drafted,
        row_keys=self._keys(context),
        rules=context.rules.replace(speculation=speculation),
        # The middle model adds a token of its own.
        wanted=jnp.clip(lacking - 1, 0, self.gamma),
        coupled=self._verifier(context).coupled,
        lag=context.lag + 1)

  def _keys(self, context: Context) -> Array:
    # Noise by absolute position is the same at every level, or nothing would be coupled.
    return context.row_keys if context.coupled else keys.descend(context.row_keys, context.length)

  def _verifier(self, context: Context) -> verify.TokenVerifier:
    return verify.CoupledVerifier() if context.coupled else self.verifier

  def _score(self, params: CascadeParams, state: CascadeState, seen: Context, proposal: Proposal,
             lag: int) -> tuple[Array, Array, PyTree]:
    """Logits and hidden states of the positions of an inner draft and after it, and the cache.

    Args:
      params: of the cascade.
      state: of the cascade.
      seen: the inner context.
      proposal: the inner draft.
      lag: how many of the last tokens the cache may lack; all are fed, so that one shape
        serves all rows and all iterations.
    """
    begin = jnp.maximum(seen.length - lag, 0)
    rows = jnp.arange(begin.shape[0])[:, None]
    slots = seen.length[:, None] + jnp.arange(self.gamma)
    ids = seen.ids.at[rows, slots].set(proposal.tokens, mode="drop")
    logits, hidden, cache = self.scorer.score(
        params.scorer, align.window(ids, begin, lag + self.gamma),
        self.scorer.rollback(state.cache, begin))
    place = (seen.length - 1 - begin)[:, None] + jnp.arange(self.gamma + 1)
    at_place = lambda x: jnp.take_along_axis(x, place[..., None], 1)
    return at_place(align.align(logits, self.vocab_size)), at_place(hidden), cache

  def _iterate(self, params: CascadeParams, context: Context, carry: _Carry) -> _Carry:
    """One inner iteration: as `core.step.step`, but for what it commits to."""
    state, draft = carry.state, carry.draft
    assert draft.probs is not None  # `drafting.nothing` has some.
    seen = self._inside(context, draft, carry.lacking)
    proposal, inner = self.drafter.propose(params.drafter, state.drafter, seen, self.gamma)
    proposal = step.cut(proposal, seen)
    logits, hidden, cache = self._score(params, state, seen, proposal, context.lag)
    middle = step.look(logits, seen, proposal.tokens)
    verifier = self._verifier(context)
    verdict = verifier(
        verifier.noise(seen.row_keys, seen.length, self.gamma, self.vocab_size,
                       needed=~middle.greedy.all()), proposal, middle)

    place = jnp.arange(self.gamma + 1)
    said = verdict.num_accepted[:, None]
    block = jnp.where(place == said, verdict.next_token[:, None],
                      jnp.pad(proposal.tokens, ((0, 0), (0, 1))))
    sure = jax.vmap(drafting.is_confident, (None, 1, 1), 1)(context, middle.logits, middle.probs)
    unsure = step.first(~sure, self.gamma + 1)
    ends = step.is_eos(block, context.rules.limits) & (place <= said)
    ended = step.first(ends, self.gamma + 1)
    whole = verdict.num_accepted + 1
    count = jnp.minimum(jnp.minimum(whole, carry.lacking), jnp.minimum(unsure, ended + 1))
    going_on = (whole <= unsure) & (whole <= ended)
    # What a row does not draft, or has no room for, is written nowhere.
    rows, slots = jnp.arange(said.shape[0])[:, None], draft.num_drafted[:, None] + place
    kept = jnp.where(place < count[:, None], slots, draft.tokens.shape[1])
    draft = Proposal(tokens=draft.tokens.at[rows, kept].set(block, mode="drop"),
                     probs=draft.probs.at[rows, kept].set(middle.probs, mode="drop"),
                     num_drafted=draft.num_drafted + count)
    inner = self.drafter.commit(
        params.drafter, inner, seen, jnp.minimum(verdict.num_accepted, count), hidden)
    return _Carry(
        state=CascadeState(self.scorer.rollback(cache, seen.length + count - 1), inner),
        draft=draft,
        lacking=jnp.where(going_on, carry.lacking - count, 0),
        # A row that is done learns nothing more because its neighbours go on.
        hidden=_keep(carry.hidden, hidden, slots[:, 0], verdict.num_accepted,
                     jnp.where((carry.lacking > 0) | carry.first, count, -1)),
        first=jnp.zeros((), bool))


def _keep(kept: Array, hidden: Array, at: Array, num_accepted: Array, count: Array) -> Array:
  """Adds hidden states [B, N, D] to those of the draft, from position `at` [B] on.

  After the last drafted token comes a position that nothing may have scored yet: it gets
  the newest there is, until the next iteration knows.
  """
  place = jnp.arange(hidden.shape[1] + 1)
  scored = jnp.minimum(place, num_accepted[:, None])
  slots = jnp.where(place <= count[:, None], at[:, None] + place, kept.shape[1])
  return kept.at[jnp.arange(at.shape[0])[:, None], slots].set(
      jnp.take_along_axis(hidden, scored[..., None], 1), mode="drop")
