"""Streams belong to a row and a place, and to nothing else."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from specdec.core import keys


def _data(row_keys):
  return [tuple(row) for row in np.asarray(jax.random.key_data(row_keys)).tolist()]


def test_row_keys_differ_by_seed_example_and_sample():
  seen = [_data(keys.row_keys(seed, jnp.arange(50), sample))
          for seed, sample in itertools.product((0, 1, 2), (0, 1, 2))]
  assert len({key for row in seen for key in row}) == 9 * 50


def test_row_keys_do_not_depend_on_the_batch():
  whole = _data(keys.row_keys(3, jnp.arange(20), jnp.arange(20) % 4))
  picked = jnp.array([7, 2, 19])
  assert _data(keys.row_keys(3, picked, picked % 4)) == [whole[i] for i in (7, 2, 19)]
  assert _data(keys.row_keys(3, jnp.array([5]), 1)) == [whole[5]]


def test_row_keys_accept_a_traced_seed():
  assert _data(jax.jit(keys.row_keys)(7, jnp.arange(3))) == _data(keys.row_keys(7, jnp.arange(3)))


def test_the_generator_is_fixed():
  """Results recorded today are reproduced whatever jax's default generator becomes."""
  with jax.default_prng_impl("rbg"):
    row_keys = keys.row_keys(0, jnp.arange(2))
  assert _data(row_keys) == _data(keys.row_keys(0, jnp.arange(2)))


def test_every_place_has_a_code_of_its_own():
  offsets = jnp.arange(keys._MAX_OFFSETS)
  codes = np.concatenate([keys.place(role, offsets) for role in keys.Role])
  assert len(set(codes.tolist())) == len(keys.Role) * keys._MAX_OFFSETS
  assert max(codes) < keys._BY_POSITION


def _uniforms(examples, committed):
  places = jnp.concatenate([keys.place(role, jnp.arange(6)) for role in keys.Role])
  return np.asarray(keys.uniforms(keys.row_keys(0, jnp.asarray(examples)),
                                  jnp.asarray(committed), places))


def test_no_two_draws_share_noise():
  drawn = np.stack([_uniforms(range(16), [n] * 16) for n in (1, 2, 3)])
  assert drawn.shape == (3, 16, len(keys.Role) * 6, 2)
  assert drawn.min() >= 0 and drawn.max() < 1
  # 2304 draws from a grid of 2**23 meet 0.3 times by chance; a shared stream, hundreds of times.
  assert len(np.unique(drawn)) > drawn.size - 5


def test_draws_are_uniform_and_independent():
  drawn = _uniforms(range(4096), np.arange(4096) % 7)
  assert not (drawn * 2.0**23 % 1).any()
  cells = drawn.reshape(4096, -1)
  for column in (*cells.T[:8], cells.ravel()):
    assert stats.kstest(column, "uniform").pvalue > 1e-4
  correlation = np.corrcoef(cells.T)
  assert np.abs(correlation - np.eye(len(correlation))).max() < 6 / 64


def test_noise_does_not_depend_on_the_batch():
  whole = _uniforms([4, 9, 2], [3, 1, 7])
  for i, (example, committed) in enumerate([(4, 3), (9, 1), (2, 7)]):
    np.testing.assert_array_equal(_uniforms([example], [committed])[0], whole[i])


def test_noise_by_position_belongs_to_row_position_and_id():
  """And to nothing else: not to the width, the batch, or what else is asked for."""
  row_keys, ids = keys.row_keys(5, jnp.arange(6)), jnp.arange(40)
  position = jnp.arange(6)[:, None] + jnp.arange(3)
  whole = np.asarray(keys.by_position(row_keys, position, ids))
  assert whole.shape == (6, 3, 40) and 0 < whole.min() and whole.max() < 1
  assert len(np.unique(whole)) > whole.size - 5
  np.testing.assert_array_equal(keys.by_position(row_keys, position, ids[:7]), whole[..., :7])
  np.testing.assert_array_equal(keys.by_position(row_keys[2:3], position[2:3, 1:2], ids),
                                whole[2:3, 1:2])
  few = jnp.tile(jnp.array([[[9, 3]]]), (6, 3, 1))
  np.testing.assert_array_equal(keys.by_position(row_keys, position, few), whole[..., [9, 3]])
  assert stats.kstest(whole.ravel(), "uniform").pvalue > 1e-4
  assert (np.asarray(keys.by_position(row_keys, position, ids, needed=False)) == 0.5).all()


def test_keys_of_inner_iterations_are_their_own():
  row_keys = keys.row_keys(5, jnp.arange(50))
  inner = [_data(keys.descend(row_keys, jnp.full(50, n))) for n in (1, 2, 3)]
  assert len({key for row in [_data(row_keys), *inner] for key in row}) == 200


def test_a_key_of_any_kind_can_be_adopted():
  typed = keys.adopt(jax.random.key(5, impl="threefry2x32"))
  words = lambda key: np.asarray(jax.random.key_data(key))
  np.testing.assert_array_equal(words(keys.adopt(jax.random.PRNGKey(5))), words(typed))
  other = keys.adopt(jax.random.key(5, impl="rbg"))
  for base in (typed, other, keys.adopt(jax.random.key(6, impl="rbg"))):
    assert words(keys.row_keys_under(base, jnp.arange(3))).shape == (3, 2)
  assert (words(other) != words(typed)).any()
