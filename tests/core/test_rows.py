"""A row's result is its own: whoever its neighbours are, wherever it stands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import keys
from specdec.core import loop
from specdec.core import rows as rows_lib
from specdec.types import Source
from specdec.types import Status
from tests.core import toy

BATCH, MAX_LEN = toy.BATCH, toy.MAX_LEN
PAIR, RAGGED, EOS, MIXED = toy.PAIR, toy.RAGGED, toy.EOS, toy.MIXED


def _per_row(state):
  """What a row has come to, apart from the batch's own counter."""
  return [np.asarray(x) for x in (state.ids, state.length, state.status, *jax.tree.leaves(
      state.stats))], np.asarray(state.log_prob)


def _assert_rows(state, rows, other, other_rows):
  (found, found_log), (expected, expected_log) = _per_row(state), _per_row(other)
  for x, y in zip(found, expected):
    np.testing.assert_array_equal(x[rows], y[other_rows])
  # A batch of one may sum in another order.
  np.testing.assert_allclose(found_log[rows], expected_log[other_rows], rtol=1e-5)


def _pick(tree, rows):
  return jax.tree.map(lambda x: x[rows], tree)


def test_a_row_is_what_it_is_alone():
  whole = toy.decode(toy.SPECULATIVE, PAIR, settings=MIXED, max_len=RAGGED, eos=EOS)
  for row in range(BATCH):
    alone = toy.decode(toy.SPECULATIVE, PAIR, toy.KINDS[[row]], _pick(MIXED, np.array([row])),
                       RAGGED[[row]], EOS, example_ids=[row])
    _assert_rows(whole, [row], alone, [0])


def test_a_row_does_not_depend_on_its_place():
  whole = toy.decode(toy.SPECULATIVE, PAIR, settings=MIXED, max_len=RAGGED, eos=EOS)
  order = np.array([5, 2, 7, 0, 1, 6, 3, 4])
  moved = toy.decode(toy.SPECULATIVE, PAIR, toy.KINDS[order], _pick(MIXED, order), RAGGED[order],
                     EOS, example_ids=order)
  _assert_rows(moved, np.arange(BATCH), whole, order)


def test_rows_that_are_padding_never_run_and_disturb_nobody():
  whole = toy.decode(toy.SPECULATIVE, PAIR, settings=MIXED, max_len=RAGGED, eos=EOS)
  in_use = np.array([True, False, True, True, False, True, True, False])
  padded = toy.decode(toy.SPECULATIVE, PAIR, settings=MIXED, max_len=RAGGED, eos=EOS,
                      in_use=in_use)
  _assert_rows(padded, in_use, whole, in_use)
  assert (np.asarray(padded.status)[~in_use] == Status.UNUSED).all()
  assert (np.asarray(padded.length)[~in_use] == 1).all()
  assert not np.asarray(padded.ids)[~in_use].any()
  for counted in jax.tree.leaves((padded.stats, padded.log_prob)):
    assert not np.asarray(counted)[~in_use].any()
  nobody = toy.decode(toy.SPECULATIVE, PAIR, in_use=np.zeros(BATCH, bool))
  assert int(nobody.iterations) == 0


def _refilled(first, fresh, free):
  """A state whose free rows are those of a fresh one."""
  # An index outside the batch stands for no row, so that one shape serves every count.
  rows = np.where(np.isin(np.arange(BATCH), free), np.arange(BATCH), [-1, BATCH] * (BATCH // 2))
  return loop.insert(toy.SPECULATIVE, first, jnp.asarray(rows, jnp.int32), fresh)


def _until_two_have_ended():
  first = toy.start(toy.SPECULATIVE, PAIR, toy.KINDS, max_len=MAX_LEN)
  first = loop.run(toy.SPECULATIVE, PAIR, first, toy.rules(MIXED, BATCH, RAGGED, EOS),
                   toy.exits(min_ended=2))
  free = np.flatnonzero(~np.asarray(first.running))
  assert 2 <= len(free) < BATCH
  return first, free


def test_rows_can_be_refilled():
  """New rows in the place of ended ones come out as in a batch of their own."""
  first, free = _until_two_have_ended()
  kinds = toy.KINDS[::-1].copy()
  fresh = toy.start(toy.SPECULATIVE, PAIR, kinds, max_len=MAX_LEN, seed=7)
  refilled = _refilled(first, fresh, free)
  assert np.asarray(refilled.running).all()
  end = loop.run(toy.SPECULATIVE, PAIR, refilled, toy.rules(MIXED, BATCH, RAGGED, EOS),
                 toy.exits())
  kept = np.setdiff1d(np.arange(BATCH), free)
  decode = lambda **options: toy.decode(toy.SPECULATIVE, PAIR, settings=MIXED, max_len=RAGGED,
                                        eos=EOS, **options)
  _assert_rows(end, free, decode(kinds=kinds, seed=7), free)
  _assert_rows(end, kept, decode(), kept)


def test_rows_of_less_capacity_leave_nothing_of_those_before():
  first, free = _until_two_have_ended()
  kinds = jnp.asarray(toy.KINDS[::-1].copy())
  prompts = [()] * BATCH
  fresh = loop.start(toy.SPECULATIVE, PAIR, Source(kinds[:, None], jnp.ones(BATCH, jnp.int32)),
                     toy.prompt(prompts), keys.row_keys(7, jnp.arange(BATCH)),
                     jnp.ones(BATCH, bool), capacity=1)
  refilled = _refilled(first, fresh, free)
  for buffer in (refilled.ids, refilled.target_cache.buffer, refilled.draft_state.buffer):
    assert not np.asarray(buffer)[free, 1:].any()
  end = loop.run(toy.SPECULATIVE, PAIR, refilled, toy.rules(MIXED, BATCH, RAGGED, EOS),
                 toy.exits())
  _assert_rows(end, free, toy.decode(toy.SPECULATIVE, PAIR, kinds, MIXED, RAGGED, EOS, seed=7),
               free)


def test_a_batch_can_be_filled_from_nothing():
  kinds = toy.KINDS
  capacity = toy.capacity_for(MAX_LEN, toy.MAX_GAMMA)
  blank = loop.empty(toy.SPECULATIVE, PAIR, BATCH, 1, capacity)
  fresh = toy.start(toy.SPECULATIVE, PAIR, kinds, max_len=MAX_LEN)
  assert (np.asarray(blank.status) == Status.UNUSED).all()
  for x, y in zip(jax.tree.leaves(blank), jax.tree.leaves(fresh), strict=True):
    assert x.shape == y.shape and x.dtype == y.dtype
  state = _refilled(blank, fresh, np.arange(BATCH))
  end = loop.run(toy.SPECULATIVE, PAIR, state, toy.rules(MIXED, BATCH, RAGGED, EOS), toy.exits())
  rows = np.arange(BATCH)
  _assert_rows(end, rows, toy.decode(toy.SPECULATIVE, PAIR, settings=MIXED, max_len=RAGGED,
                                     eos=EOS), rows)


def test_an_insert_takes_its_state_and_compiles_once():
  first, free = _until_two_have_ended()
  fresh = toy.start(toy.SPECULATIVE, PAIR, toy.KINDS, max_len=MAX_LEN, seed=7)
  refilled = _refilled(first, fresh, free)
  assert first.ids.is_deleted() and first.target_cache.buffer.is_deleted()
  assert not any(x.is_deleted() for x in jax.tree.leaves(fresh))
  before = loop.insert._cache_size(), loop.run._cache_size()
  rules = toy.rules(MIXED, BATCH, RAGGED, EOS)
  for row in range(3):
    refilled = loop.run(toy.SPECULATIVE, PAIR, refilled, rules, toy.exits(max_iterations=1))
    refilled = _refilled(refilled, fresh, np.array([row]))
  assert (loop.insert._cache_size(), loop.run._cache_size()) == before


def test_rows_that_are_too_wide_are_refused():
  tree = jnp.zeros((2, 3))
  for other in (jnp.zeros((1, 4)), jnp.zeros((1, 3, 1)), jnp.zeros((1, 3), jnp.int32)):
    with pytest.raises(ValueError, match="do not go into"):
      rows_lib.replace(tree, jnp.array([0]), other)
