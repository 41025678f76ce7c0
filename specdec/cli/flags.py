"""Flags of a command: absl's parsing, our own help page and error messages.

Each command has flag values of its own rather than absl's global ones, so that a
command knows its flags alone and no imported library adds to them.
"""

from collections.abc import Sequence
import difflib
import textwrap
from typing import Any

from absl import flags as absl_flags

from specdec.errors import SpecdecError

_WIDTH = 88
_INDENT = 26


class _Number(absl_flags.ArgumentParser):
  """Parses an int or float, or a word instead of it, and says what it expected."""

  def __init__(self, kind: type, expected: str, word: str | None = None):
    super().__init__()
    self._kind, self._expected, self._word = kind, expected, word

  def parse(self, argument):
    if argument == self._word and self._word is not None:
      return argument
    try:
      return self._kind(argument)
    except (TypeError, ValueError):
      raise ValueError(f"expected {self._expected}") from None

  def flag_type(self) -> str:
    return self._kind.__name__


class _Choice(absl_flags.ArgumentParser):
  """Parses one word out of a few."""

  def __init__(self, choices: Sequence[str]):
    super().__init__()
    self._choices = choices

  def parse(self, argument):
    if argument not in self._choices:
      raise ValueError(f"expected one of {', '.join(self._choices)}")
    return argument

  def flag_type(self) -> str:
    return "choice"


class _Switch(absl_flags.BooleanParser):
  """Parses a boolean and says what it expected."""

  def parse(self, argument):
    try:
      return super().parse(argument)
    except (TypeError, ValueError):
      raise ValueError("expected true or false, or the flag alone") from None


# What absl adds to every set of flags.
_ABSL = ("flagfile", "undefok")


def _typed(value: Any) -> str:
  """A value as somebody would type it."""
  if isinstance(value, str):
    return value
  if isinstance(value, list | tuple):
    return ",".join(map(_typed, value))
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise ValueError("expected a text in quotes or a number")
  return str(value)


class Flags:
  """Flags of one command, in the order and groups of its help page.

  Args:
    command: its name.
    intro: first part of the help page: what the command does and how it is typed.
    outro: last part, examples.
  """

  def __init__(self, command: str, intro: str, outro: str = ""):
    self.command = command
    self._intro, self._outro = intro, outro
    self._values = absl_flags.FlagValues()
    self._values.set_gnu_getopt(True)
    self._groups: dict[str, list[tuple[str, str]]] = {}
    self._filled: set[str] = set()

  def __getattr__(self, name: str):
    return self._values[name].value

  def given(self, name: str) -> bool:
    """Whether the user typed the flag."""
    return bool(self._values[name].present)

  def named(self, name: str) -> bool:
    """Whether the user typed the flag, or a file filled it in."""
    return self.given(name) or name in self._filled

  def names(self) -> list[str]:
    """Names of all flags."""
    return [name for name in self._values if name not in _ABSL]

  def fill(self, name: str, value: Any) -> None:
    """Gives a flag that was not typed the value that a file has for it.

    Args:
      name: of the flag.
      value: text, a number, a truth value, or a list of texts or numbers.

    Raises:
      SpecdecError: it has no such value.
    """
    if self.given(name):
      return
    flag = self._values[name]
    try:
      # Not `parse` of the flag, which would mark it as typed.
      if isinstance(flag.parser, _Switch):
        if not isinstance(value, bool):
          raise ValueError("expected True or False")
        flag.value = value
      elif isinstance(flag, absl_flags.MultiFlag):
        flag.value = [value] if isinstance(value, str) else [str(entry) for entry in value]
      else:
        flag.value = flag.parser.parse(_typed(value))
      self._filled.add(name)
    except (TypeError, ValueError) as error:
      raise SpecdecError(f"{name} is {value!r}; {error}") from None

  def group(self, title: str) -> None:
    """Begins a group of the help page; flags defined from now on belong to it."""
    self._groups[title] = []

  def text(self, name: str, default: str | None, hint: str, summary: str) -> None:
    """Defines a flag with a text value, called `hint` on the help page."""
    absl_flags.DEFINE_string(name, default, summary, flag_values=self._values)
    self._describe(f"--{name}={hint}", default, summary)

  def texts(self, name: str, hint: str, summary: str) -> None:
    """Defines a flag that may be typed several times; its value is a list."""
    absl_flags.DEFINE_multi_string(name, [], summary, flag_values=self._values)
    self._describe(f"--{name}={hint}", None, summary)

  def whole(self, name: str, default: int | None, summary: str, word: str | None = None) -> None:
    """Defines an integer flag; `word` may be typed in place of a number."""
    expected = "an integer" if word is None else f"an integer or {word}"
    absl_flags.DEFINE(_Number(int, expected, word), name, default, summary,
                      flag_values=self._values)
    self._describe(f"--{name}=N" if word is None else f"--{name}=N|{word}", default, summary)

  def number(self, name: str, default: float, summary: str) -> None:
    """Defines a flag with a real value."""
    absl_flags.DEFINE(_Number(float, "a number"), name, default, summary,
                      flag_values=self._values)
    self._describe(f"--{name}=X", f"{default:g}", summary)

  def choice(self, name: str, choices: Sequence[str], default: str, summary: str) -> None:
    """Defines a flag whose value is one of a few words."""
    absl_flags.DEFINE(_Choice(choices), name, default, summary, flag_values=self._values)
    self._describe(f"--{name}={'|'.join(choices)}", default, summary)

  def switch(self, name: str, summary: str) -> None:
    """Defines a flag that is off unless typed."""
    absl_flags.DEFINE_flag(
        absl_flags.Flag(_Switch(), None, name, False, summary, boolean=True),
        flag_values=self._values)
    self._describe(f"--{name}", None, summary)

  def _describe(self, usage: str, default, summary: str) -> None:
    if default is not None:
      summary = f"{summary} [{default}]"
    list(self._groups.values())[-1].append((usage, summary))

  def help(self) -> str:
    """The help page."""
    parts = [self._intro.strip()]
    for title, entries in self._groups.items():
      lines = [title]
      for usage, summary in entries:
        text = textwrap.wrap(summary, _WIDTH - _INDENT)
        head = f"  {usage}".ljust(_INDENT)
        if len(head) > _INDENT or not head.endswith(" "):
          lines.append(head)
          head = " " * _INDENT
        lines.append(head + text[0])
        lines += [" " * _INDENT + line for line in text[1:]]
      parts.append("\n".join(lines))
    if self._outro:
      parts.append(self._outro.strip())
    return "\n\n".join(parts)

  def parse(self, args: Sequence[str]) -> list[str]:
    """Parses arguments and returns those that are not flags.

    Raises:
      SpecdecError: a flag is unknown, lacks its value or has a wrong one.
    """
    if "gin_bindings" in self._values:
      args = _gin_short(args)
    try:
      return self._values([self.command, *args])[1:]
    except absl_flags.UnrecognizedFlagError as error:
      raise SpecdecError(self._unknown(error.flagname)) from None
    except absl_flags.IllegalFlagValueError as error:
      raise SpecdecError(str(error).removeprefix("flag ").replace(": expected", "; expected", 1)
                         ) from None
    except (absl_flags.Error, ValueError, OSError) as error:
      raise SpecdecError(f"{error}; see specdec {self.command} --help") from None

  def _unknown(self, name: str) -> str:
    text = (f"unknown flag --{name}" if not name[:1].isdigit() and " " not in name else
            f"{'-' + name!r} looks like a flag; put -- before texts that begin with a dash")
    known = list(self._values)
    near = ([k for k in known if name and k.startswith(name)][:1]
            or difflib.get_close_matches(name, known, 1))
    if near:
      text += f"; did you mean --{near[0]}?"
    return f"{text} (specdec {self.command} --help lists them)"


def _gin_short(args: Sequence[str]) -> list[str]:
  """`--gin.NAME=VALUE`, as T5X has it, in full: `--gin_bindings=NAME = VALUE`."""
  end = args.index("--") if "--" in args else len(args)
  written = []
  for arg in args[:end]:
    name, equals, value = arg.lstrip("-").removeprefix("gin.").partition("=")
    if arg.startswith(("--gin.", "-gin.")):
      if not equals:
        raise SpecdecError(f"{arg} has no value; expected --gin.{name}=VALUE")
      arg = f"--gin_bindings={name} = {value}"
    written.append(arg)
  return [*written, *args[end:]]
