"""The battery that every drafter has to pass, whatever kind it is.

It holds a drafter to `core.contracts.Drafter` from outside: what `propose` says of
its distributions must be what it drew from, and what it keeps between iterations
must be a function of the committed tokens alone.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec.core import keys
from specdec.core import probs
from specdec.core import rules as rules_lib
from specdec.core.contracts import Context
from specdec.core.contracts import Drafter
from specdec.core.contracts import Proposal
from specdec.testing import goodness
from specdec.types import Rules
from specdec.types import Sampling
from specdec.types import Source

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Subject:
  """A drafter under test.

  Attributes:
    drafter: the plug-in.
    params: its parameters.
    vocab_size: the target's logits width.
    source: `batch -> Source`, the same for every row of the batch.
    capacity: slots a row may use; at least 16.
    ties: its probabilities tie, so that top-k keeps more than k.
    hidden: the target's hidden state [D] after a row's tokens, for a drafter that lives on
      it; None for one that does not.
  """

  drafter: Drafter
  params: PyTree
  vocab_size: int
  source: Callable[[int], Source]
  capacity: int = 32
  ties: bool = False
  hidden: Callable[[np.ndarray], np.ndarray] | None = None


_init = jax.jit(lambda drafter, params, source, capacity: drafter.init(params, source, capacity),
                static_argnums=(0, 3))
_propose = jax.jit(
    lambda drafter, params, state, context, gamma: drafter.propose(params, state, context, gamma),
    static_argnums=(0, 4))
_commit = jax.jit(
    lambda drafter, params, state, context, count, hidden: drafter.commit(
        params, state, context, count, hidden), static_argnums=0)
_insert = jax.jit(lambda drafter, state, rows, other: drafter.insert(state, rows, other),
                  static_argnums=0)
_level = jax.jit(
    lambda drafter, params, state, ids, length, width: drafter.catch_up(
        params, state, ids, length, width), static_argnums=(0, 5))


def context(subject: Subject, rows: list[list[int]], settings: Sampling, seed: int = 0,
            example_ids=None, gamma: int = 64, coupled: bool = False, **speculation) -> Context:
  """A context whose rows have committed the given ids, the start id first."""
  ids = np.zeros((len(rows), subject.capacity), np.int32)
  for i, row in enumerate(rows):
    ids[i, :len(row)] = row
  rules = Rules(settings, rules_lib.limits(len(rows), subject.capacity, (-1,)),
                rules_lib.controls(len(rows)), rules_lib.speculation(len(rows), **speculation))
  examples = np.arange(len(rows)) if example_ids is None else np.asarray(example_ids)
  return Context(jnp.asarray(ids), jnp.asarray([len(r) for r in rows], jnp.int32),
                 keys.row_keys(seed, examples), rules, jnp.full(len(rows), gamma), coupled)


def propose(subject: Subject, rows, settings, gamma: int, state=None, **options):
  """Drafts after committed rows; a fresh state has to catch up by itself."""
  at = context(subject, rows, settings, gamma=gamma, **options)
  if state is None:
    state = _init(subject.drafter, subject.params, subject.source(len(rows)), subject.capacity)
    state = _catch_up(subject, state, at, gamma)
  return at, *_propose(subject.drafter, subject.params, state, at, gamma)


def _catch_up(subject: Subject, state: PyTree, at: Context, gamma: int) -> PyTree:
  """Leads a fresh state to the context the way the loop would: token by token.

  With drafts of `gamma` tokens, of which none stands: no size is compiled for this alone.
  """
  for length in range(1, int(at.length.max())):
    # A row that is there already stays where it is, as one that has ended would.
    before = at.replace(length=jnp.minimum(length, jnp.maximum(at.length - 1, 1)))
    proposal, state = _propose(subject.drafter, subject.params, state, before, gamma)
    state = commit(subject, state, before, proposal, jnp.zeros_like(before.length))
  return state


def commit(subject: Subject, state: PyTree, at: Context, proposal: Proposal,
           num_accepted: Any) -> PyTree:
  """Tells a drafter what stands, with the hidden states that the target would have."""
  tokens = np.asarray(proposal.tokens)
  hidden = np.zeros((tokens.shape[0], tokens.shape[1] + 1, 1), np.float32)
  if subject.hidden is not None:
    rows = [np.asarray(at.ids)[i, :n].tolist() for i, n in enumerate(np.asarray(at.length))]
    hidden = np.stack([[subject.hidden(np.array(row + tokens[i, :j].tolist()))
                        for j in range(tokens.shape[1] + 1)] for i, row in enumerate(rows)])
  return _commit(subject.drafter, subject.params, state, at, num_accepted, hidden)


def check_shapes_and_laws(subject: Subject, gamma: int) -> None:
  """Shapes, dtypes, and every drafted token possible under its own q."""
  rows = [[0], [0, 2, 3], [0, 3, 2, 2, 3], [0, 2]]
  settings = rules_lib.sampling(4, [1.0, 0.0, 0.7, 1.0], [0, 0, 2, 0], 0.0)
  _, proposal, _ = propose(subject, rows, settings, gamma)
  assert proposal.tokens.shape == (4, gamma) and proposal.tokens.dtype == jnp.int32
  assert proposal.num_drafted.shape == (4,) and proposal.num_drafted.dtype == jnp.int32
  drafted = np.asarray(proposal.num_drafted)
  tokens = np.asarray(proposal.tokens)
  at, _, state = propose(subject, rows, settings, gamma)
  if subject.drafter.abstains:
    has = subject.drafter.has_draft(subject.params, state, at)
    np.testing.assert_array_equal(np.asarray(has), drafted > 0)
  else:
    assert (drafted > 0).all()
  assert ((drafted >= 0) & (drafted <= gamma)).all()
  assert ((tokens >= 0) & (tokens < subject.vocab_size)).all()
  if proposal.probs is None:
    return
  q = np.asarray(proposal.probs)
  assert q.shape == (4, gamma, subject.vocab_size) and q.dtype == np.float32
  assert (q >= 0).all()
  np.testing.assert_allclose(q.sum(-1), 1.0, atol=1e-5)
  for row in range(4):
    for i in range(drafted[row]):
      assert q[row, i, tokens[row, i]] > 0
  assert set(np.unique(q[1, :drafted[1]])) <= {0.0, 1.0}, "greedy: q is one-hot"
  assert subject.ties or (np.count_nonzero(q[2, :drafted[2]], axis=-1) <= 2).all(), "top_k"


def check_tokens_follow_q(subject: Subject, rows: int = 4000) -> None:
  """The first token is drawn from the q that is reported for it."""
  settings = rules_lib.sampling(rows, 1.0)
  _, proposal, _ = propose(subject, [[0, 2, 3]] * rows, settings, 1)
  drafted = np.asarray(proposal.num_drafted)
  if proposal.probs is None or not drafted.any():
    return
  tokens = np.asarray(proposal.tokens)[:, 0]
  law = np.asarray(proposal.probs, np.float64)[0, 0]
  counts = {i: int(n) for i, n in enumerate(np.bincount(tokens, minlength=len(law)))}
  fit = goodness.chi_square(counts, dict(enumerate(law / law.sum())))
  assert goodness.p_value(fit) > 1e-4


def check_state_depends_on_committed_tokens_alone(subject: Subject, gamma: int) -> None:
  """After any number of accepted tokens the next draft is that of a fresh state."""
  settings = rules_lib.sampling(gamma + 1, 1.0)
  rows = [[0, 2, 3]] * (gamma + 1)
  at, proposal, state = propose(subject, rows, settings, gamma)
  accepted = jnp.arange(gamma + 1, dtype=jnp.int32)
  accepted = jnp.minimum(accepted, proposal.num_drafted)
  state = commit(subject, state, at, proposal, accepted)
  # A correction that the draft did not hold follows the accepted tokens.
  tokens = np.asarray(proposal.tokens)
  after = [row + tokens[i, :n].tolist() + [2 if n == gamma or tokens[i, n] != 2 else 3]
           for i, (row, n) in enumerate(zip(rows, np.asarray(accepted)))]
  _, going_on, _ = propose(subject, after, settings, gamma, state=state, seed=1)
  _, fresh, _ = propose(subject, after, settings, gamma, seed=1)
  np.testing.assert_array_equal(going_on.num_drafted, fresh.num_drafted)
  np.testing.assert_array_equal(going_on.tokens, fresh.tokens)
  if fresh.probs is not None:
    np.testing.assert_allclose(going_on.probs, fresh.probs, atol=1e-5)


def check_rows_are_independent(subject: Subject, gamma: int) -> None:
  """A row's draft is the same alone and among others."""
  rows = [[0, 2, 3], [0], [0, 3, 3, 2], [0, 3]]
  _, together, _ = propose(subject, rows, rules_lib.sampling(4, 1.0), gamma)
  for i, row in enumerate(rows):
    _, alone, _ = propose(subject, [row], rules_lib.sampling(1, 1.0), gamma, example_ids=[i])
    count = int(alone.num_drafted[0])
    assert count == int(together.num_drafted[i])
    np.testing.assert_array_equal(alone.tokens[0, :count], together.tokens[i, :count])


def check_one_that_was_left_out_comes_back_level(subject: Subject, gamma: int) -> None:
  """One call brings a fresh state to where it would be after drafting all along."""
  rows = [[0, 2, 3, 3, 2], [0], [0, 3, 2], [0, 2]]
  settings = rules_lib.sampling(4, 1.0)
  at = context(subject, rows, settings, gamma=gamma)
  state = _init(subject.drafter, subject.params, subject.source(4), subject.capacity)
  state = _level(subject.drafter, subject.params, state, at.ids, at.length, 8)
  back, _ = _propose(subject.drafter, subject.params, state, at, gamma)
  if subject.hidden is not None:
    assert not np.asarray(back.num_drafted).any(), "it has seen no hidden state yet"
    return
  _, usual, _ = propose(subject, rows, settings, gamma)
  np.testing.assert_array_equal(back.num_drafted, usual.num_drafted)
  np.testing.assert_array_equal(back.tokens, usual.tokens)


def check_an_inserted_row_is_as_in_its_own_batch(subject: Subject, gamma: int) -> None:
  """Rows of another input and of less capacity, in the place of others; those stay."""
  settings = rules_lib.sampling(4, [1.0, 0.7, 0.0, 1.0])
  rows = [[0, 2, 3, 3, 2], [0, 3], [0, 2, 2], [0, 3, 2]]
  _, kept, state = propose(subject, rows, settings, gamma)
  # Nobody stands at these; what a draft has left behind its row must go all the same.
  others = [[0, 2, 2, 3], [0], [0, 2, 3], [0, 2]]
  source = subject.source(4)
  source = source.replace(ids=jnp.maximum(source.ids - 1, 0))
  small = dataclasses.replace(subject, capacity=subject.capacity // 2,
                              source=lambda batch: source)
  _, fresh, other = propose(small, others, settings, gamma)
  places = jnp.array([-1, 2, 4, 0], jnp.int32)
  state = _insert(subject.drafter, state, places, other)
  mixed = [others[3], rows[1], others[1], rows[3]]
  examples, chosen = [3, 1, 1, 3], np.array([3, 1, 1, 3])
  settings = jax.tree.map(lambda x: x[chosen], settings)
  _, found, _ = propose(subject, mixed, settings, gamma, state=state, example_ids=examples)
  for row, (draft, at) in enumerate([(fresh, 3), (kept, 1), (fresh, 1), (kept, 3)]):
    count = int(draft.num_drafted[at])
    assert count == int(found.num_drafted[row]), row
    np.testing.assert_array_equal(found.tokens[row, :count], draft.tokens[at, :count])
    if draft.probs is not None:
      np.testing.assert_allclose(found.probs[row, :count], draft.probs[at, :count], atol=1e-5)


def check_confidence_looks_at_distributions(subject: Subject, gamma: int) -> None:
  """A threshold that nothing reaches stops the draft, whatever the tokens; 0 stops none."""
  rows = [[0, 2, 3], [0, 3, 3, 2], [0, 2], [0]]
  settings = rules_lib.sampling(4, [1.0, 0.0, 1.0, 1.0])
  _, usual, _ = propose(subject, rows, settings, gamma)
  if usual.probs is None:
    return
  _, strict, _ = propose(subject, rows, settings, gamma, confidence=[2.0, 2.0, 0.0, 0.0])
  np.testing.assert_array_equal(strict.num_drafted, [0, 0, *usual.num_drafted[2:].tolist()])
  peaks = np.asarray(usual.probs)[0].max(-1)[:int(usual.num_drafted[0])]
  threshold = float(np.median(peaks))
  _, some, _ = propose(subject, rows, settings, gamma, confidence=[threshold, 0.0, 0.0, 0.0])
  expected = np.cumprod(peaks >= threshold).sum()
  assert int(some.num_drafted[0]) == expected


def check_coupled_draws_go_by_position(subject: Subject, gamma: int) -> None:
  """A position's token is decided by its noise and by q, whatever iteration drafts it."""
  rows = [[0, 2, 3], [0, 3, 3, 2], [0, 2], [0]]
  at, proposal, _ = propose(subject, rows, rules_lib.sampling(4, 1.0), gamma, coupled=True)
  if proposal.probs is None:
    return
  position = at.length[:, None] - 1 + jnp.arange(gamma)
  noise = keys.by_position(at.row_keys, position, jnp.arange(subject.vocab_size))
  drawn = np.asarray(probs.race(noise, proposal.probs))
  for row, count in enumerate(np.asarray(proposal.num_drafted)):
    np.testing.assert_array_equal(proposal.tokens[row, :count], drawn[row, :count])


def check_all(subject: Subject, gamma: int = 3) -> None:
  """Runs the whole battery."""
  check_shapes_and_laws(subject, gamma)
  check_tokens_follow_q(subject)
  check_state_depends_on_committed_tokens_alone(subject, gamma)
  check_rows_are_independent(subject, gamma)
  check_one_that_was_left_out_comes_back_level(subject, gamma)
  check_an_inserted_row_is_as_in_its_own_batch(subject, gamma)
  check_confidence_looks_at_distributions(subject, gamma)
  check_coupled_draws_go_by_position(subject, gamma)
