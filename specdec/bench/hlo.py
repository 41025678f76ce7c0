"""Reads compiled programs: what a loop does to its large arrays in every iteration."""

from collections.abc import Iterable
from collections.abc import Iterator
import math
import re
from typing import NamedTuple

# Opcodes that move or rewrite a whole operand. Elsewhere an array is read in place,
# or updated where it stands.
MOVES = frozenset({"copy", "copy-start", "transpose", "convert", "concatenate"})

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)="
                     r"%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")


class Instruction(NamedTuple):
  """One line of a computation.

  Attributes:
    name: unique within the module.
    opcode: such as "copy".
    size: elements of the result; of the largest part of a tuple.
    operands: names.
    called: computations that it runs.
    line: as printed.
    shape: type of the result, with its layout.
    root: its result is that of the computation.
  """

  name: str
  opcode: str
  size: int
  operands: tuple[str, ...]
  called: tuple[str, ...]
  line: str
  shape: str
  root: bool


class Module:
  """An optimised HLO module, from `compiled.as_text()`."""

  def __init__(self, text: str):
    self.computations: dict[str, dict[str, Instruction]] = {}
    current: dict[str, Instruction] = {}
    for line in text.splitlines():
      header = _COMPUTATION.match(line)
      if header:
        current = self.computations[header[2]] = {}
        if header[1]:
          self.entry = header[2]
        continue
      found = _INSTRUCTION.match(line)
      if found:
        current[found[2]] = _parse(found[2], found[3], line.strip(), bool(found[1]))

  def reachable(self, names: Iterable[str]) -> Iterator[str]:
    """The computations and all that they call, each once."""
    seen, pending = set(), list(names)
    while pending:
      name = pending.pop()
      if name in seen:
        continue
      seen.add(name)
      yield name
      pending += [c for i in self.computations[name].values() for c in i.called]

  def loop_bodies(self) -> list[str]:
    """Bodies of all while loops, nested ones included."""
    return [c for instructions in self.computations.values() for i in instructions.values()
            if i.opcode == "while" for c in i.called]

  def moved(self, sizes: Iterable[int]) -> list[str]:
    """Instructions in loops that move an operand of one of these numbers of elements.

    Go by numbers of elements, because compilers reshape: choose dimensions so that no
    two arrays that matter differ by shape alone, and nothing else is as large.
    """
    sizes = set(sizes)
    out = []
    for name in self.reachable(self.loop_bodies()):
      instructions = self.computations[name]
      for i in instructions.values():
        read = [instructions[o].size for o in i.operands if o in instructions]
        if i.opcode in MOVES and sizes & {i.size, *read}:
          out.append(i.line)
    return out


def _parse(name: str, rest: str, line: str, root: bool) -> Instruction:
  rest = re.sub(r"/\*.*?\*/", "", rest)
  shape, after = _split_shape(rest)
  opcode, _, arguments = after.partition("(")
  end = _closing(arguments)
  operands = tuple(re.findall(r"%([\w.\-]+)", arguments[:end]))
  attributes = arguments[end:].split("metadata=")[0]
  called = _CALLED.findall(attributes)
  for branches in _BRANCHES.findall(attributes):
    called += re.findall(r"[\w.\-]+", branches.replace("%", ""))
  sizes = [math.prod(int(d) for d in dims.split(",") if d) for dims in _SHAPE.findall(shape)]
  return Instruction(name, opcode.strip(), max(sizes, default=0), operands, tuple(called), line,
                     shape, root)


def _split_shape(rest: str) -> tuple[str, str]:
  """The type in front of an opcode, tuples included, and what follows."""
  if not rest.startswith("("):
    shape, _, after = rest.partition(" ")
    return shape, after
  end = 2 + _closing(rest[1:])
  return rest[:end], rest[end:].lstrip()


def _closing(text: str) -> int:
  """Place of the parenthesis that closes one opened just before the text."""
  depth = 1
  for i, c in enumerate(text):
    depth += (c == "(") - (c == ")")
    if not depth:
      return i
  return len(text)
