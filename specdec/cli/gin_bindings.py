"""What gin binds of a command: settings, models, costs, and its own flags.

Typed flags win over single bindings, and those over files. See `cli.gin_files` for names.
"""

from collections.abc import Sequence
import dataclasses
from typing import TYPE_CHECKING
from typing import Any

from specdec.cli import gin_files
from specdec.cli import hosts
from specdec.cli.flags import Flags
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.engine.costs import Costs
  from specdec.engine.settings import Settings


# Flags that say nothing about what comes out.
_NO_PART = ("overwrite", "compilation_cache_dir")


@dataclasses.dataclass(frozen=True)
class Bound:
  """Values that gin binds.

  Attributes:
    settings: fields of `Settings`, not yet checked.
    pair: arguments of `load_pair`.
    costs: for automatic gamma; None when not bound.
    command: flags of the command.
  """

  settings: dict[str, Any] = dataclasses.field(default_factory=dict)
  pair: dict[str, Any] = dataclasses.field(default_factory=dict)
  costs: "Costs | None" = None
  command: dict[str, Any] = dataclasses.field(default_factory=dict)


def add_flags(flags: Flags) -> None:
  """Adds --gin_file, --gin_bindings and --gin_search_paths in a group of their own."""
  flags.group("Gin")
  flags.texts("gin_file", "FILE", "values bound by a gin file, such as Settings.gamma = 7, or "
              "what specdec tune wrote; may be given several times; typed flags win")
  flags.texts("gin_bindings", "BINDING", "a single binding, after the files; likewise; "
              "--gin.NAME=VALUE is the same as --gin_bindings='NAME = VALUE'")
  flags.texts("gin_search_paths", "DIR", "where to look for gin files, besides here and among "
              "those that come with specdec; likewise, or several with commas between them")


def of_flags(flags: Flags) -> Bound:
  """Reads what the flags name, and fills in flags of the pair and of the command.

  Raises:
    SpecdecError: see `read`; or a file demands a value that nobody gave.
  """
  if not flags.gin_file and not flags.gin_bindings:
    return Bound()
  paths = [path for entry in flags.gin_search_paths for path in entry.split(",") if path]
  bound = read(flags.gin_file, flags.gin_bindings, flags.command, paths)
  other = flags.given("target") or (flags.given("pair") and bound.pair.get("target"))
  # A target that was typed is not put together with half of another pair.
  pair = {name: value for name, value in bound.pair.items()
          if not other or name not in ("pair", "target", "drafter")}
  known = {name: flag for name, flag in gin_files.PAIR_FLAGS.items() if flag in flags.names()}
  typed = {name for name, flag in known.items() if flags.given(flag)}
  _demand({k: v for k, v in pair.items() if k not in typed})
  own = {k: v for k, v in bound.command.items() if not flags.given(k)}
  _demand(own)
  settings = {k: v for k, v in bound.settings.items()
              if k not in flags.names() or not flags.given(k)}
  _demand(settings)
  for name, value in pair.items():
    if name not in known:
      raise SpecdecError(f"gin: load_pair.{name} is bound, and specdec {flags.command} does not "
                         f"know it; drop it (specdec {flags.command} --help lists what it knows)")
    if not isinstance(value, gin_files.Missing | None | str):
      raise SpecdecError(f"gin: load_pair.{name} is {value!r}; expected a text in quotes")
    if isinstance(value, str):
      flags.fill(known[name], value)
  for name, value in own.items():
    if value is not None:
      flags.fill(name, value)
  return dataclasses.replace(bound, settings=settings)


def settings_into_flags(flags: Flags, bound: Bound) -> None:
  """Fills in settings that a command has as flags.

  Raises:
    SpecdecError: it lacks a flag for one that is bound.
  """
  for name, value in bound.settings.items():
    if name not in flags.names():
      raise SpecdecError(f"gin: Settings.{name} is bound, and specdec {flags.command} does not "
                         f"know it; drop it (specdec {flags.command} --help lists what it knows)")
    flags.fill(name, value)


def read(files: Sequence[str], bindings: Sequence[str], command: str = "generate",
         search_paths: Sequence[str] = ()) -> Bound:
  """Values out of gin files and single bindings; later ones win.

  Args:
    files: gin files.
    bindings: single bindings such as "Settings.gamma = 7".
    command: whose own bindings are wanted.
    search_paths: folders to look for files in.

  Raises:
    SpecdecError: a file cannot be read or parsed, or binds something unknown.
  """
  from specdec.engine.costs import Costs

  values = gin_files.read(files, bindings, ("Settings", "load_pair", "Costs", command),
                          search_paths)
  costs = values["Costs"]
  lacking = [name for name in ("iteration", "alpha") if costs and name not in costs]
  if lacking:
    raise SpecdecError(f"gin: Costs.{lacking[0]} is not bound; expected all that specdec tune "
                       "writes")
  _demand(costs)
  return Bound(values["Settings"], values["load_pair"], Costs(**costs) if costs else None,
               values[command])


def operative(flags: Flags, settings: "Settings", costs: "Costs | None") -> str:
  """The text of a gin file with all that took effect in a command.

  Args:
    flags: of the command.
    settings: of the run, the pair's defaults filled in.
    costs: of automatic gamma.
  """
  defaults = {f.name: f.default for f in dataclasses.fields(settings)}
  pair = {name: getattr(flags, flag) for name, flag in gin_files.PAIR_FLAGS.items()
          if flag in flags.names()}
  if pair["target"] is not None:
    del pair["pair"]
  bound = {"Settings": {k: v for k, v in dataclasses.asdict(settings).items()
                        if v is not None or defaults[k] is not None},
           "load_pair": pair, "Costs": dataclasses.asdict(costs) if costs else {},
           flags.command: {name: getattr(flags, name) for name in gin_files.parameters(
               gin_files.configurables()[flags.command])
                if name not in (*_NO_PART, *hosts.FLAGS)}}
  kept = {name: {k: v for k, v in values.items() if v is not None and v != []}
          for name, values in bound.items()}
  return gin_files.text(kept)


def _demand(values: dict[str, Any]) -> None:
  """Refuses what a file demands and nobody gave."""
  for value in values.values():
    if isinstance(value, gin_files.Missing):
      raise SpecdecError(f"gin: {value.name} has no value; type --gin.{value.name}=VALUE, with "
                         f"text in quotes: --gin.{value.name}=\"'some text'\"")
