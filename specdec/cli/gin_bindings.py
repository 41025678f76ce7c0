"""Settings bound by gin files, read before any model loads."""

from collections.abc import Sequence
from typing import Any

from specdec.errors import SpecdecError


def read_settings(files: Sequence[str], bindings: Sequence[str]) -> dict[str, Any]:
  """Values that gin binds to `Settings`; later bindings win.

  Args:
    files: gin files.
    bindings: single bindings such as "Settings.gamma = 7".

  Returns:
    Bound fields of `Settings`, not yet checked.

  Raises:
    SpecdecError: a file cannot be read or parsed, or binds something unknown.
  """
  import gin
  from specdec.engine.settings import Settings

  try:
    gin.external_configurable(Settings, "Settings", module="specdec")
  except ValueError:
    pass  # Registered by an earlier call in this process.
  with gin.unlock_config():
    gin.clear_config()
    try:
      gin.parse_config_files_and_bindings(
          list(files), list(bindings), finalize_config=False, print_includes_and_imports=False)
      return dict(gin.get_bindings("Settings"))
    except OSError as error:
      raise SpecdecError(f"gin: {_line(error)}") from error
    except SyntaxError as error:
      where = f"{error.filename or '--gin_bindings'} line {error.lineno}"
      raise SpecdecError(f"gin: {where}: {error.msg}; expected NAME = VALUE with text in "
                         "quotes") from error
    except TypeError as error:
      # A macro without a value shows up as a call that lacks its argument.
      scope = str(error).partition("in scope '")[2].partition("'")[0]
      raise SpecdecError(f"gin: the macro {scope} has no value; add {scope} = VALUE" if scope
                         else f"gin: {_line(error)}") from error
    except Exception as error:
      # gin raises many types, and appends where to the message on further lines.
      raise SpecdecError(f"gin: {_line(error)}") from error
    finally:
      gin.clear_config()


def _line(error: Exception) -> str:
  """The message in one line."""
  return " ".join(str(error).split())
