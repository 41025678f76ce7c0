"""Every drafter passes the contract battery, and a broken one does not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core.contracts import Proposal
from specdec.drafters.transformer import TransformerDrafter
from specdec.testing import contract
from specdec.testing import markov
from specdec.testing import tiny
from specdec.types import Source

V = 8


def toy(drafter_type=TransformerDrafter, width: int = V) -> contract.Subject:
  weights = jax.tree.map(jnp.asarray, markov.random_weights(3, width, kinds=2))
  return contract.Subject(
      drafter_type(markov.MarkovScorer(width), V), weights, V,
      lambda batch: Source(jnp.ones((batch, 1), jnp.int32), jnp.ones(batch, jnp.int32)))


def t5() -> contract.Subject:
  model = tiny.pair().drafter.model
  ids = np.array([5, 9, 12, 1], np.int32)
  return contract.Subject(
      TransformerDrafter(model.scorer, model.config.vocab_size), model.weights,
      model.config.vocab_size,
      lambda batch: Source(np.tile(ids, (batch, 1)), np.full((batch,), 4, np.int32)))


@pytest.mark.parametrize("subject", [toy, lambda: toy(width=V - 2), lambda: toy(width=V + 3), t5],
                         ids=["markov", "narrower", "wider", "t5"])
def test_battery(subject):
  contract.check_all(subject())


@dataclasses.dataclass(frozen=True)
class _LaggingDrafter(TransformerDrafter):
  """Feeds only the newest token: after full acceptance its cache has a hole."""

  def propose(self, params, state, context, gamma):
    newest = context.length - 1
    hole = state.replace(buffer=state.buffer.at[
        jnp.arange(newest.shape[0]), jnp.maximum(newest - 1, 0)].set(V - 1))
    proposal, new = super().propose(params, state, context, gamma)
    # What the super call repaired is broken again for the reported distribution.
    logits, _, _ = self.scorer.score(
        params, jnp.take_along_axis(context.ids, newest[:, None], 1),
        self.scorer.rollback(hole, newest))
    q = jax.nn.softmax(logits)
    lagging = jnp.where((newest > 0)[:, None, None], q, proposal.probs[:, :1])
    return proposal.replace(
        probs=jnp.concatenate([lagging, proposal.probs[:, 1:]], 1)), new


@dataclasses.dataclass(frozen=True)
class _RememberingDrafter(TransformerDrafter):
  """Forgets to take back what was rejected."""

  def propose(self, params, state, context, gamma):
    fed = state.length
    proposal, new = super().propose(params, state, context, gamma)
    stale = (fed > context.length)[:, None]
    return Proposal(jnp.where(stale, 0, proposal.tokens), proposal.probs,
                    proposal.num_drafted), new

  def commit(self, params, state, context, num_accepted, hidden):
    return state


@dataclasses.dataclass(frozen=True)
class _KeepsItsSource(TransformerDrafter):
  """Inserts what was fed, and goes on with the input of the row before."""

  def insert(self, state, rows, other):
    return super().insert(state, rows, other).replace(kind=state.kind)


@dataclasses.dataclass(frozen=True)
class _WrapsAround(TransformerDrafter):
  """Takes -1 for the last row."""

  def insert(self, state, rows, other):
    return super().insert(state, rows % state.length.shape[0], other)


@pytest.mark.parametrize("kind", [_KeepsItsSource, _WrapsAround])
def test_an_insert_that_is_none_fails(kind):
  contract.check_an_inserted_row_is_as_in_its_own_batch(toy(), 3)
  with pytest.raises(AssertionError):
    contract.check_an_inserted_row_is_as_in_its_own_batch(toy(kind), 3)


def test_a_q_that_was_not_drawn_from_fails():
  with pytest.raises(AssertionError):
    contract.check_tokens_follow_q(toy(_LaggingDrafter))


def test_a_state_that_keeps_rejected_tokens_fails():
  with pytest.raises(AssertionError):
    contract.check_state_depends_on_committed_tokens_alone(toy(_RememberingDrafter), 3)
