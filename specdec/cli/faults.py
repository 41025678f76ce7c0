"""Failures that are not the program's: told in one line, where a user can change them."""

from collections.abc import Iterator
import contextlib
import os
from typing import TYPE_CHECKING

from specdec.errors import InputError
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.cli.inputs import Inputs

# The flags that decide how much memory decoding needs.
DECODING = ("--batch_size, --max_decode_len or --max_source_len, or load half as much with "
            "--dtype=bfloat16")


@contextlib.contextmanager
def in_a_line(smaller: str, inputs: "Inputs | None" = None) -> Iterator[None]:
  """Around the work of a command: tells in a line what a user can change.

  Args:
    smaller: the flags that decide how much memory is needed.
    inputs: what was read, to say where a faulty input stands.

  Raises:
    SpecdecError: of such a fault; any other keeps its trace.
  """
  try:
    yield
  except InputError as error:
    if inputs is None:
      raise
    raise SpecdecError(f"{inputs.where(error.index)} {error.problem}") from error
  except (RuntimeError, MemoryError) as error:
    found = told(error, smaller)
    if found is None:
      raise
    raise found from error


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
