"""Random streams that belong to a row and to a place in its decoding.

A draw is keyed by (seed, example id, sample index) of its row and by (tokens
committed when the iteration began, offset, role) of its place. So a row's result
depends neither on its neighbours in the batch, nor on the batch size, nor on the
number of devices, and two draws never share noise. Iterations within an iteration, as
a cascade has, use keys of their own (`descend`).

Keys by absolute position alone would be wrong: the noise of a draft that was
rejected has already influenced how many tokens stand, and would be used again. Only
coupled decoding, where a position's noise decides its token whatever was drafted, goes
by it (`by_position`).
"""

import enum

import jax
from jax import lax
from jax.extend.random import threefry2x32_p
import jax.numpy as jnp

Array = jax.Array

# The generator is fixed, so that a run does not change with jax's default.
_IMPL = "threefry2x32"
_MAX_OFFSETS = 1 << 12
# Counters of noise by position lie in the upper half, those of places in the lower.
_BY_POSITION = 1 << 31


class Role(enum.IntEnum):
  """What a draw is for."""

  DRAFT = 0
  ACCEPT = 1
  RESIDUAL = 2
  BONUS = 3
  INNER = 4


def row_keys(seed: int | Array, example_ids: Array, sample_index: Array | int = 0) -> Array:
  """Keys of rows, a typed key array [B].

  Args:
    seed: of the run, non-negative.
    example_ids: int [B], the place of each row's input in the user's data.
    sample_index: int [B] or scalar, which of several samples per input.
  """
  return row_keys_under(jax.random.key(seed, impl=_IMPL), example_ids, sample_index)


def row_keys_under(base: Array, example_ids: Array, sample_index: Array | int = 0) -> Array:
  """`row_keys` of a run that has a key of its own; see `adopt`."""
  example_ids = jnp.asarray(example_ids, jnp.uint32)
  sample_index = jnp.broadcast_to(jnp.asarray(sample_index, jnp.uint32), example_ids.shape)
  fold = jax.vmap(jax.random.fold_in)
  return fold(jax.vmap(lambda i: jax.random.fold_in(base, i))(example_ids), sample_index)


def adopt(key: Array) -> Array:
  """Our kind of key from another library's: of any generator, typed or as bare words."""
  return jax.random.wrap_key_data(jax.random.bits(key, (2,), jnp.uint32), impl=_IMPL)


def is_key(x: Array) -> bool:
  """Whether an array holds typed keys."""
  return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def no_keys(rows: int) -> Array:
  """Typed keys [rows] that stand for no row: to be replaced before anything is drawn."""
  return jax.random.wrap_key_data(jnp.zeros((rows, 2), jnp.uint32), impl=_IMPL)


def place(role: Role, offset: Array | int) -> Array:
  """Code of a draw's place within an iteration, uint32 of the shape of `offset`.

  Args:
    role: what the draw is for.
    offset: position within the iteration, below 4096.
  """
  return jnp.asarray(role * _MAX_OFFSETS, jnp.uint32) + jnp.asarray(offset, jnp.uint32)


def uniforms(keys: Array, committed: Array, places: Array, needed: Array | bool = True) -> Array:
  """Two uniform draws in [0, 1) for each of the given places of every row.

  Threefry is a block cipher in counter mode (Salmon et al. 2011): under a row's key it
  turns every counter, here (committed, place), into two words of their own. One
  evaluation, then, where folding both numbers into keys and drawing from these would
  take three; a generator is a large part of what XLA compiles.

  Args:
    keys: typed key array [B] from `row_keys`.
    committed: int32 [B], tokens committed when the iteration began.
    places: uint32 [N] from `place`.
    needed: bool scalar; False gives zeros without running the generator, which
      costs a small model on a CPU as much as a layer. Zeros decide a greedy batch
      as any noise would: its distributions are one-hot.

  Returns:
    float32 [B, N, 2], multiples of 2**-23.
  """
  shape = (keys.shape[0], places.shape[0])

  def generate() -> Array:
    bits = _words(keys, committed[:, None], places)
    # As many bits as keep the steps equal over all of [0, 1).
    return (jnp.stack(bits, -1) >> 9).astype(jnp.float32) * jnp.float32(2.0**-23)

  return lax.cond(needed, generate, lambda: jnp.zeros((*shape, 2), jnp.float32))


def by_position(keys: Array, position: Array, ids: Array,
                needed: Array | bool = True) -> Array:
  """A uniform draw in (0, 1) for each of the given ids at each position of every row.

  The noise of an id is the same at every width of the vocabulary.

  Args:
    keys: typed key array [B] from `row_keys`.
    position: int32 [B, N], absolute.
    ids: int32 [B, N, K], or what broadcasts to it.
    needed: see `uniforms`; False gives 1/2 everywhere.

  Returns:
    float32 [B, N, K], odd multiples of 2**-24.
  """
  shape = jnp.broadcast_shapes((*position.shape, 1), ids.shape)

  def generate() -> Array:
    counter = jnp.uint32(_BY_POSITION) + ids.astype(jnp.uint32)
    bits, _ = _words(keys, position[..., None], counter, shape)
    return ((bits >> 9).astype(jnp.float32) + 0.5) * jnp.float32(2.0**-23)

  return lax.cond(needed, generate, lambda: jnp.full(shape, 0.5, jnp.float32))


def descend(keys: Array, committed: Array) -> Array:
  """Keys [B] for what happens inside of one iteration, such as that of a cascade."""
  bits = _words(keys, committed[:, None], place(Role.INNER, jnp.zeros(1)))
  return jax.random.wrap_key_data(jnp.concatenate(bits, -1), impl=_IMPL)


def _words(keys: Array, first: Array, second: Array,
           shape: tuple[int, ...] | None = None) -> tuple[Array, Array]:
  """Threefry of the counters (first, second) under the key of each row."""
  words = jax.random.key_data(keys)
  shape = shape or jnp.broadcast_shapes(first.shape, second.shape)
  column = lambda x: jnp.broadcast_to(x.reshape((-1,) + (1,) * (len(shape) - 1)), shape)
  spread = lambda x: jnp.broadcast_to(x.astype(jnp.uint32), shape)
  return tuple(threefry2x32_p.bind(column(words[:, 0]), column(words[:, 1]), spread(first),
                                   spread(second)))
