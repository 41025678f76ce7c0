"""Flags whose value is a list of numbers, such as `1,2,4`."""

from collections.abc import Callable
import math
from typing import Any

from specdec.errors import SpecdecError


def numbers(name: str, text: str, kind: type, allowed: Callable[[Any], bool],
            expected: str) -> list:
  """Reads a list.

  Args:
    name: of the flag, for messages.
    text: its value.
    kind: int or float.
    allowed: which numbers are.
    expected: those in words, for messages.

  Raises:
    SpecdecError: it is empty, or an entry is no such number.
  """
  try:
    values = [kind(part) for part in text.split(",")]
  except ValueError:
    values = []
  if not values or not all(math.isfinite(v) and allowed(v) for v in values):
    raise SpecdecError(f"--{name} is {text!r}; expected {expected}, with commas between them")
  return values
