"""How a user names a drafter: `--drafter=SPEC` and `load_pair(drafter=SPEC)`.

    SPEC    PART, or PART+PART+...: each part drafts for the next, the last for the target
    PART    NAME, or NAME:OPTION=N,OPTION=N
    NAME    copy              what the input and the output said before; options max_match
                              (1 to 63), min_match (0 to max_match)
            uniform           any token at random
            a pair's own      a name out of the table "drafters" of its pair.json, or the
                              folder that it calls its "drafter"
            a path            the folder of a T5 of any layout, of n-gram tables or of heads;
                              or the name of a T5 on Hugging Face's hub

A part that drafts for another must be followed by a T5, and has an option of its own: gamma
(1 to 64), the tokens that it drafts at a time. A name of the pair's goes before a folder of
the same name, which can be typed as ./NAME; a folder whose very name is the whole of SPEC
goes before the grammar.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import difflib
import os
import pathlib
import re

from specdec.checkpoints import drafter_folder
from specdec.checkpoints import stores
from specdec.engine.settings import MAX_GAMMA
from specdec.errors import SpecdecError

MAX_MATCH = 63
DEFAULT_INNER_GAMMA = 2

# Options of the kinds that need no folder, with their least and highest values.
WORDS: dict[str, dict[str, tuple[int, int]]] = {
    "copy": {"max_match": (1, MAX_MATCH), "min_match": (0, MAX_MATCH)},
    "uniform": {},
}
_INNER = {"gamma": (1, MAX_GAMMA)}
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_EXPECTED = ("a folder of a T5, of n-gram tables or of heads, or the name of a T5 on Hugging "
             "Face's hub")


@dataclasses.dataclass(frozen=True)
class Part:
  """One drafter of a spec, as it was typed.

  Attributes:
    name: of a kind, of a pair's drafter, or a path.
    options: by name, in the order of typing.
  """

  name: str
  options: tuple[tuple[str, int], ...] = ()

  def __str__(self) -> str:
    options = ",".join(f"{name}={value}" for name, value in self.options)
    return f"{self.name}:{options}" if options else self.name


@dataclasses.dataclass(frozen=True)
class Known:
  """What the names of a spec may stand for.

  Attributes:
    pair: name of the pair, whatever its drafter.
    folders: of a pair's own drafters, by name.
    target: path of the target, "" when it has none.
    vocabulary: named by the user for all models, or None.
  """

  pair: str = ""
  folders: Mapping[str, str | pathlib.Path] = dataclasses.field(default_factory=dict)
  target: str | pathlib.Path = ""
  vocabulary: str | pathlib.Path | None = None

  @property
  def names(self) -> list[str]:
    """Kinds of drafters, and the pair's own."""
    return [*WORDS, *self.folders]


@dataclasses.dataclass(frozen=True)
class Planned:
  """A part that was looked up and found sound.

  Attributes:
    part: as typed.
    kind: "copy", "uniform", "t5", "ngram" or "heads".
    path: of its folder, or a name on the hub; "" for none.
    options: those that were typed; with `gamma` for a part that drafts for another.
  """

  part: Part
  kind: str
  path: str | pathlib.Path
  options: Mapping[str, int]


def parse(text: str) -> tuple[Part, ...]:
  """Takes a spec to pieces; what they are called is not looked at.

  Raises:
    SpecdecError: it is not of the grammar.

  >>> [part.name for part in parse("bigram:gamma=3+drafter")]
  ['bigram', 'drafter']
  """
  pieces = [piece.strip() for piece in text.split("+")]
  if not all(pieces):
    what = "is empty" if len(pieces) == 1 else "has an empty part"
    raise SpecdecError(f"the drafter {text!r} {what}; expected a name such as {', '.join(WORDS)} "
                       f"or {_EXPECTED}, or several with + between them")
  return tuple(map(_part, pieces))


def _part(text: str) -> Part:
  name, colon, options = text.rpartition(":")
  # The colon of gs://bucket belongs to the name.
  if not colon or "/" in options:
    return Part(text)
  if not name:
    raise SpecdecError(f"{text!r} is no drafter: there is no name before the colon; expected "
                       "NAME:OPTION=N")
  found: dict[str, int] = {}
  for option in options.split(","):
    key, equals, value = option.partition("=")
    number = int(value) if re.fullmatch("-?[0-9]{1,18}", value) else None
    if not key or not equals or number is None:
      raise SpecdecError(f"option {option!r} of the drafter {text!r} is not understood; expected "
                         "OPTION=N with an integer N, such as copy:max_match=4")
    if key in found:
      raise SpecdecError(f"option {key} is given twice in the drafter {text!r}; drop one")
    found[key] = number
  return Part(name, tuple(found.items()))


def plan(spec: str | Sequence[Part], known: Known) -> tuple[Planned, ...]:
  """Looks up what a spec names, reading no weights.

  Args:
    spec: as typed, or taken to pieces.
    known: what its names may stand for.

  Returns:
    One entry per part, the last of them drafts for the target.

  Raises:
    SpecdecError: a name, an option or a combination is wrong.
  """
  parts = read(spec, known) if isinstance(spec, str) else spec
  found = []
  for i, part in enumerate(parts):
    kind, path = _look_up(part.name, known)
    if i and kind != "t5":
      raise SpecdecError(f"{part.name} is {_told(kind)} and cannot be drafted for, which only a "
                         f"T5 can: expected a T5 behind the + after {parts[i - 1].name}")
    if kind == "heads" and len(parts) > 1:
      raise SpecdecError(f"{part.name} holds heads, which see the target's own states and draft "
                         "for it alone; drop the +")
    found.append(Planned(part, kind, path, _options(part, kind, i + 1 < len(parts))))
  _check_loops(found, known)
  return tuple(found)


def read(text: str, known: Known) -> Sequence[Part]:
  """`parse`, but for a folder whose name has a + or a colon in it."""
  if text not in known.names and not stores.is_remote(text) and os.path.lexists(text):
    return (Part(text),)
  return parse(text)


def _look_up(name: str, known: Known) -> tuple[str, str | pathlib.Path]:
  """Kind and path of what a name stands for."""
  if name in WORDS:
    return name, ""
  path = known.folders.get(name, name)
  there = stores.is_remote(path) or os.path.lexists(path)
  if not there and "/" not in name and name not in known.folders:
    near = difflib.get_close_matches(name, known.names, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise SpecdecError(f"there is no drafter {name!r}{hint} (expected one of "
                       f"{', '.join(known.names)}, or {_EXPECTED})")
  if not there or not drafter_folder.is_drafter_folder(path):
    # Loading it says what is wrong, if it is none.
    return "t5", path
  return drafter_folder.kind_of(path), path


def _told(kind: str) -> str:
  return {"ngram": "a folder of n-gram tables", "heads": "a folder of heads"}.get(
      kind, f"the {kind} drafter")


def _options(part: Part, kind: str, inner: bool) -> dict[str, int]:
  """The options of a part, checked."""
  allowed = WORDS.get(kind, {}) | (_INNER if inner else {})
  given = dict(part.options)
  for name, value in given.items():
    if name == "gamma" and not inner:
      raise SpecdecError(f"option gamma of {part} is for a part that drafts for another one; "
                         f"what is drafted for the target is the setting gamma: --gamma={value}")
    if name not in allowed:
      near = difflib.get_close_matches(name, allowed, 1)
      hint = f"; did you mean {near[0]}?" if near else ""
      takes = f"it takes {', '.join(allowed)}" if allowed else "it takes none"
      raise SpecdecError(f"{part.name} has no option {name!r}{hint} ({takes})")
    low, high = allowed[name]
    if not low <= value <= high:
      raise SpecdecError(f"option {name} of {part.name} is {value}; expected an integer from "
                         f"{low} to {high}")
  if kind == "copy":
    _check_match(given)
  return ({"gamma": DEFAULT_INNER_GAMMA} if inner else {}) | given


def _check_match(given: dict[str, int]) -> None:
  from specdec.drafters.copy import CopyDrafter

  usual = {f.name: f.default for f in dataclasses.fields(CopyDrafter)}
  least, most = (given.get(name, usual[name]) for name in ("min_match", "max_match"))
  if least > most:
    raise SpecdecError(f"copy has min_match {least} and max_match {most}; expected min_match to "
                       "be at most max_match")


def _check_loops(found: Sequence[Planned], known: Known) -> None:
  """Refuses a cascade in which something would draft for itself."""
  if len(found) == 1:
    return
  seen: dict[str, str] = {_same(known.target): "the target"} if known.target else {}
  for planned in found:
    if not planned.path:
      continue
    where = _same(planned.path)
    if where in seen:
      raise SpecdecError(f"{planned.part.name} is {seen[where]} once more, and drafting with it "
                         "what it says itself gains nothing; expected different models in a "
                         "cascade")
    seen[where] = planned.part.name


def _same(path: str | pathlib.Path) -> str:
  """A path by which two names of one folder are told to be the same."""
  path = str(path)
  return os.path.realpath(path) if os.path.lexists(path) else path


def check_names(names: Mapping[str, str], where: str) -> None:
  """Checks the names of a pair's own drafters.

  Raises:
    SpecdecError: one of them could not be typed, or means something already.
  """
  for name in names:
    if name in WORDS or not _NAME.fullmatch(name):
      reason = "means something already" if name in WORDS else "could not be typed"
      raise SpecdecError(f"{where} calls a drafter {name!r}, which {reason}; expected a name of "
                         "letters, digits, dots, dashes and underscores")
