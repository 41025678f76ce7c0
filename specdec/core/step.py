"""One iteration of speculative decoding (Algorithm 1), for a ragged batch."""

import jax
import jax.numpy as jnp

from specdec.core import controls
from specdec.core import probs
from specdec.core import verify
from specdec.core.contracts import Context
from specdec.core.contracts import Proposal
from specdec.core.state import DecodeState
from specdec.core.state import Method
from specdec.core.state import Stats
from specdec.core.state import Trace
from specdec.core.state import Weights
from specdec.types import Limits
from specdec.types import Rules
from specdec.types import Status

Array = jax.Array


def step(method: Method, weights: Weights, state: DecodeState, rules: Rules) -> DecodeState:
  """Drafts, scores gamma + 1 positions in one call, verifies, rolls back.

  Every running row advances by 1 to gamma + 1 tokens, unless its limit or
  unsound logits end it where it stands; the others stay as they are. With gamma 0
  this is plain decoding.

  Args:
    method: static settings.
    weights: of target and drafter.
    state: of the batch.
    rules: shared by p and q.

  Returns:
    The next state.
  """
  gamma, running, limits = method.gamma, state.running, rules.limits
  drafter = method.drafter
  context = make_context(method, state, rules)
  generated = state.length - 1
  remaining = limits.max_decode_len - generated

  if gamma:
    assert drafter is not None  # Or there would be no such method.
    proposal, draft_state = drafter.propose(
        weights.drafter, state.draft_state, context, gamma)
    # A draft ends with its EOS and leaves room for the token after it, so no row
    # ever overruns. Both bounds depend on earlier tokens only: still exact.
    proposal = cut(proposal, context)
  else:
    proposal = Proposal(jnp.zeros((state.ids.shape[0], 0), jnp.int32), None,
                        jnp.zeros_like(state.length))
    draft_state = state.draft_state
  draft, num_drafted = proposal.tokens, proposal.num_drafted

  last = jnp.take_along_axis(state.ids, generated[:, None], 1)
  logits, hidden, cache = method.scorer.score(
      weights.target, jnp.concatenate([last, draft], 1), state.target_cache)
  target = look(logits, context, draft)
  adjusted, target_probs = target.logits, target.probs
  verdict = method.verifier(
      method.verifier.noise(state.row_keys, state.length, gamma, logits.shape[-1],
                            needed=~target.greedy.all()), proposal, target)

  # The block: accepted tokens, then the verifier's own; cut at EOS and at the
  # first position whose logits cannot be trusted.
  place = jnp.arange(gamma + 1)
  accepted = verdict.num_accepted
  block = jnp.where(place == accepted[:, None], verdict.next_token[:, None],
                    jnp.pad(draft, ((0, 0), (0, 1))))
  normaliser = jax.nn.logsumexp(logits, axis=-1)
  peak = adjusted.max(-1)
  forbidden = jnp.isfinite(normaliser) & (peak == -jnp.inf)
  unsound = first(~jnp.isfinite(normaliser) | ~jnp.isfinite(peak), gamma + 1)
  ends = is_eos(block, limits) & (place <= accepted[:, None])
  wanted = jnp.minimum(accepted, first(ends, gamma + 1)) + 1
  # The draft left room for the verifier's token, but a limit may leave room for none:
  # no tokens asked for, or fewer than the row had when it was run before.
  wanted = jnp.minimum(wanted, jnp.maximum(remaining, 0))
  count = jnp.where(running, jnp.minimum(wanted, unsound), 0)

  committed = place < count[:, None]
  at_block = lambda x: jnp.take_along_axis(x, block[..., None], -1)[..., 0]
  sum_committed = lambda x: jnp.where(committed, x, 0.0).sum(1)
  slots = jnp.where(committed, state.length[:, None] + place, state.ids.shape[1])
  ids = state.ids.at[jnp.arange(slots.shape[0])[:, None], slots].set(block, mode="drop")
  length = state.length + count

  status = jnp.where(length - 1 >= limits.max_decode_len, Status.LENGTH, Status.RUNNING)
  status = jnp.where((ends & committed).any(1), Status.EOS, status)
  stuck = jnp.take_along_axis(forbidden, jnp.minimum(unsound, gamma)[:, None], 1)[:, 0]
  status = jnp.where(unsound < wanted, jnp.where(stuck, Status.FORBIDDEN, Status.NAN), status)

  accepted = jnp.minimum(accepted, count)
  tested = jnp.minimum(jnp.minimum(accepted + 1, num_drafted), unsound)
  stats, trace = state.stats, state.trace
  if method.trace:
    assert trace is not None
    chances = method.verifier.chances(proposal, target)
    trace = _record(trace, stats.target_calls, running, proposal, target_probs, chances, block,
                    verdict.num_accepted, accepted, count)
  if gamma or method.watch:
    assert drafter is not None
    draft_state = drafter.commit(weights.drafter, draft_state, context, accepted, hidden)
  return state.replace(
      ids=ids,
      length=length,
      status=jnp.where(running, status, state.status).astype(jnp.int32),
      log_prob=state.log_prob + sum_committed(at_block(logits) - normaliser),
      adjusted_log_prob=state.adjusted_log_prob + sum_committed(jnp.log(at_block(target_probs))),
      target_cache=method.scorer.rollback(cache, length - 1),
      draft_state=draft_state,
      stats=Stats(
          target_calls=stats.target_calls + running,
          drafted=stats.drafted + num_drafted,
          tested=stats.tested + tested,
          accepted=stats.accepted + accepted),
      iterations=state.iterations + 1,
      drafting=(num_drafted > 0).any(),
      trace=trace)


def make_context(method: Method, state: DecodeState, rules: Rules) -> Context:
  """What a drafter gets to see of a state."""
  remaining = rules.limits.max_decode_len - (state.length - 1)
  wanted = jnp.minimum(jnp.minimum(rules.speculation.gamma, method.gamma), remaining - 1)
  return Context(ids=state.ids, length=state.length, row_keys=state.row_keys, rules=rules,
                 wanted=jnp.where(state.running, jnp.maximum(wanted, 0), 0),
                 coupled=method.verifier.coupled)


def cut(proposal: Proposal, context: Context) -> Proposal:
  """A draft without what no row has a use for: beyond what it wants, and behind an EOS."""
  ends = first(is_eos(proposal.tokens, context.rules.limits), proposal.tokens.shape[1]) + 1
  return proposal.replace(num_drafted=jnp.minimum(
      jnp.minimum(proposal.num_drafted, context.wanted), ends))


def look(logits: Array, context: Context, drafted: Array) -> verify.Target:
  """A scorer's logits [B, G + 1, V] after the committed and drafted tokens, for a verifier."""
  adjusted = controls.adjust(logits, context, drafted)
  rules = context.rules
  return verify.Target(probs.distribution(adjusted, rules.sampling), adjusted,
                       probs.is_greedy(rules.sampling), rules.speculation.lenience)


def _record(trace: Trace, index: Array, running: Array, proposal: Proposal,
            target_probs: Array, chances: Array, block: Array, own: Array, num_accepted: Array,
            num_committed: Array) -> Trace:
  """Writes an iteration at `index` [B] of every running row; place `own` [B] of `block` is the
  verifier's token."""
  draft = proposal.tokens
  at_draft = lambda x: jnp.take_along_axis(x, draft[..., None], -1)[..., 0]
  q = jnp.ones(draft.shape, jnp.float32) if proposal.probs is None else at_draft(proposal.probs)
  # The trace is as wide as the largest gamma of the run.
  widen = lambda x: jnp.pad(x, ((0, 0), (0, trace.drafted.shape[2] - x.shape[1])))
  of_block = jnp.take_along_axis(target_probs, block[..., None], -1)[..., 0]
  new = Trace(widen(draft), proposal.num_drafted, num_accepted, num_committed,
              widen(at_draft(target_probs[:, :draft.shape[1]])), widen(q), widen(chances),
              jnp.take_along_axis(of_block, own[:, None], 1)[:, 0])
  rows = jnp.arange(index.shape[0])
  index = jnp.where(running, index, trace.num_drafted.shape[1])
  return jax.tree.map(lambda old, x: old.at[rows, index].set(x, mode="drop"), trace, new)


def is_eos(tokens: Array, limits: Limits) -> Array:
  """Which tokens end a row: bool of their shape."""
  return (tokens[..., None] == limits.eos_ids).any(-1)


def first(flags: Array, default: int) -> Array:
  """Index of the first True of each row [B, N] -> int32 [B], or `default`."""
  return jnp.where(flags.any(-1), jnp.argmax(flags, -1), default).astype(jnp.int32)
