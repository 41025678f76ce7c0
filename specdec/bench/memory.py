"""How fast this machine reads memory: the yardstick of decoding at batch 1.

Several ways of reading one large buffer are measured, because none is the fastest on
every machine; the fastest counts, so that nothing looks better than it is.
"""

from collections.abc import Callable
from concurrent import futures
import os

import jax
import jax.numpy as jnp
import numpy as np

# Far more than any last-level cache of today's servers shares with two cores.
BUFFER_BYTES = 512 * 2**20
_ROW = 8192


def readers(size: int = BUFFER_BYTES) -> dict[str, Callable[[], object]]:
  """Ways of reading a float32 buffer of `size` bytes once, by name.

  Each uses all cores and returns when it is done. `size` is a multiple of 32 KiB.
  """
  matrix = jnp.ones((size // (4 * _ROW), _ROW), jnp.float32)
  vector = jnp.ones((_ROW,), jnp.float32)
  # Arguments, as a constant would be folded away.
  product = jax.jit(lambda m, v: m @ v)
  total = jax.jit(lambda m: m.sum())
  ways: dict[str, Callable[[], object]] = {
      "XLA matrix-vector product": lambda: jax.block_until_ready(product(matrix, vector)),
      "XLA sum": lambda: jax.block_until_ready(total(matrix)),
  }
  if jax.default_backend() == "cpu":
    cores = os.cpu_count() or 1
    pool = futures.ThreadPoolExecutor(cores)
    parts = np.array_split(np.asarray(matrix), cores)  # Views of the same memory.
    ways[f"NumPy sum, {cores} threads"] = lambda: list(pool.map(np.sum, parts))
  return ways
