"""What `specdec generate --trace --output_file` wrote, for figures 1 and 5."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import json
import pathlib
from typing import Any

from specdec.errors import SpecdecError

# What comes with the package: the demo pair's, at gamma 7 and 3.
ASSETS = pathlib.Path(__file__).parents[1] / "assets" / "traces"
_HOW = "expected a line of specdec generate --trace --output_file"


@dataclasses.dataclass(frozen=True)
class Iteration:
  """A target call.

  Attributes:
    drafted: ids.
    num_accepted: how many of them stand.
    next_id: the target's own, or None.
  """

  drafted: tuple[int, ...]
  num_accepted: int
  next_id: int | None

  @property
  def committed(self) -> tuple[int, ...]:
    """What it added to the output."""
    own = () if self.next_id is None else (self.next_id,)
    return self.drafted[:self.num_accepted] + own


@dataclasses.dataclass(frozen=True)
class Trace:
  """One output.

  Attributes:
    where: file and line, in words.
    input: the text it was made from.
    prompt: ids before the first iteration.
    iterations: in order.
  """

  where: str
  input: str
  prompt: tuple[int, ...]
  iterations: tuple[Iteration, ...]

  @property
  def gamma(self) -> int:
    """The longest draft: that of the run, unless all of its drafts were cut."""
    return max((len(i.drafted) for i in self.iterations), default=0)

  @property
  def tokens(self) -> int:
    """Generated tokens."""
    return sum(len(i.committed) for i in self.iterations)


@dataclasses.dataclass(frozen=True)
class Line:
  """An iteration as text, one line of figure 1.

  Attributes:
    before: what stood.
    accepted: drafted text that stands.
    rejected: the drafted token that was refused, "" if none was.
    own: the target's token.
    tokens: that it added.
  """

  before: str
  accepted: str
  rejected: str
  own: str
  tokens: int


def read(path: str | pathlib.Path, flag: str = "--trace_file") -> list[Trace]:
  """Reads a file of JSON lines.

  Raises:
    SpecdecError: it cannot be read, or a line has no trace.
  """
  try:
    lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")
  except OSError as error:
    raise SpecdecError(f"cannot read {flag} {path}: {error.strerror or error}") from error
  except ValueError:
    raise SpecdecError(f"{flag} {path} is not UTF-8; {_HOW}") from None
  traces = [_trace(f"{flag} {path}, line {number}", f"{pathlib.Path(path).name}, line {number}",
                   line)
            for number, line in enumerate(lines, 1) if line.strip()]
  if not traces:
    raise SpecdecError(f"{flag} {path} is empty; {_HOW}")
  return traces


def shipped() -> list[Trace]:
  """Those of the demo pair that come with the package, gamma 7 first."""
  return [t for path in sorted(ASSETS.glob("*.jsonl"), reverse=True) for t in read(path)]


def _trace(place: str, where: str, line: str) -> Trace:
  try:
    fields = json.loads(line)
  except (ValueError, RecursionError):
    raise SpecdecError(f"{place} is not JSON; {_HOW}") from None
  if not isinstance(fields, dict) or not isinstance(fields.get("trace"), list):
    raise SpecdecError(f"{place} has no trace; {_HOW}")
  try:
    ids = _ids(fields["output_ids"])
    iterations = tuple(_iteration(x) for x in fields["trace"])
    prompt = ids[:int(fields["prompt_tokens"])]
    text = str(fields.get("input", ""))
  except (KeyError, TypeError, ValueError):
    raise SpecdecError(f"{place} is damaged; {_HOW}") from None
  trace = Trace(where, text, prompt, iterations)
  if prompt + tuple(i for x in iterations for i in x.committed) != ids:
    raise SpecdecError(f"{place}: its iterations do not add up to its output_ids; {_HOW}")
  return trace


def _ids(values: Any) -> tuple[int, ...]:
  if not isinstance(values, list) or not all(type(v) is int for v in values):
    raise ValueError
  return tuple(values)


def _iteration(fields: dict[str, Any]) -> Iteration:
  own = fields["next_id"]
  found = Iteration(_ids(fields["drafted"]), fields["num_accepted"], own)
  if (type(found.num_accepted) is not int or not 0 <= found.num_accepted <= len(found.drafted)
      or not (own is None or type(own) is int)):
    raise ValueError
  return found


def lines(trace: Trace, pieces: Callable[[Sequence[int]], Sequence[str]]) -> list[Line]:
  """The iterations as text.

  Args:
    trace: of one output.
    pieces: ids -> pieces, with T5's underscore for a space.
  """
  text = lambda ids: "".join(pieces(list(ids))).replace("\u2581", " ")
  out, before = [], list(trace.prompt)
  for i in trace.iterations:
    # A draft can end a row: what is behind then was refused by nobody.
    refused = i.num_accepted < len(i.drafted) and i.next_id is not None
    out.append(Line(
        text(before), text(i.drafted[:i.num_accepted]),
        text(i.drafted[i.num_accepted:i.num_accepted + 1]) if refused else "",
        "" if i.next_id is None else text([i.next_id]), len(i.committed)))
    before += i.committed
  return out
