"""A row's result is its own: whoever its neighbours are, wherever it stands."""

import jax
import jax.numpy as jnp
import numpy as np

from specdec.core import loop
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


def test_rows_can_be_refilled():
  """New rows in the place of ended ones come out as in a batch of their own."""
  scorer, method = toy.SCORER, toy.SPECULATIVE
  rules = toy.rules(MIXED, BATCH, RAGGED, EOS)
  first = toy.start(method, PAIR, toy.KINDS, max_len=MAX_LEN)
  first = loop.run(method, PAIR, first, rules, toy.exits(min_ended=2))
  free = np.flatnonzero(~np.asarray(first.running))
  assert 2 <= len(free) < BATCH
  fresh = toy.start(method, PAIR, toy.KINDS, max_len=MAX_LEN, seed=7)
  # An index outside the batch stands for no row, so that one shape serves every count.
  rows = jnp.asarray(np.concatenate([free, np.full(BATCH - len(free), BATCH)]))
  order = jnp.asarray(np.concatenate([free, np.flatnonzero(np.asarray(first.running))]))
  insert = lambda old, new: scorer.insert(old, rows, _pick(new, order))
  scalars = {"iterations": first.iterations, "drafting": first.drafting}
  columns = dict.fromkeys(scalars, jnp.zeros(BATCH, int))
  refilled = jax.tree.map(insert, first.replace(**columns), fresh.replace(**columns))
  refilled = refilled.replace(**scalars)
  end = loop.run(method, PAIR, refilled, rules, toy.exits())
  kept = np.setdiff1d(np.arange(BATCH), free)
  _assert_rows(end, free, toy.decode(method, PAIR, settings=MIXED, max_len=RAGGED, eos=EOS,
                                     seed=7), free)
  _assert_rows(end, kept, toy.decode(method, PAIR, settings=MIXED, max_len=RAGGED, eos=EOS), kept)
