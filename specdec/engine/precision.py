"""Dtype and matrix precision per device."""

import contextlib

import jax


def default_dtype() -> str:
  """float32 on CPU, where bfloat16 matrix-vector products are slow; else bfloat16."""
  return "float32" if jax.default_backend() == "cpu" else "bfloat16"


def matmul_precision(dtype: str) -> contextlib.AbstractContextManager:
  """Full precision for float32, so that no TF32 or bf16 pass creeps in.

  With it greedy speculative decoding gives plain decoding's ids on every device;
  without it a TPU multiplies float32 matrices in bfloat16 passes.
  """
  return jax.default_matmul_precision("highest" if dtype == "float32" else "default")
