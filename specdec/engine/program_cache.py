"""Compiled programs on disk: a shape is compiled once, and read by every later process.

The files are JAX's own persistent compilation cache. What is read from there is run: whoever
can write to the folder can run code as its user, so that a new one is its user's alone.
"""

import contextlib
import os
import pathlib
import tempfile
from typing import Any

import jax

VARIABLE = "SPECDEC_COMPILATION_CACHE_DIR"
NONE = "none"
_JAX_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
# Programs that compile faster than that are not worth a file.
_LEAST_SECONDS = 0.1
# Beyond so much the oldest files go when a process begins; a program takes some 0.2 to 2 MB.
_MOST_BYTES = 4 * 2**30

_ours: str | None = None


def default_folder() -> pathlib.Path:
  """Where programs are kept unless somebody says otherwise.

  Raises:
    RuntimeError: there is no home.
  """
  cache = os.environ.get("XDG_CACHE_HOME")
  return (pathlib.Path(cache) if cache else pathlib.Path.home() / ".cache") / "specdec" / "xla"


def folder() -> str | None:
  """Where programs are kept now; None for nowhere."""
  return jax.config.jax_compilation_cache_dir or None


def chosen_elsewhere() -> bool:
  """Whether the folder is one that JAX's own variable or configuration names."""
  return bool(os.environ.get(_JAX_VARIABLE)) or folder() not in (None, _ours)


def keep_in(path: str | pathlib.Path) -> str | None:
  """Has programs kept in a folder from now on.

  Args:
    path: made where there is none.

  Returns:
    Why that cannot be, in words, and nothing is changed then; None when it can.
  """
  global _ours
  try:
    path = pathlib.Path(path).expanduser().absolute()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path) as f:
      f.write(b"x")
  except (OSError, ValueError, RuntimeError) as error:
    return f"cannot write to {path}: {getattr(error, 'strerror', None) or error}"
  _trim(path)
  _ours = str(path)
  _set("jax_compilation_cache_dir", _ours)
  if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
    _set("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
  return None


def _set(name: str, value: Any) -> None:
  jax.config.update(name, value)


def _trim(path: pathlib.Path) -> None:
  """Removes the oldest programs when there are too many; others may do so at the same time."""
  with contextlib.suppress(OSError):
    found = sorted((file.stat().st_mtime, file.stat().st_size, file)
                   for file in path.glob("*-cache"))
    left = sum(size for _, size, _ in found)
    for _, size, file in found:
      if left <= _MOST_BYTES:
        return
      file.unlink(missing_ok=True)
      left -= size
