"""Memory that does not suffice, told with what to turn."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
from typing import Any

from specdec.errors import SpecdecError


def is_exhausted(error: BaseException) -> bool:
  """Whether an error says that a device, or this machine, has no memory left."""
  return isinstance(error, MemoryError) or (
      isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error))


@contextlib.contextmanager
def told(doing: Callable[[], str]) -> Iterator[None]:
  """Around what takes memory.

  Args:
    doing: what is done and which settings make it smaller, in words; called when there is not
      enough memory.

  Raises:
    SpecdecError: of memory that does not suffice; any other error passes.
  """
  try:
    yield
  except (RuntimeError, MemoryError) as error:
    if not is_exhausted(error):
      raise
    raise SpecdecError(f"not enough memory {doing()} ({reason(error)})") from error


def reason(error: BaseException) -> str:
  """The first line of what a library said."""
  lines = str(error).strip().splitlines()
  return lines[0][:200] if lines else "out of memory"


def while_decoding(settings: Any, dtype: str) -> str:
  """Which settings decide how much a batch takes."""
  half = ", or load with dtype bfloat16" if dtype == "float32" else ""
  samples = f", num_decodes {settings.num_decodes}" if settings.num_decodes > 1 else ""
  return (f"to decode; lower batch_size (it is {settings.batch_size}), max_decode_len "
          f"({settings.max_decode_len}) or max_source_len ({settings.max_source_len}){samples}"
          f"{half}")


def while_loading(name: str, num_params: int, dtype: str) -> str:
  """What decides how much a model takes."""
  size = num_params * (4 if dtype == "float32" else 2) / 2**30
  half = ("load with dtype bfloat16, which takes half of it, or" if dtype == "float32"
          else "expected")
  return f"to load {name}, {size:.2g} GiB in {dtype}; {half} a smaller model"
