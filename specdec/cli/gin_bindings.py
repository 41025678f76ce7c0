"""What gin files bind, read before any model loads.

Three things can be bound: `Settings`, fields of `engine.settings.Settings`; `load_pair`,
arguments of `specdec.load_pair`; and `Costs`, fields of `engine.costs.Costs`, as `specdec tune`
writes them.
"""

from collections.abc import Sequence
import dataclasses
from typing import TYPE_CHECKING
from typing import Any

from specdec.cli.flags import Flags
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.engine.costs import Costs


@dataclasses.dataclass(frozen=True)
class Bound:
  """Values that gin binds.

  Attributes:
    settings: fields of `Settings`, not yet checked.
    pair: arguments of `load_pair`.
    costs: for automatic gamma; None when not bound.
  """

  settings: dict[str, Any] = dataclasses.field(default_factory=dict)
  pair: dict[str, Any] = dataclasses.field(default_factory=dict)
  costs: "Costs | None" = None


def add_flags(flags: Flags) -> None:
  """Adds --gin_file and --gin_bindings in a group of their own."""
  flags.group("Gin")
  flags.texts("gin_file", "FILE", "settings bound by a gin file, such as Settings.gamma = 7, or "
              "what specdec tune wrote; may be given several times; typed flags win")
  flags.texts("gin_bindings", "BINDING", "a single binding, after the files; likewise")


def of_flags(flags: Flags) -> Bound:
  """Reads what the flags name, and fills in the flags that name the pair.

  Raises:
    SpecdecError: see `read`.
  """
  if not flags.gin_file and not flags.gin_bindings:
    return Bound()
  bound = read(flags.gin_file, flags.gin_bindings)
  other = flags.given("target") or (flags.given("pair") and bound.pair.get("target"))
  for name, value in bound.pair.items():
    if other and name in ("pair", "target", "drafter"):
      continue  # A target that was typed is not put together with half of another pair.
    if value is not None:
      flags.fill("vocab" if name == "vocabulary" else name, value)
  return bound


def load_pair(pair=None, dtype=None, target=None, drafter=None, vocabulary=None):
  """Stands in for `specdec.load_pair`, whose module would import all of Flax."""


def read(files: Sequence[str], bindings: Sequence[str]) -> Bound:
  """Values out of gin files and single bindings; later ones win.

  Args:
    files: gin files.
    bindings: single bindings such as "Settings.gamma = 7".

  Raises:
    SpecdecError: a file cannot be read or parsed, or binds something unknown.
  """
  import gin
  from specdec.engine.costs import Costs
  from specdec.engine.settings import Settings

  for what, name in ((Settings, "Settings"), (Costs, "Costs"), (load_pair, "load_pair")):
    try:
      gin.external_configurable(what, name, module="specdec")
    except ValueError:
      pass  # Registered by an earlier call in this process.
  with gin.unlock_config():
    gin.clear_config()
    try:
      gin.parse_config_files_and_bindings(
          list(files), list(bindings), finalize_config=False, print_includes_and_imports=False)
      settings, pair, costs = (dict(gin.get_bindings(name))
                               for name in ("Settings", "load_pair", "Costs"))
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
  for name, value in pair.items():
    if value is not None and not isinstance(value, str):
      raise SpecdecError(f"gin: load_pair.{name} is {value!r}; expected a text in quotes")
  lacking = [name for name in ("iteration", "alpha") if costs and name not in costs]
  if lacking:
    raise SpecdecError(f"gin: Costs.{lacking[0]} is not bound; expected all that specdec tune "
                       "writes")
  return Bound(settings, pair, Costs(**costs) if costs else None)


def _line(error: Exception) -> str:
  """The message in one line."""
  return " ".join(str(error).split())
