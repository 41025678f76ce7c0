"""The distribution against a float64 oracle, and draws against the distribution."""

import functools

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import probs
from specdec.core.rules import sampling
from specdec.testing import goodness
from specdec.testing import oracle
from specdec.types import Sampling

ROWS, POSITIONS, V = 8, 2, 12
distribution = jax.jit(probs.distribution)
draw = jax.jit(probs.draw)

# Multiples of a half, so that ties are frequent and no rounding makes or breaks one.
logit = st.one_of(st.integers(-8, 8).map(lambda n: n / 2), st.sampled_from([-0.0, -np.inf]))
row_settings = st.tuples(st.sampled_from([0.0, 1e-4, 0.3, 0.7, 1.0, 2.5]),
                         st.integers(0, V + 2), st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]))


def _apply(logits, temperature, top_k, top_p):
  return np.asarray(distribution(jnp.asarray(logits, jnp.float32),
                                 sampling(len(logits), temperature, top_k, top_p)))


@settings(deadline=None, max_examples=80, derandomize=True)
@given(logits=hnp.arrays(np.float32, (ROWS, POSITIONS, V), elements=logit),
       chosen=st.lists(row_settings, min_size=ROWS, max_size=ROWS))
def test_distribution_equals_the_oracle(logits, chosen):
  """Every row at its own settings, all in one batch."""
  found = _apply(logits, *map(np.asarray, zip(*chosen)))
  np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)
  for row, (temperature, k, p) in enumerate(chosen):
    for position in range(POSITIONS):
      # Where a set's mass is p up to rounding, either side of it is right.
      near = [oracle.distribution(logits[row, position], temperature, k, p * (1 + shift))
              for shift in (-1e-6, 1e-6)]
      assert min(np.abs(found[row, position] - x).max() for x in near) < 2e-6


def test_zeros_of_either_sign_tie():
  """A linear layer returns both, and they are one number."""
  found = _apply([[[0.0, -0.0, -1.0]], [[-0.0, 0.0, -0.0]]], 1.0, 1, 0.0)
  np.testing.assert_allclose(found[:, 0], [[0.5, 0.5, 0], [1 / 3] * 3], rtol=1e-6)


def test_ties_at_the_threshold_are_kept():
  logits = [[[3.0, 2.0, 2.0, 2.0, 1.0]]]
  assert (_apply(logits, 1.0, 2, 0.0) > 0).tolist() == [[[True] * 4 + [False]]]
  top = float(_apply(logits, 1.0, 0, 0.0)[0, 0, 0])
  assert (_apply(logits, 1.0, 0, top + 0.01) > 0).tolist() == [[[True] * 4 + [False]]]
  assert (_apply(logits, 1.0, 0, top - 0.01) > 0).tolist() == [[[True] + [False] * 4]]


def test_greedy_takes_the_first_of_equals():
  assert _apply([[[1.0, 5.0, 5.0]]], 0.0, 0, 0.0).tolist() == [[[0, 1, 0]]]


def test_extreme_temperatures_in_one_batch():
  temperatures = np.array([0, 1e-12, 1e-6, 1e-4, 1.0001e-4, 1], np.float32)
  rng = np.random.default_rng(0)
  logits = rng.uniform(-1e4, 1e4, (6, 3, 50)).astype(np.float32)
  logits[:, 0, :2] = 1e4, -1e4
  for k, p in ((0, 0.0), (3, 0.0), (0, 0.9), (5, 0.5)):
    found = _apply(logits, temperatures, k, p)
    assert np.isfinite(found).all()
    for row, temperature in enumerate(temperatures):
      for position in range(3):
        np.testing.assert_allclose(
            found[row, position], oracle.distribution(logits[row, position], temperature, k, p),
            atol=1e-5)


def test_settings_of_a_neighbour_do_not_matter():
  """The filters run when any row asks; the others must come out bit for bit as without."""
  logits = np.random.default_rng(1).normal(0, 3, (4, 2, 40)).astype(np.float32)
  alone = _apply(logits, 0.8, 0, 0.0)
  mixed = _apply(logits, [0.8, 0.0, 0.8, 0.8], [0, 0, 3, 0], [0, 0, 0, 0.5])
  np.testing.assert_array_equal(mixed[0], alone[0])
  np.testing.assert_array_equal(_apply(logits, 0.0, 0, 0.0)[1], mixed[1])


def test_forbidden_tokens_get_exactly_zero():
  logits = np.random.default_rng(2).normal(0, 1, (3, 1, 20)).astype(np.float32)
  logits[..., ::3] = -np.inf
  for temperature in (0.0, 1.0):
    for k, p in ((0, 0.0), (18, 0.0), (0, 1.0), (18, 1.0)):
      found = _apply(logits, temperature, k, p)
      assert (found[..., ::3] == 0).all()
      np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unsound_logits_give_a_proper_distribution(bad, temperature):
  logits = np.random.default_rng(3).normal(0, 1, (3, 2, 10)).astype(np.float32)
  sound = _apply(logits, temperature, 0, 0.0)
  logits[1, 0, 4] = bad
  logits[2, 1] = -np.inf
  found = _apply(logits, temperature, 0, 0.0)
  unsound = np.array([[False, False], [True, False], [False, True]])
  np.testing.assert_array_equal(found[~unsound], sound[~unsound])
  np.testing.assert_allclose(found[unsound].sum(-1), 1, atol=1e-6)
  if temperature:
    np.testing.assert_allclose(found[unsound], 0.1, rtol=1e-6)


# The grid of a float32 uniform: its smallest and largest values, and some between.
STEP = 2.0**-23
EDGES = np.array([0.0, STEP, 0.25, 0.5, 1 - 2 * STEP, 1 - STEP], np.float32)


@pytest.mark.parametrize("size", [1, 2, 127, 128, 129, 300, 32128])
def test_an_id_of_weight_zero_is_never_drawn(size):
  """Most ids forbidden, first and last among them, at the edges of the noise."""
  rng = np.random.default_rng(size)
  first_noise, second_noise = (x.ravel() for x in np.meshgrid(EDGES, EDGES))
  noise = jnp.asarray(np.stack([first_noise, second_noise], -1))
  for allowed in (1, 2, min(size, 40), size):
    weights = np.zeros(size, np.float32)
    inner = np.arange(1, size - 1) if size - 2 >= allowed else np.arange(size)
    kept = rng.choice(inner, min(allowed, len(inner)), replace=False)
    # Sixty orders of magnitude apart in one row: prefix sums swallow the small ones.
    weights[kept] = 10.0 ** rng.uniform(-30, 30, len(kept))
    drawn = np.asarray(draw(noise, jnp.broadcast_to(weights, (len(noise), size))))
    assert (weights[drawn] > 0).all()


def test_draws_have_their_probabilities():
  """Three blocks, the last one short, zero weights between; not normalised."""
  rng = np.random.default_rng(5)
  weights = rng.exponential(1, 300).astype(np.float32) ** 2
  weights[rng.choice(300, 60, replace=False)] = 0
  weights[[0, 128, 299]] = 0
  law = {i: w for i, w in enumerate(weights / np.float64(weights).sum()) if w > 0}
  rows, counts = 1 << 14, np.zeros(300, int)
  tiled = jnp.broadcast_to(weights, (rows, 300))
  for seed in range(8):
    noise = jax.random.uniform(jax.random.key(seed), (rows, 2))
    counts += np.bincount(np.asarray(draw(noise, tiled)), minlength=300)
  assert goodness.p_value(goodness.chi_square(dict(enumerate(counts)), law)) > 1e-4


@functools.cache
def _grid_points(level: int, total: float, tiny: float, tiny_first: bool) -> int:
  """How many of the 2**23 values of one uniform pick the tiny weight.

  The tiny weight stands in a block of its own (level 0) or beside the rest (level 1),
  before or behind it. Draws are monotone in the uniform, so only one end need be tried.
  """
  weights = np.zeros(256, np.float32)
  rest, place = (10, 140) if level == 0 else (10, 90)
  if tiny_first:
    rest, place = place, rest
  weights[rest], weights[place] = total, tiny
  steps = np.arange(256)
  values = steps * STEP if tiny_first else 1 - (steps + 1) * STEP
  noise = np.full((256, 2), 0.5, np.float32)
  noise[:, level] = values
  drawn = np.asarray(draw(jnp.asarray(noise), jnp.broadcast_to(weights, (256, 256))))
  hits = drawn == place
  assert not hits[-1] and (np.diff(hits.astype(int)) <= 0).all()
  return int(hits.sum())


@pytest.mark.parametrize("tiny_first", [True, False])
@pytest.mark.parametrize("level", [0, 1])
def test_tiny_probabilities_are_drawn_at_their_rate(level, tiny_first):
  """1e-6 is 8.4 steps of the grid: exact to the rounding of one step on either side."""
  found = _grid_points(level, 1.0, 1e-6, tiny_first) * STEP
  assert abs(found - 1e-6) < 2 * STEP


def test_a_token_far_below_the_grid_in_a_light_block_keeps_its_rate():
  """1e-6 of a block that has 1e-4 of the mass: the two levels multiply to 1e-10."""
  within = _grid_points(1, 1e-4, 1e-10, False) * STEP
  block = _grid_points(0, 1.0, 1e-5, False) * STEP
  np.testing.assert_allclose(within, 1e-6, atol=2 * STEP)
  np.testing.assert_allclose(block, 1e-5, atol=2 * STEP)


def test_draw_takes_any_leading_axes():
  weights = jnp.eye(5)[jnp.array([[3, 1, 4], [0, 2, 2]])]
  assert probs.draw(jnp.full((2, 3, 2), 0.7), weights).tolist() == [[3, 1, 4], [0, 2, 2]]


def test_settings_are_spread_over_the_batch():
  made = sampling(3, 0.5, [1, 2, 3])
  assert isinstance(made, Sampling)
  assert made.temperature.tolist() == [0.5] * 3 and made.top_k.tolist() == [1, 2, 3]
  assert made.top_p.dtype == jnp.float32 and made.top_p.tolist() == [0.0] * 3
