"""Matrix products in bfloat16 with float32 sums, for training."""

import functools
import pathlib
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

Array = jax.Array


def _product(a: Array, b: Array, dims) -> Array:
  return lax.dot_general(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16), (dims, ((), ())),
                         preferred_element_type=jnp.float32)


@jax.custom_vjp
def _matmul(a: Array, b: Array) -> Array:
  return _product(a, b, ((1,), (0,)))


def _matmul_fwd(a, b):
  return _matmul(a, b), (a, b)


def _matmul_bwd(residuals, g):
  a, b = residuals
  grad_a = _product(g, b, ((1,), (1,))).astype(a.dtype)
  # The sum over rows stays float32: XLA's CPU backend transposes both operands
  # of a bfloat16 product of this form and loses more than it gains.
  grad_b = lax.dot_general(a, g, (((0,), (0,)), ((), ()))).astype(b.dtype)
  return grad_a, grad_b


_matmul.defvjp(_matmul_fwd, _matmul_bwd)


@functools.wraps(lax.dot_general)
def mixed_dot_general(a: Array, b: Array, dimension_numbers: Any,
                      preferred_element_type: Any = None, **_: Any) -> Array:
  """A `[M, K] x [K, N]` product with bfloat16 operands and float32 sums.

  Values and the gradient of the left operand; the gradient of the weights is a
  float32 product. On processors with matrix units (TPU, GPU, CPUs with
  AMX) this is several times faster than float32; elsewhere it costs accuracy and
  gains nothing.

  Raises:
    ValueError: the product is not a plain matrix product.
  """
  if tuple(map(tuple, dimension_numbers[0])) != ((1,), (0,)) or a.ndim != 2:
    raise ValueError(f"mixed_dot_general takes [M, K] x [K, N], got {dimension_numbers}")
  return _matmul(a, b).astype(preferred_element_type or jnp.float32)


def dot_general() -> Any:
  """The product to train with here: mixed where the processor has matrix units.

  Otherwise plain float32, which without them is as fast and more accurate.
  """
  if jax.default_backend() != "cpu":
    return mixed_dot_general
  try:
    described = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
  except OSError:
    described = ""
  return mixed_dot_general if "amx_bf16" in described else lax.dot_general
