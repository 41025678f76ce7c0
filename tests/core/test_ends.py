"""How rows end: EOS, length, logits that cannot be trusted. Exactly there, wherever it falls."""

import jax
import numpy as np
import pytest

from specdec.core import loop
from specdec.core.rules import sampling
from specdec.core.state import Method
from specdec.testing import markov
from specdec.types import Status
from tests.core import toy

GAMMA, BATCH, MAX_LEN = toy.GAMMA, toy.BATCH, toy.MAX_LEN
CHAIN = toy.weights(toy.chain())
RANDOM = markov.random_weights(0, toy.V, kinds=4)


def _counted(last: int) -> tuple[int, ...]:
  return tuple(n % toy.V for n in range(1, last + 1))


# With three drafted tokens, the first block is 1 2 3 and a bonus 4: EOS as the first token, in
# the middle of a draft, as its last token, as the bonus, and in the block after.
@pytest.mark.parametrize("eos", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("method", [toy.PLAIN, toy.SPECULATIVE])
def test_a_row_ends_at_its_eos(method, eos):
  state = toy.decode(method, CHAIN, eos=(eos,))
  assert toy.sequences(state) == [_counted(eos)] * BATCH
  assert (np.asarray(state.status) == Status.EOS).all()
  assert not np.asarray(state.ids)[:, 1 + eos:].any()
  if method.gamma:
    calls = -(-eos // (GAMMA + 1))
    assert state.stats.target_calls.tolist() == [calls] * BATCH
    # The bonus costs no draft; an EOS inside the draft is one of the accepted.
    ends_inside = eos % (GAMMA + 1) != 0
    assert state.stats.accepted.tolist() == [eos - calls + ends_inside] * BATCH
    np.testing.assert_array_equal(state.stats.drafted, state.stats.accepted)


def test_an_eos_that_is_drafted_and_rejected_does_not_end_the_row():
  drafter = toy.chain()
  drafter["logits"][:, 2] = 30 * np.eye(toy.V, dtype=np.float32)[9]
  pair = toy.weights(toy.chain(), drafter)
  state = toy.decode(toy.SPECULATIVE, pair, max_len=8, eos=(9,))
  assert toy.sequences(state) == [_counted(8)] * BATCH
  assert (np.asarray(state.status) == Status.LENGTH).all()
  assert (np.asarray(state.stats.tested) == np.asarray(state.stats.accepted) + 1).all()


def test_an_eos_can_be_the_correction():
  drafter = toy.chain()
  drafter["logits"][:, 2] = 30 * np.eye(toy.V, dtype=np.float32)[9]
  state = toy.decode(toy.SPECULATIVE, toy.weights(toy.chain(), drafter), eos=(3,))
  assert toy.sequences(state) == [(1, 2, 3)] * BATCH
  assert state.stats.accepted.tolist() == [2] * BATCH


@pytest.mark.parametrize("method", [toy.PLAIN, toy.SPECULATIVE])
def test_any_of_several_eos_ids_ends_a_row_and_none_is_allowed(method):
  assert toy.sequences(toy.decode(method, CHAIN, eos=(7, 5))) == [_counted(5)] * BATCH
  assert toy.sequences(toy.decode(method, CHAIN, eos=(5, 7))) == [_counted(5)] * BATCH
  endless = toy.decode(method, CHAIN, eos=())
  assert toy.sequences(endless) == [_counted(MAX_LEN)] * BATCH
  assert (np.asarray(endless.status) == Status.LENGTH).all()


# 1, 2, gamma, gamma + 1, gamma + 2 tokens, and what else fits.
LENGTHS = np.array([1, 2, GAMMA, GAMMA + 1, GAMMA + 2, 7, 8, MAX_LEN])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_perfect_drafter_returns_the_lengths_asked_for(temperature):
  state = toy.decode(toy.SPECULATIVE, toy.weights(RANDOM), settings=temperature,
                     max_len=LENGTHS, eos=())
  calls = -(-LENGTHS // (GAMMA + 1))
  np.testing.assert_array_equal(state.length, 1 + LENGTHS)
  np.testing.assert_array_equal(state.stats.target_calls, calls)
  for counted in (state.stats.drafted, state.stats.tested, state.stats.accepted):
    np.testing.assert_array_equal(counted, LENGTHS - calls)
  assert not np.asarray(state.ids)[:, 1:][np.arange(state.ids.shape[1] - 1) >= LENGTHS[:, None]
                                          ].any()


def test_a_perfect_drafter_accepts_always_over_256_tokens():
  """A drafter whose cache falls behind after a whole draft stood would decay here."""
  state = toy.decode(toy.SPECULATIVE, toy.weights(RANDOM), settings=1.0, max_len=256, eos=(),
                     capacity_len=256)
  assert state.length.tolist() == [257] * BATCH
  assert state.stats.target_calls.tolist() == [256 // (GAMMA + 1)] * BATCH
  np.testing.assert_array_equal(state.stats.tested, state.stats.accepted)


@pytest.mark.parametrize("method", [toy.PLAIN, toy.SPECULATIVE])
def test_nothing_is_generated_when_nothing_was_asked_for(method):
  asked = np.array([0, 3, 0, 1, 2, 0, 5, 0])
  state = toy.decode(method, CHAIN, max_len=asked, eos=())
  assert toy.sequences(state) == [_counted(n) for n in asked]
  assert (np.asarray(state.status) == Status.LENGTH).all()
  assert not np.asarray(state.log_prob)[asked == 0].any()


def test_a_limit_that_was_lowered_ends_rows_where_they_stand():
  state = toy.start(toy.SPECULATIVE, CHAIN, toy.KINDS, max_len=MAX_LEN)
  settings = sampling(BATCH)
  state = loop.run(toy.SPECULATIVE, CHAIN, state, toy.rules(settings, BATCH, MAX_LEN, ()),
                   toy.exits(max_iterations=2))
  state = loop.run(toy.SPECULATIVE, CHAIN, state, toy.rules(settings, BATCH, 5, ()), toy.exits())
  assert toy.sequences(state) == [_counted(8)] * BATCH
  assert (np.asarray(state.status) == Status.LENGTH).all()


# Kind 3 is given to row 2 alone; its logits after token `last` are not sound.
SICK = np.array([0, 1, 3, 0, 1, 2, 0, 1])
OTHERS = np.arange(BATCH) != 2


def _sick(target, last: int, value: float):
  by_source = target["by_source"].copy()
  by_source[3, last, 5] = value
  if value == -np.inf:
    by_source[3, last] = value
  return {**target, "by_source": by_source}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("last", [0, 1, 2, 3, 4, 6])
def test_unsound_logits_end_their_row_and_what_came_before_stands(last, value):
  pair = toy.weights(_sick(toy.chain(), last, value), toy.chain())
  for method in (toy.PLAIN, toy.SPECULATIVE):
    state = toy.decode(method, pair, SICK, eos=(10,))
    assert toy.sequences(state)[2] == _counted(last)
    assert state.status.tolist() == [Status.NAN if row == 2 else Status.EOS
                                     for row in range(BATCH)]
    assert np.isfinite(state.log_prob).all()
    if method.gamma:
      # Blocks of four: only tokens that stand were tested, and every one was accepted.
      assert int(state.stats.target_calls[2]) == last // (GAMMA + 1) + 1
      assert int(state.stats.accepted[2]) == last - last // (GAMMA + 1)
      assert int(state.stats.tested[2]) == int(state.stats.accepted[2])


@pytest.mark.parametrize("method", [toy.PLAIN, toy.SPECULATIVE])
def test_a_sick_row_leaves_the_others_alone(method):
  drafter = toy.disturbed(RANDOM, 1)
  run = lambda target: toy.decode(method, toy.weights(target, drafter), SICK, settings=1.0,
                                  eos=())
  sick, sound = run(_sick(RANDOM, 4, np.nan)), run(RANDOM)
  assert int(sick.status[2]) == Status.NAN and int(sound.status[2]) == Status.LENGTH
  rows = lambda state: jax.tree.map(lambda x: x[OTHERS], state.replace(
      iterations=sick.ids, drafting=sick.ids))
  toy.assert_same(rows(sick), rows(sound))
  # Up to where it fell ill, the row is the one it would have been.
  kept = toy.sequences(sick)[2]
  assert kept[-1] == 4 and kept == toy.sequences(sound)[2][:len(kept)]


def test_settings_that_do_not_fit_together_are_refused():
  for drafter, gamma in ((None, 1), (toy.SPECULATIVE.drafter, -1), (None, -1)):
    with pytest.raises(ValueError, match="gamma"):
      Method(toy.SCORER, drafter, gamma)
  with pytest.raises(ValueError, match="abstains"):
    Method(toy.SCORER, toy.SPECULATIVE.drafter, 1, watch=True)
