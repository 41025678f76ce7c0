"""What a T5X job has bound, by gin or by `functools.partial`, to a function that is not called."""

from collections.abc import Callable
import functools
import inspect
from typing import Any

import gin
from specdec.errors import SpecdecError


def of(function: Callable[..., Any], name: str) -> dict[str, Any]:
  """The parameters that a caller of `function` would find set already.

  Args:
    function: bare, wrapped by gin, or a partial of one of these.
    name: for messages.

  Returns:
    Values by name, those of gin resolved.

  Raises:
    SpecdecError: they cannot be told: a scope of gin, or parameters without names.
  """
  if isinstance(function, functools.partial):
    if function.args:
      raise SpecdecError(f"{name} is a functools.partial with positional arguments; expected "
                         "them by name")
    return of(function.func, name) | function.keywords
  try:
    return dict(gin.get_bindings(function))
  except ValueError:
    # Not registered; or wrapped again, as gin does for a scope, which is not told from here.
    if inspect.unwrap(function) is not function:
      raise SpecdecError(f"{name} is wrapped in a gin scope or another decorator, so that what "
                         "is bound to it cannot be read; expected a reference without a scope, "
                         "such as @decoding.temperature_sample") from None
    return {}


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
  """A function without its partials and wrappers."""
  while isinstance(function, functools.partial):
    function = function.func
  return inspect.unwrap(function)
