"""What devices tell each other in a compiled program."""

import math
import re
from typing import NamedTuple

_KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "collective-broadcast",
          "ragged-all-to-all", "reduce-scatter")
_LINE = re.compile(rf"= (.+?) ({'|'.join(_KINDS)})(?:-start)?\(")
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")


class Collective(NamedTuple):
  """One exchange between devices.

  Attributes:
    kind: such as "all-reduce".
    size: elements of the largest part of its result, on one device.
    line: as printed.
  """

  kind: str
  size: int
  line: str


def collectives(text: str) -> list[Collective]:
  """All exchanges in an optimised HLO module, from `compiled.as_text()`."""
  found = []
  for line in text.splitlines():
    match = _LINE.search(line)
    if match:
      sizes = [math.prod(map(int, filter(None, dims.split(","))))
               for dims in _SHAPE.findall(match[1])]
      found.append(Collective(match[2], max(sizes, default=1), line.strip()))
  return found
