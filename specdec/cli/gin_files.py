"""Reading gin files: what can be bound, and each mistake in one line.

Names that can be bound are `Settings`, fields of `engine.settings.Settings`; `load_pair`,
arguments of `specdec.load_pair`; `Costs`, fields of `engine.costs.Costs`, as `specdec tune`
writes them; and every command by its name, with those of its flags that are none of these.
What a file binds for another command than the one that runs is checked, and not used.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import difflib
import functools
import importlib
import importlib.util  # gin uses it for files that it cannot find, and does not import it.
import keyword
import logging
import pathlib
import re
from typing import Any

from specdec.errors import SpecdecError

_PACKAGE = pathlib.Path(__file__).parents[1]
# Packed into the package by setup.py; in a working copy they stand beside it.
_FOLDERS = (_PACKAGE / "gin", _PACKAGE.parent / "gin")

# Arguments of `load_pair`, and the flags that say the same.
PAIR_FLAGS = {"pair": "pair", "dtype": "dtype", "target": "target", "drafter": "drafter",
              "vocabulary": "vocab", "mesh": "mesh", "drafter_layout": "drafter_layout"}
_OWN = ("gin_file", "gin_bindings", "gin_search_paths")


@dataclasses.dataclass(frozen=True)
class Missing:
  """Stands for a value that a file demands of its user.

  Attributes:
    name: the macro, or the binding itself.
  """

  name: str


def load_pair(pair=None, dtype=None, target=None, drafter=None, vocabulary=None, mesh=None,
              drafter_layout=None):
  """Stands in for `specdec.load_pair`, whose module would import all of Flax."""


def folder() -> pathlib.Path:
  """The gin files that come with the package."""
  return next((f for f in _FOLDERS if f.is_dir()), _FOLDERS[0])


def read(files: Sequence[str], bindings: Sequence[str], wanted: Sequence[str],
         search_paths: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
  """Values out of gin files and single bindings; later ones win.

  Args:
    files: gin files, found from here, from the search paths or among the package's own.
    bindings: single bindings such as "Settings.gamma = 7".
    wanted: names whose bindings are returned.
    search_paths: folders to look for files in.

  Returns:
    Bound values by name and parameter; `Missing` where a file demands one.

  Raises:
    SpecdecError: a file cannot be read or parsed, or binds something unknown.
  """
  import gin

  known = configurables()
  for name, configurable in known.items():
    try:
      gin.external_configurable(configurable, name, module="specdec")
    except ValueError:
      pass  # Registered by an earlier call in this process.
  for path in (*search_paths, str(folder())):
    _search(path)
  with gin.unlock_config(), _hushed():
    gin.clear_config()
    try:
      gin.parse_config_files_and_bindings(
          list(files), list(bindings), finalize_config=False, print_includes_and_imports=False)
      _check_used(gin.config_str(), bindings, known)
      return {name: _values(gin, name) for name in wanted}
    except SpecdecError:
      raise
    except OSError as error:
      missing = re.match(r"Unable to open file: (.*?)\. Searched", str(error))
      raise SpecdecError(
          f"gin: there is no file {missing[1]}, neither here nor in "
          f"{', '.join([*search_paths, 'the files of specdec'])}; --gin_search_paths adds folders"
          if missing else f"gin: {_line(error)}") from error
    except SyntaxError as error:
      raise SpecdecError(_syntax(error, bindings)) from error
    except Exception as error:
      # gin raises many types, and appends where to the message on further lines.
      raise SpecdecError(_unknown(str(error), known)) from error
    finally:
      gin.clear_config()


@functools.cache
def _search(path: str) -> None:
  """Adds a folder to those where gin looks, for good: gin has no way back."""
  import gin

  gin.add_config_file_search_path(path)


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
  """gin logs every place where a file is not."""
  before = logging.root.manager.disable
  logging.disable(logging.ERROR)
  try:
    yield
  finally:
    logging.disable(before)


def text(bound: dict[str, dict[str, Any]]) -> str:
  """A gin file's text that binds values; see `read`."""
  import gin

  with gin.unlock_config():
    gin.clear_config()
    try:
      for name, configurable in configurables().items():
        try:
          gin.external_configurable(configurable, name, module="specdec")
        except ValueError:
          pass
      for name, values in bound.items():
        for parameter, value in values.items():
          gin.bind_parameter(f"{name}.{parameter}", value)
      return gin.config_str().strip() + "\n"
    finally:
      gin.clear_config()


@functools.cache
def configurables() -> dict[str, Any]:
  """What can be bound, by name."""
  from specdec.cli.main import COMMANDS
  from specdec.engine.costs import Costs
  from specdec.engine.settings import Settings

  known: dict[str, Any] = {"Settings": Settings, "Costs": Costs, "load_pair": load_pair}
  taken = {*PAIR_FLAGS.values(), *parameters(Settings), *_OWN}
  for name, command in COMMANDS.items():
    flags = importlib.import_module(command.module).make_flags()
    if "gin_file" in flags.names():
      own = [flag for flag in flags.names() if flag not in taken and not keyword.iskeyword(flag)]
      known[name] = dataclasses.make_dataclass(name, [(flag, Any, None) for flag in own])
  return known


def parameters(configurable: Any) -> list[str]:
  """Names of what can be bound of one."""
  if dataclasses.is_dataclass(configurable):
    return [f.name for f in dataclasses.fields(configurable)]
  return list(PAIR_FLAGS)


def _values(gin: Any, name: str) -> dict[str, Any]:
  """Bound values of one configurable."""
  written = gin.get_bindings(name, resolve_references=False)
  try:
    values = dict(gin.get_bindings(name))
  except TypeError as error:
    # A macro without a value shows up as a call that lacks its argument.
    macro = str(error).partition("in scope '")[2].partition("'")[0]
    users = [f"{name}.{key}" for key, value in written.items() if f"%{macro}" in repr(value)]
    where = f" in {users[0]}" if users else ""
    raise SpecdecError(f"gin: the macro {macro}{where} has no value; add {macro} = VALUE, or type "
                       f"--gin.{macro}=VALUE" if macro else f"gin: {_line(error)}") from error
  for key, value in values.items():
    if value is gin.REQUIRED:
      macro = repr(written[key]).removeprefix("%")
      values[key] = Missing(macro if macro.isidentifier() else f"{name}.{key}")
  return values


def _check_used(config: str, bindings: Sequence[str], known: dict[str, Any]) -> None:
  """Refuses single bindings of names that nothing uses: a misspelt macro is one to gin.

  Raises:
    SpecdecError: one is.
  """
  used = set(re.findall(r"%([\w.]+)", config))
  for name in re.findall(r"^([A-Za-z_][\w./]*)\s*=", "\n".join(bindings), re.MULTILINE):
    if "/" in name:
      raise SpecdecError(f"gin: {name} is bound within a scope; expected {name.rpartition('/')[2]}")
    if "." in name or name in used:
      continue
    near = _owner(name, known) or difflib.get_close_matches(name, used, 1)
    hint = f"did you mean {near[0]}?" if near else (
        f"these can be bound: {', '.join(sorted(used))}" if used else "drop it")
    raise SpecdecError(f"gin: {name} is bound, and nothing uses it; {hint}")


def _syntax(error: SyntaxError, bindings: Sequence[str]) -> str:
  """One line about something that gin cannot parse."""
  number = error.lineno or 1
  lines: list[str] = []
  if error.filename is None:
    where, lines = f"--gin_bindings line {number}", "\n".join(bindings).split("\n")
  else:
    where = f"{error.filename} line {number}"
    try:
      lines = pathlib.Path(error.filename).read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
      pass  # Found on a search path: its name and line say enough.
  line = lines[number - 1].strip() if number <= len(lines) else ""
  name, equals, value = (part.strip() for part in line.partition("="))
  if value.lower() in ("true", "false"):
    hint = f"write {value.capitalize()}"
  elif equals and value and value[0] not in "'\"[({%@-" and not value[0].isdigit():
    typed = f", typed as --gin.{name}=\"'{value}'\"" if error.filename is None else ""
    hint = f"text goes in quotes: {name} = '{value}'{typed}"
  else:
    hint = "expected NAME = VALUE with text in quotes"
  return f"gin: {where}: {line or error.msg}: {hint}"


def _unknown(message: str, known: dict[str, Any]) -> str:
  """One line about a name that gin does not know."""
  head, _, rest = message.partition("\n")
  place = re.search(r'In file "(.*)", line (\d+)|In bindings string line (\d+)', rest)
  where = ""
  if place:
    where = f"{place[1]} line {place[2]}: " if place[1] else f"--gin_bindings line {place[3]}: "
    line = rest[place.end():].strip().split("\n")[0].strip()
    where += f"{line}: " if line else ""
  if found := re.search(r"No configurable matching (?:reference )?'@?([^'()]*)", head):
    names = list(known)
    said = f"there is no {found[1]}"
    near = difflib.get_close_matches(found[1].rpartition(".")[2], names, 1)
  elif found := re.search(r"'([\w.]+)' doesn't have a parameter named '(\w+)'", head):
    owner = found[1].rpartition(".")[2]
    names = parameters(known[owner]) if owner in known else []
    said = f"{owner} has no {found[2]}"
    near = _owner(found[2], known) or difflib.get_close_matches(found[2], names, 1)
  else:
    return f"gin: {where}{head or _line(message)}"
  hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(sorted(names))}"
  return f"gin: {where}{said}; {hint}"


def _owner(parameter: str, known: dict[str, Any]) -> list[str]:
  """The very parameter elsewhere, where it is a setting or says which models."""
  pair = {flag: name for name, flag in PAIR_FLAGS.items()}.get(parameter, parameter)
  if parameter in parameters(known["Settings"]):
    return [f"Settings.{parameter}"]
  return [f"load_pair.{pair}"] if pair in PAIR_FLAGS else []


def _line(error: Any) -> str:
  """The message in one line."""
  return " ".join(str(error).split())
