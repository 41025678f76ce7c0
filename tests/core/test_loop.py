"""The loop: greedy equality, independent rows, exits, counts, caches, compilation."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import keys
from specdec.core import loop
from specdec.core.rules import sampling
from specdec.core.state import Exits
from specdec.core.state import Method
from specdec.core.verify import TokenVerifier
from specdec.core.verify import Verdict
from specdec.testing import markov
from specdec.types import Source
from specdec.types import Status
from tests.core import toy

BATCH, GAMMA, MAX_LEN, V = toy.BATCH, toy.GAMMA, toy.MAX_LEN, toy.V
TARGET, PAIR, RAGGED, EOS, MIXED = toy.TARGET, toy.PAIR, toy.RAGGED, toy.EOS, toy.MIXED

POOR = {
    "near": toy.disturbed(TARGET, 1),
    "unrelated": markov.random_weights(9, V, kinds=4),
    "opposite": {name: -x for name, x in TARGET.items()},
    "nan": {name: np.full_like(x, np.nan) for name, x in TARGET.items()},
    "inf": {name: np.full_like(x, np.inf) for name, x in TARGET.items()},
}


def _raw_log_prob(target, kind: int, sequence) -> float:
  logits = markov.table(target, kind).astype(np.float64)
  logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
  history = (0, 0, *sequence)
  return sum(logits[triple] for triple in zip(history, history[1:], history[2:]))


@pytest.mark.parametrize("drafter", POOR)
def test_greedy_equals_plain_greedy(drafter):
  plain = toy.decode(toy.PLAIN, PAIR, max_len=RAGGED, eos=EOS)
  found = toy.decode(toy.SPECULATIVE, toy.weights(TARGET, POOR[drafter]), max_len=RAGGED, eos=EOS)
  np.testing.assert_array_equal(found.ids, plain.ids)
  np.testing.assert_array_equal(found.length, plain.length)
  np.testing.assert_array_equal(found.status, plain.status)
  np.testing.assert_allclose(found.log_prob, plain.log_prob, rtol=1e-5)
  assert set(plain.status.tolist()) == {Status.EOS, Status.LENGTH}
  assert int(found.stats.tested.sum()) > 0


@pytest.mark.parametrize("method", [toy.PLAIN, toy.SPECULATIVE])
def test_log_prob_is_the_targets_own_before_temperature_and_filters(method):
  state = toy.decode(method, PAIR, settings=MIXED, max_len=RAGGED, eos=EOS)
  expected = [_raw_log_prob(TARGET, kind, sequence)
              for kind, sequence in zip(toy.KINDS, toy.sequences(state))]
  np.testing.assert_allclose(state.log_prob, expected, rtol=1e-4)


def _in_pieces(**exits):
  """States between calls of the loop, the last one ended. Copied, as `run` takes its state."""
  state = toy.start(toy.SPECULATIVE, PAIR, toy.KINDS, max_len=MAX_LEN)
  states = [jax.tree.map(jnp.copy, state)]
  while bool(state.running.any()):
    assert len(states) <= MAX_LEN, "the loop comes back without having gone on"
    state = loop.run(toy.SPECULATIVE, PAIR, state, toy.rules(MIXED, BATCH, RAGGED, EOS),
                     toy.exits(**exits))
    states.append(jax.tree.map(jnp.copy, state))
  return states


@pytest.mark.parametrize("exits", [{"max_iterations": 1}, {"max_iterations": 3},
                                   {"min_ended": 1}, {"min_ended": 3},
                                   {"max_iterations": 2, "min_ended": 2}])
def test_pieces_make_the_same_whole(exits):
  whole = toy.decode(toy.SPECULATIVE, PAIR, settings=MIXED, max_len=RAGGED, eos=EOS)
  states = _in_pieces(**exits)
  assert len(states) > 2
  toy.assert_same(states[-1], whole)
  for before, after in itertools.pairwise(states[:-1]):
    iterations = int(after.iterations - before.iterations)
    ended = int((~after.running).sum() - (~before.running).sum())
    # It left for one of the reasons given, and no later than that.
    assert (iterations == exits.get("max_iterations")
            or ended >= exits.get("min_ended", BATCH + 1))
    assert iterations <= exits.get("max_iterations", iterations)


def test_a_state_that_has_ended_comes_back_unchanged():
  state = toy.decode(toy.SPECULATIVE, PAIR, settings=MIXED, max_len=RAGGED, eos=EOS)
  kept = jax.tree.map(jnp.copy, state)
  toy.assert_same(loop.run(toy.SPECULATIVE, PAIR, state, toy.rules(MIXED, BATCH, RAGGED, EOS),
                           toy.exits()), kept)


def test_counts_of_every_iteration():
  states = _in_pieces(max_iterations=1)
  eos_as_draft = 0
  for before, after in itertools.pairwise(states):
    was_running = np.asarray(before.running)
    stats = jax.tree.map(lambda x, y: np.asarray(y - x), before.stats, after.stats)
    grown = np.asarray(after.length - before.length)
    remaining = RAGGED - np.asarray(before.length - 1)
    np.testing.assert_array_equal(stats.target_calls, was_running)
    assert (stats.accepted <= stats.tested).all() and (stats.tested <= stats.drafted).all()
    assert (stats.drafted <= np.clip(remaining - 1, 0, GAMMA) * was_running).all()
    # A position is tested until the first rejection, which is one more at most.
    np.testing.assert_array_equal(stats.tested, np.minimum(stats.accepted + 1, stats.drafted))
    # The verifier's own token follows, unless the last accepted one is the EOS.
    eos_accepted = (np.asarray(after.status) == Status.EOS) & was_running & (
        grown == stats.accepted)
    np.testing.assert_array_equal(grown, stats.accepted + was_running - eos_accepted)
    eos_as_draft += eos_accepted.sum()
    for values in (grown, stats.drafted, np.asarray(after.log_prob - before.log_prob)):
      assert not values[~was_running].any()
  end = states[-1]
  assert 0 < eos_as_draft < (np.asarray(end.status) == Status.EOS).sum()
  by_length = np.asarray(end.status) == Status.LENGTH
  assert 0 < by_length.sum() < BATCH
  np.testing.assert_array_equal(
      np.asarray(end.length)[by_length],
      np.asarray(1 + end.stats.target_calls + end.stats.accepted)[by_length])
  assert int(end.iterations) == int(end.stats.target_calls.max())


@dataclasses.dataclass(frozen=True)
class Scripted(TokenVerifier):
  """Accepts as many tokens as it is told, and goes on with one that was not drafted."""

  counts: tuple[int, ...] = ()

  def __call__(self, noise, proposal, target):
    count = jnp.minimum(jnp.asarray(self.counts, jnp.int32), proposal.num_drafted)
    drafted = jnp.take_along_axis(jnp.pad(proposal.tokens, ((0, 0), (0, 1))), count[:, None], 1)
    return Verdict(count, (drafted[:, 0] + 1) % target.probs.shape[-1])


def test_caches_hold_the_committed_tokens_after_any_acceptance():
  """0, 1, gamma, 0, gamma tokens accepted in row 0, other scripts in the others."""
  rows = [(0, 1, GAMMA), (1, 2, 0), (GAMMA, GAMMA, GAMMA), (0, 0, 0), (2, GAMMA, 1),
          (GAMMA, 0, 2), (1, GAMMA, 0), (GAMMA, 1, GAMMA)]
  script = [tuple(row[i] for row in rows) for i in (0, 1, 2, 0, 2)]
  state = toy.start(toy.SPECULATIVE, PAIR, toy.KINDS, max_len=MAX_LEN)
  length = np.ones(BATCH, int)
  for counts in script:
    method = dataclasses.replace(toy.SPECULATIVE, verifier=Scripted(counts))
    state = loop.run(method, PAIR, state, toy.rules(sampling(BATCH, 1.0), BATCH, MAX_LEN, ()),
                     toy.exits(max_iterations=1))
    length = np.minimum(length + np.array(counts) + 1, 1 + MAX_LEN)
    np.testing.assert_array_equal(state.length, length)
    np.testing.assert_array_equal(state.target_cache.length, length - 1)
    for row in range(BATCH):
      ids = np.asarray(state.ids[row])
      fed = np.asarray(state.target_cache.buffer[row])[:length[row] - 1]
      np.testing.assert_array_equal(fed, ids[:length[row] - 1])
      # The last token of a draft that stood whole is fed with the next proposal.
      behind = 1 + (counts[row] == GAMMA)
      known = np.asarray(state.draft_state.buffer[row])[:length[row] - behind]
      np.testing.assert_array_equal(known, ids[:length[row] - behind])
  expected = [_raw_log_prob(TARGET, kind, sequence)
              for kind, sequence in zip(toy.KINDS, toy.sequences(state))]
  np.testing.assert_allclose(state.log_prob, expected, rtol=1e-4)


def test_nothing_recompiles_when_settings_change():
  toy.decode(toy.SPECULATIVE, PAIR, settings=MIXED, max_len=RAGGED, eos=EOS)
  before = loop.run._cache_size(), loop.start._cache_size()
  for temperature, k, p in ((0.0, 0, 0.0), (1.0, 3, 0.0), (0.7, 0, 0.9)):
    toy.decode(toy.SPECULATIVE, PAIR, settings=sampling(BATCH, temperature, k, p), eos=(2, 3),
               max_len=5, seed=3)
  # A method that is equal is the same, though it is another object.
  equal = Method(markov.MarkovScorer(V), dataclasses.replace(toy.SPECULATIVE.drafter), GAMMA)
  state = toy.start(equal, PAIR, toy.KINDS, max_len=MAX_LEN)
  loop.run(equal, PAIR, state, toy.rules(MIXED, BATCH, 3, ()), toy.exits(2, 1))
  assert (loop.run._cache_size(), loop.start._cache_size()) == before


def test_nothing_crosses_to_the_host_inside_the_loop():
  state = toy.start(toy.SPECULATIVE, PAIR, toy.KINDS, max_len=MAX_LEN)
  args = toy.rules(MIXED, BATCH, RAGGED, EOS), toy.exits()
  program = loop.run.lower(toy.SPECULATIVE, PAIR, state, *args).as_text()
  for crossing in ("callback", "infeed", "outfeed", "send", "recv"):
    assert crossing not in program
  with jax.transfer_guard("disallow"):
    state = loop.run(toy.SPECULATIVE, PAIR, state, *args)
  # The guard is awake: Python numbers as exits are a transfer.
  with jax.transfer_guard("disallow"), pytest.raises(Exception, match="transfer"):
    loop.run(toy.SPECULATIVE, PAIR, state, args[0], Exits())


def test_the_state_is_donated_and_the_callers_arrays_are_not():
  row_keys, prompt = keys.row_keys(0, jnp.arange(BATCH)), toy.prompt([()] * BATCH)
  rules = toy.rules(MIXED, BATCH, RAGGED, EOS)
  source = Source(jnp.asarray(toy.KINDS, jnp.int32)[:, None], jnp.ones(BATCH, jnp.int32))
  state = loop.start(toy.SPECULATIVE, PAIR, source, prompt, row_keys, jnp.ones(BATCH, bool),
                     capacity=toy.capacity_for(MAX_LEN, toy.MAX_GAMMA))
  loop.run(toy.SPECULATIVE, PAIR, state, rules, toy.exits())
  assert state.ids.is_deleted() and state.target_cache.buffer.is_deleted()
  for mine in jax.tree.leaves((row_keys, prompt, source, PAIR, rules)):
    assert not mine.is_deleted()
