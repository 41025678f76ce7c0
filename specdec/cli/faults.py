"""Failures that are not the program's: told in one line, where a user can change them."""

import os

from specdec.errors import SpecdecError


def told(error: Exception, smaller: str) -> SpecdecError | None:
  """What a user can change, in words; None for a fault, which keeps its trace.

  Args:
    error: what was raised while models were loaded or run.
    smaller: the flags that decide how much memory is needed.
  """
  text = str(error).strip().splitlines()[0] if str(error).strip() else ""
  if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
    return SpecdecError(f"not enough memory; lower {smaller} ({text or 'out of memory'})")
  if "initialize backend" in text:
    platforms = os.environ.get("JAX_PLATFORMS", "")
    return SpecdecError(f"jax cannot start (JAX_PLATFORMS={platforms!r}): {text}")
  return None
