"""A T5X batch on the Markov toy: limits, prompts, order and law, without T5X."""

from collections import Counter
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.drafters.transformer import TransformerDrafter
from specdec.integrations.t5x import decode as decode_lib
from specdec.integrations.t5x import knobs
from specdec.testing import goodness
from specdec.testing import markov
from specdec.testing import oracle
from tests.core import toy

V, EOS, WIDTH = toy.V, 6, 9
SPECULATIVE = Method(toy.SCORER, TransformerDrafter(toy.SCORER, V), 3)
PLAIN = Method(toy.SCORER)
KINDS = np.arange(8) % 4
SMALL = 4


@functools.partial(jax.jit, static_argnames=("method", "width", "num_decodes", "static"))
def run(method, weights, inputs, prompts, eos_id, key, given, width=WIDTH, num_decodes=1,
        static=()):
  return decode_lib.decode(method, weights, decode_lib.Request(
      inputs=inputs, prompts=prompts, width=width, num_decodes=num_decodes, eos_id=eos_id,
      key=key, knobs=knobs.read(given | dict(static))))


def decode(method=SPECULATIVE, pair=toy.PAIR, kinds=KINDS, prompts=None, key=None, eos_id=EOS,
           width=WIDTH, num_decodes=1, static=(), **given):
  key = jax.random.key(3) if key is None else key
  prompts = None if prompts is None else jnp.asarray(prompts, jnp.int32)
  # A source of all zeros is a row that holds nothing.
  inputs = jnp.asarray(kinds, jnp.int32)[:, None]
  out = run(method, pair, inputs, prompts, eos_id, key, given, width=width,
            num_decodes=num_decodes, static=static)
  return jax.tree.map(np.asarray, out)


def test_greedy_outputs_and_scores_are_those_of_plain_decoding():
  for static in ((), (("rescale_log_probs", False),)):
    ids, scores, counts = decode(temperature=0.0, topk=0, static=static)
    plain, plain_scores, plain_counts = decode(PLAIN, temperature=0.0, topk=0, static=static)
    assert ids.shape == (8, 1, WIDTH) and scores.shape == (8, 1)
    np.testing.assert_array_equal(ids, plain)
    np.testing.assert_allclose(scores, plain_scores, atol=1e-4)
    assert (scores == 0).all() != bool(static)
    assert counts["target_calls"].sum() < plain_counts["target_calls"].sum()
    assert counts["accepted"].sum() > 0 and not plain_counts["drafted"].any()


def test_zeros_stand_behind_the_eos():
  rows = decode(temperature=0.0)[0][:, 0].tolist()
  ended = [row for row in rows if EOS in row[:-1]]
  assert 0 < len(ended) < len(rows)
  assert not any(any(row[row.index(EOS) + 1:]) for row in ended)


def test_topk_1_is_the_default_and_greedy():
  np.testing.assert_array_equal(decode()[0], decode(temperature=0.0)[0])


def test_decodes_come_by_increasing_score_with_their_counts():
  ids, scores, counts = decode(num_decodes=4, topk=0)
  assert ids.shape == (8, 4, WIDTH) and scores.shape == (8, 4)
  assert (np.diff(scores, axis=1) >= 0).all()
  assert len({tuple(row) for row in ids[0].tolist()}) > 1
  for row, calls in zip(ids.reshape(-1, WIDTH), counts["target_calls"].ravel()):
    assert 1 <= calls <= np.count_nonzero(row[:-1]) + 1


def test_prompts_are_kept_and_steps_count_behind_them():
  prompts = np.zeros((8, WIDTH), np.int32)
  prompts[1, 1:4] = 2, 5, 3
  prompts[2, 1:WIDTH] = 4
  prompts[3, 1:2] = EOS
  ids = decode(prompts=prompts, temperature=0.0, max_decode_steps=2)[0][:, 0]
  plain = decode(PLAIN, prompts=prompts, temperature=0.0, max_decode_steps=2)[0][:, 0]
  np.testing.assert_array_equal(ids, plain)
  np.testing.assert_array_equal(ids[1, :3], [2, 5, 3])
  np.testing.assert_array_equal(ids[2, :-1], 4)
  assert ids[3, 0] == EOS and ids[3, 1] != 0
  free = decode(temperature=0.0)[0][:, 0]
  assert np.count_nonzero(ids[0]) <= 2 < np.count_nonzero(free[0])
  np.testing.assert_array_equal(ids[0, :2], free[0, :2])
  assert not ids[1, 5:].any()


def test_a_hard_limit_bounds_the_steps():
  limited = decode(temperature=0.0, max_decode_steps=5, static=(
      ("max_decode_steps_hard_limit", 2),))[0]
  np.testing.assert_array_equal(limited, decode(temperature=0.0, max_decode_steps=2)[0])
  np.testing.assert_array_equal(
      decode(temperature=0.0, static=(("max_decode_steps_hard_limit", 2),))[0],
      decode(temperature=0.0)[0])


def test_temperatures_may_differ_by_input():
  temperature = jnp.asarray([0.0] * 4 + [1.0] * 4)
  mixed = decode(temperature=temperature, topk=0)[0]
  np.testing.assert_array_equal(mixed[:4], decode(temperature=0.0, topk=0)[0][:4])
  np.testing.assert_array_equal(mixed[4:], decode(temperature=1.0, topk=0)[0][4:])


def test_the_key_decides_whatever_its_form():
  by_key = lambda key: decode(topk=0, key=key)[0]
  typed, bare = jax.random.key(5), jax.random.PRNGKey(5)
  np.testing.assert_array_equal(by_key(typed), by_key(bare))
  assert (by_key(typed) != by_key(jax.random.key(6))).any()
  other = jax.random.key(5, impl="rbg")
  np.testing.assert_array_equal(by_key(other), by_key(other))


def test_rows_that_cannot_go_on_come_first():
  broken = toy.weights({**toy.TARGET, "by_source": np.full_like(toy.TARGET["by_source"], np.nan)})
  ids, scores, _ = decode(pair=broken, num_decodes=2)
  assert np.isneginf(scores).all() and not ids.any()


@pytest.mark.parametrize("given, settings", [
    ({"temperature": 1.0, "topk": 0}, (1.0, 0, 0.0)),
    ({"temperature": 0.7, "topk": 2}, (0.7, 2, 0.0)),
    ({"temperature": 1.3, "topk": 0, "topp": 0.8}, (1.3, 0, 0.8)),
])
def test_samples_follow_the_targets_law(given, settings):
  target = markov.random_weights(0, SMALL, kinds=2)
  scorer = markov.MarkovScorer(SMALL)
  pair = toy.weights(target, toy.disturbed(target, 1))
  method = Method(scorer, TransformerDrafter(scorer, SMALL), 3)
  kinds = np.ones(1 << 12, np.int32)
  ids, scores, _ = decode(method, pair, kinds, width=4, num_decodes=4, eos_id=2, **given)
  assert (np.diff(scores, axis=1) >= 0).all()
  law = markov.joint_law(markov.table(target, 1), *settings, 2, 4)
  until = lambda row: tuple(row[:row.index(2) + 1] if 2 in row else row)
  counts = Counter(until(row) for row in ids.reshape(-1, 4).tolist())
  assert goodness.p_value([goodness.chi_square(counts, law)]) > 1e-4
  warmer = markov.joint_law(markov.table(target, 1), settings[0] * 1.2, *settings[1:], 2, 4)
  assert goodness.p_value([goodness.chi_square(counts, warmer)]) < 1e-6


def test_scores_are_those_of_what_was_sampled_from():
  target = markov.random_weights(0, SMALL, kinds=2)
  scorer = markov.MarkovScorer(SMALL)
  method, pair = Method(scorer), Weights(target)
  ids, scores, _ = decode(method, pair, np.ones(4), width=3, eos_id=2, temperature=0.7, topk=0)
  table = markov.table(target, 1)
  for row, score in zip(ids[:, 0].tolist(), scores[:, 0]):
    before, last, total = 0, 0, 0.0
    for token in row:
      total += np.log(oracle.distribution(table[before, last], 0.7)[token])
      before, last = last, token
      if token == 2:
        break
    np.testing.assert_allclose(score, total, atol=1e-4)
