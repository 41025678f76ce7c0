"""A T5 target with a T5 drafter through the real loop, caches looked at."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import keys
from specdec.core import loop
from specdec.core import rules
from specdec.core.state import Exits
from specdec.core.state import capacity_for
from specdec.engine.models import make_source
from specdec.testing import tiny
from specdec.types import Rules
from specdec.types import Source

GAMMA, MAX_LEN = 3, 24
ROWS = [[5, 9, 12, 1], [7, 1], [20, 21, 22, 23, 24, 25, 1]]


def start(pair, gamma, rows=ROWS):
  method, weights = pair.method(gamma), pair.weights(gamma > 0)
  batch = len(rows)
  state = loop.start(
      method, weights, make_source(rows, width=8), Source(
          np.zeros((batch, 1), np.int32), np.ones(batch, np.int32)),
      keys.row_keys(5, np.arange(batch)), np.ones(batch, bool), capacity_for(MAX_LEN, GAMMA))
  return method, weights, state


def run(method, weights, state, temperature, iterations=2**30):
  batch = state.ids.shape[0]
  asked = Rules(rules.sampling(batch, temperature), rules.limits(batch, MAX_LEN),
                rules.controls(batch), rules.speculation(batch))
  return loop.run(method, weights, state, asked,
                  Exits(np.int32(iterations), np.int32(2**30)))


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1]], ids=["batch", "single"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_valid_slot_is_that_of_a_fresh_pass(rows, temperature):
  """After each iteration, with rejections or without, in both caches."""
  pair = tiny.pair()
  method, weights, state = start(pair, GAMMA, rows)
  fresh_pass = jax.jit(lambda w, ids, cache: method.scorer.score(w, ids, cache)[2])
  empty = jax.jit(lambda w, source: method.scorer.init(w, source, capacity_for(MAX_LEN, GAMMA)))
  source = make_source(rows, width=8)
  seen = set()
  for _ in range(6):
    before = np.asarray(state.stats.accepted)
    state = run(method, weights, state, temperature, 1)
    seen |= set((np.asarray(state.stats.accepted) - before).tolist())
    length = np.asarray(state.length)
    for model, cache, lag in ((pair.target, state.target_cache, 1),
                              (pair.drafter.model, state.draft_state, 2)):
      wanted = fresh_pass(model.weights, state.ids[:, :MAX_LEN + 1],
                          empty(model.weights, source))
      for row in range(len(rows)):
        # The drafter was never fed the last token of a draft that stood whole.
        slots = slice(0, length[row] - lag)
        for got, want in zip(cache.self_key + cache.self_value,
                             wanted.self_key + wanted.self_value):
          np.testing.assert_allclose(got[row, :, slots], want[row, :, slots], atol=1e-4)
  assert len(seen) > 1, "the drafts must be accepted in part for this to say anything"


@pytest.mark.parametrize("gamma", [1, 3])
def test_greedy_equals_plain_and_each_row_its_own_run(gamma):
  pair = tiny.pair()
  plain = run(*start(pair, 0), 0.0)
  together = run(*start(pair, gamma), 0.0)
  np.testing.assert_array_equal(plain.length, together.length)
  np.testing.assert_array_equal(plain.ids[:, :MAX_LEN + 1], together.ids[:, :MAX_LEN + 1])
  np.testing.assert_allclose(plain.log_prob, together.log_prob, atol=1e-3)
  for i in range(len(ROWS)):
    alone = run(*start(pair, gamma, ROWS[i:i + 1]), 0.0)
    np.testing.assert_array_equal(alone.ids[0], together.ids[i])


def test_scores_are_the_teacher_forced_log_probabilities():
  pair = tiny.pair()
  state = run(*start(pair, GAMMA), 1.0)
  for i, row in enumerate(ROWS):
    ids = np.asarray(state.ids)[i, :int(state.length[i])]
    logits = pair.target.logits([row], [ids[:-1]])[0]
    log_probs = jax.nn.log_softmax(logits)[jnp.arange(len(ids) - 1), ids[1:]]
    np.testing.assert_allclose(state.log_prob[i], log_probs.sum(), rtol=1e-4)


def test_nan_weights_of_the_target_end_rows_and_of_the_drafter_do_no_harm():
  pair = tiny.pair()
  method, weights, state = start(pair, GAMMA)
  poison = lambda tree: jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), tree)
  wanted = run(*start(pair, 0), 0.0)
  state = run(method, weights.replace(drafter=poison(weights.drafter)), state, 0.0)
  np.testing.assert_array_equal(state.ids[:, :MAX_LEN + 1], wanted.ids[:, :MAX_LEN + 1])
  _, _, state = start(pair, GAMMA)
  state = run(method, weights.replace(target=poison(weights.target)), state, 0.0)
  np.testing.assert_array_equal(state.status, [3, 3, 3])
  np.testing.assert_array_equal(state.length, [1, 1, 1])
