"""The matrix product of a few rows on a CPU, reading the matrix once."""

import jax
from jax import lax
import jax.numpy as jnp

Array = jax.Array

# Beyond so many rows a packed product is faster, and beyond so many at a time two of these.
FEW_ROWS = 64
_AT_A_TIME = 32


def few_rows(x: Array, kernel: Array) -> Array:
  """`x @ kernel.T` for 2 to 64 rows, float32 [M, I] and [O, I] -> [M, O].

  XLA's CPU backend multiplies one row by a matrix as fast as it reads the matrix. With
  several rows it matters which of the two comes first: the second operand of its product
  is packed into blocks, which for a matrix of weights takes longer than the product
  itself (five rows cost some 2.8 times as much as one). So the matrix comes first and the
  rows, few as they are, get packed: 1.2 times for four rows, 1.3 for eight, 1.8 for
  sixteen and 3.4 for thirty-two, which take 8 the other way around. A power of two of
  rows, four at least, fits the vector registers.
  """
  count = x.shape[0]
  if count > _AT_A_TIME:
    return jnp.concatenate([few_rows(x[:_AT_A_TIME], kernel), few_rows(x[_AT_A_TIME:], kernel)])
  lanes = max(4, 1 << (count - 1).bit_length())
  x = jnp.pad(x, ((0, lanes - count), (0, 0)))
  out = lax.dot_general(kernel, x, (((1,), (1,)), ((), ())))
  # Without the barrier the transposition goes into the product and the operands change
  # places again.
  return lax.optimization_barrier(out)[:, :count].T
