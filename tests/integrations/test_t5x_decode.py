"""A T5X batch on the Markov toy: limits, prompts, order and law, without T5X."""

from collections import Counter
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core.state import Method
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


@functools.partial(jax.jit, static_argnames=("method", "width", "num_decodes", "rescaled"))
def run(method, weights, inputs, prompts, eos_id, key, given, width, num_decodes, rescaled):
  return decode_lib.decode(method, weights, decode_lib.Request(
      inputs=inputs, prompts=prompts, width=width, num_decodes=num_decodes, eos_id=eos_id,
      key=key, knobs=knobs.read(given | {"rescale_log_probs": rescaled})))


def decode(method=SPECULATIVE, pair=toy.PAIR, kinds=KINDS, prompts=None, seed=3, eos_id=EOS,
           width=WIDTH, num_decodes=1, rescaled=True, **given):
  """All numbers are traced, so that few programs are compiled."""
  usual = {"temperature": np.zeros(len(kinds), np.float32), "topk": np.int32(0),
           "topp": np.float32(0), "max_decode_steps": np.int32(width)}
  given = {name: np.broadcast_to(np.asarray(given.get(name, value), value.dtype), value.shape)
           for name, value in usual.items()}
  prompts = None if prompts is None else jnp.asarray(prompts, jnp.int32)
  # A source of all zeros is a row that holds nothing.
  out = run(method, pair, np.asarray(kinds, np.int32)[:, None], prompts, np.int32(eos_id),
            jax.random.PRNGKey(seed), given, width, num_decodes, rescaled)
  return jax.tree.map(np.asarray, out)


def until_eos(row, eos=EOS):
  return tuple(row[:row.index(eos) + 1] if eos in row else row)


def test_greedy_outputs_and_scores_are_those_of_plain_decoding():
  ids, scores, counts = decode()
  plain, _, plain_counts = decode(PLAIN)
  assert ids.shape == (8, 1, WIDTH) and scores.shape == (8, 1)
  np.testing.assert_array_equal(ids, plain)
  assert not scores.any()
  assert counts["target_calls"].sum() < plain_counts["target_calls"].sum()
  assert counts["accepted"].sum() > 0 and not plain_counts["drafted"].any()
  raw, raw_scores, _ = decode(rescaled=False)
  np.testing.assert_array_equal(raw, plain)
  for kind, row, score in zip(KINDS, raw[:, 0].tolist(), raw_scores[:, 0]):
    np.testing.assert_allclose(score, log_prob(toy.TARGET, kind, until_eos(row)), atol=1e-3)


def log_prob(target, kind, ids, temperature=1.0):
  table, before, last, total = markov.table(target, kind), 0, 0, 0.0
  for token in ids:
    total += np.log(oracle.distribution(table[before, last], temperature)[token])
    before, last = last, token
  return total


def test_zeros_stand_behind_the_eos():
  rows = decode()[0][:, 0].tolist()
  ended = [row for row in rows if EOS in row[:-1]]
  assert 0 < len(ended) < len(rows)
  assert not any(any(row[row.index(EOS) + 1:]) for row in ended)


def test_topk_1_is_greedy_at_any_temperature():
  np.testing.assert_array_equal(decode(topk=1, temperature=1.0)[0], decode()[0])
  assert (decode(temperature=1.0)[0] != decode()[0]).any()


def test_decodes_come_by_increasing_score_with_their_counts():
  ids, scores, counts = decode(num_decodes=4, temperature=1.0)
  assert ids.shape == (8, 4, WIDTH) and scores.shape == (8, 4)
  assert (np.diff(scores, axis=1) >= 0).all()
  assert len({tuple(row) for row in ids[0].tolist()}) > 1
  tokens = np.array([len(until_eos(row)) for row in ids.reshape(-1, WIDTH).tolist()])
  calls, accepted = counts["target_calls"].ravel(), counts["accepted"].ravel()
  # A call commits what it accepts and a token more, unless the row ends before that one.
  assert ((calls + accepted >= tokens) & (calls + accepted <= tokens + 1)).all()
  for kind, row, score in zip(np.repeat(KINDS, 4), ids.reshape(-1, WIDTH).tolist(),
                              scores.ravel()):
    np.testing.assert_allclose(score, log_prob(toy.TARGET, kind, until_eos(row)), atol=1e-3)


def test_prompts_are_kept_and_steps_count_behind_them():
  free = decode()[0][:, 0]
  row = int(np.argmax((free != 0).sum(1)))
  assert (free[row] != 0).sum() > 5
  full, eos = [i for i in range(3) if i != row][:2]
  prompts = np.zeros((8, WIDTH), np.int32)
  prompts[full, 1:] = 4
  prompts[eos, 1:2] = EOS
  prompts[row, 1:4] = free[row, :3]
  # Behind a 0 there is no prompt.
  prompts[row, 5] = 4
  ids = decode(prompts=prompts, max_decode_steps=2)[0][:, 0]
  np.testing.assert_array_equal(ids[full, :-1], 4)
  assert ids[full, -1] != 0
  assert ids[eos, 0] == EOS and ids[eos, 1] != 0
  np.testing.assert_array_equal(ids[row, :5], free[row, :5])
  assert not ids[row, 5:].any() and not ids[eos, 3:].any()
  whole = decode(prompts=prompts)[0][:, 0]
  np.testing.assert_array_equal(whole[row], free[row])


def test_temperatures_may_differ_by_input():
  mixed = decode(temperature=[0.0] * 4 + [1.0] * 4)[0]
  np.testing.assert_array_equal(mixed[:4], decode()[0][:4])
  np.testing.assert_array_equal(mixed[4:], decode(temperature=1.0)[0][4:])


def test_the_key_decides():
  once = decode(temperature=1.0)[0]
  np.testing.assert_array_equal(decode(temperature=1.0)[0], once)
  assert (decode(temperature=1.0, seed=4)[0] != once).any()


def test_rows_that_cannot_go_on_come_first():
  broken = toy.weights({**toy.TARGET, "by_source": np.full_like(toy.TARGET["by_source"], np.nan)},
                       toy.TARGET)
  ids, scores, _ = decode(pair=broken)
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
  counts = Counter(until_eos(row, 2) for row in ids.reshape(-1, 4).tolist())
  assert goodness.p_value(goodness.chi_square(counts, law)) > 1e-4
  warmer = markov.joint_law(markov.table(target, 1), settings[0] * 1.2, *settings[1:], 2, 4)
  assert goodness.p_value(goodness.chi_square(counts, warmer)) < 1e-6
