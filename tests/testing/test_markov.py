"""The toys that prove the rest: a cache that behaves, a law that sums to one, a fair test."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.testing import goodness
from specdec.testing import markov
from specdec.testing import oracle
from specdec.types import Source

BATCH, V, CAPACITY = 3, 6, 12
SCORER = markov.MarkovScorer(V)
WEIGHTS = jax.tree.map(jnp.asarray, markov.random_weights(0, V, kinds=2))
KINDS = np.array([0, 1, 1])
TOKENS = np.random.default_rng(0).integers(0, V, (BATCH, 7)).astype(np.int32)


def _fresh():
  return SCORER.init(WEIGHTS, Source(jnp.asarray(KINDS, jnp.int32)[:, None],
                                     jnp.ones(BATCH, jnp.int32)), CAPACITY)


def _expected(tokens):
  """Logits [B, G, V] straight from the tables."""
  before = np.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
  return np.stack([markov.table(WEIGHTS, kind)[a, b]
                   for kind, a, b in zip(KINDS, before, tokens)])


def test_one_call_equals_one_token_calls():
  logits, _, cache = SCORER.score(WEIGHTS, TOKENS, _fresh())
  np.testing.assert_array_equal(logits, _expected(TOKENS))
  single = _fresh()
  for i in range(TOKENS.shape[1]):
    one, _, single = SCORER.score(WEIGHTS, TOKENS[:, i:i + 1], single)
    np.testing.assert_array_equal(one[:, 0], logits[:, i])
  np.testing.assert_array_equal(single.buffer, cache.buffer)
  np.testing.assert_array_equal(single.length, cache.length)


def test_writing_again_after_a_rollback_equals_writing_once():
  _, _, cache = SCORER.score(WEIGHTS, (TOKENS + 1) % V, _fresh())
  cache = SCORER.rollback(cache, jnp.zeros(BATCH))
  _, _, cache = SCORER.score(WEIGHTS, TOKENS[:, :4], cache)
  # Rows go on from lengths of their own.
  kept = np.array([1, 4, 2])
  cache = SCORER.rollback(cache, jnp.asarray(kept))
  more = np.stack([TOKENS[row, n:n + 3] for row, n in enumerate(kept)])
  logits, _, cache = SCORER.score(WEIGHTS, more, cache)
  expected = _expected(TOKENS)
  for row, n in enumerate(kept):
    np.testing.assert_array_equal(logits[row], expected[row, n:n + 3])
  np.testing.assert_array_equal(cache.length, kept + 3)


def test_a_wrong_length_shows():
  """What makes the toy worth having: one slot off, and other logits come out."""
  _, _, cache = SCORER.score(WEIGHTS, TOKENS[:, :4], _fresh())
  for off in (-1, 1):
    logits, _, _ = SCORER.score(WEIGHTS, TOKENS[:, 4:5],
                                SCORER.rollback(cache, jnp.full(BATCH, 4 + off)))
    assert (np.asarray(logits)[:, 0] != _expected(TOKENS)[:, 4]).any()


def test_insert_ignores_rows_outside_the_batch():
  _, _, old = SCORER.score(WEIGHTS, TOKENS[:, :2], _fresh())
  _, _, new = SCORER.score(WEIGHTS, TOKENS, _fresh())
  made = SCORER.insert(old, jnp.array([1, BATCH, BATCH]), new)
  assert made.length.tolist() == [2, 7, 2]
  # The first of the three new rows went to row 1.
  np.testing.assert_array_equal(made.buffer[1], new.buffer[0])


@pytest.mark.parametrize("settings", [(1.0, 0, 0.0), (0.7, 3, 0.0), (1.2, 0, 0.8), (0.0, 0, 0.0)])
def test_the_joint_law_is_a_law(settings):
  logits = markov.table(WEIGHTS, 1)
  law = markov.joint_law(logits, *settings, eos=1, length=4)
  np.testing.assert_allclose(sum(law.values()), 1, rtol=1e-12)
  assert all(len(s) == 4 or s[-1] == 1 for s in law) and all(1 not in s[:-1] for s in law)
  first = oracle.distribution(logits[0, 0], *settings)
  for token in range(V):
    marginal = sum(chance for s, chance in law.items() if s[0] == token)
    np.testing.assert_allclose(marginal, first[token], atol=1e-12)


def test_chi_square_is_fair_and_strict():
  law = dict(enumerate(np.random.default_rng(1).dirichlet(np.full(40, 0.3))))
  weights = np.array(list(law.values()))
  samples = np.random.default_rng(2).multinomial(5000, weights / weights.sum(), 400)
  found = np.array([goodness.p_value(goodness.chi_square(dict(enumerate(counts)), law))
                    for counts in samples])
  # Uniform p-values: the mean of 400 is within five standard errors of a half.
  assert abs(found.mean() - 0.5) < 5 / np.sqrt(12 * 400)
  assert goodness.p_value(goodness.chi_square({0: 4999, "never": 1}, law)) == 0
