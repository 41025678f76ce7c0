"""What a compiled TPU program reads from memory in an iteration, and for which of its arguments.

The text of an optimised module says of every array in which layout and in which memory
it lies, so the bytes that an operation moves can be counted without a device. What counts
is HBM. TPU-v4 has 128 MiB of a faster memory beside it (`S(3)` in layouts) into which the
compiler fetches weights ahead of their use: fetching is one read of the weight, and using
it then is none.
"""

from collections import Counter
from collections.abc import Iterator
import dataclasses
import functools
import math
import re
from typing import NamedTuple

from specdec.bench import hlo

_ARRAY = re.compile(r"([a-z]+\d*\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_BITS = re.compile(r"\d+")
_TILE = re.compile(r"\(([\d,]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")

# They name an array, or wait for one: nothing is read.
_FREE = frozenset({
    "parameter", "tuple", "get-tuple-element", "bitcast", "constant", "iota", "copy-done",
    "slice-done", "async-done", "after-all", "partition-id", "replica-id", "opt-barrier"})
_FREE_CALLS = ("ConcatBitcast", "AllocateBuffer", "AssumeGatherIndicesInBound")
# Their result holds the numbers of their first operand, all or some, and no others.
_SAME = frozenset({
    "bitcast", "reshape", "copy", "copy-start", "copy-done", "slice", "slice-start", "slice-done",
    "dynamic-slice", "transpose", "convert", "opt-barrier", "get-tuple-element", "reverse", "pad"})
_PARTS = frozenset({"slice", "dynamic-slice", "gather", "slice-start"})
_HOST = frozenset({"infeed", "outfeed", "send", "recv", "send-done", "recv-done"})
_HOST_SPACE = 5


class Array(NamedTuple):
  """An array of a module: `dims` as printed, `space` 0 is HBM, `nbytes` with padding to tiles."""

  dtype: str
  dims: tuple[int, ...]
  layout: str
  space: int
  nbytes: int
  unpadded: int

  @property
  def size(self) -> int:
    """Number of its elements."""
    return math.prod(self.dims)


@functools.lru_cache(maxsize=1 << 16)
def arrays(shape: str) -> tuple[Array, ...]:
  """The arrays of a type as printed, those of tuples in order."""
  return tuple(_array(*found) for found in _ARRAY.findall(shape))


def _array(dtype: str, dims: str, layout: str) -> Array:
  sizes = tuple(int(d) for d in dims.split(",") if d)
  order, _, tiles = layout.partition(":")
  bits = _BITS.search(dtype)
  width = max(int(bits[0]) // 8, 1) if bits else 1
  # Tiles cover the dimensions that change fastest, which stand first in the order.
  padded = [sizes[int(d)] for d in order.split(",") if d] if order else list(sizes[::-1])
  tile = _TILE.search(tiles.partition("T")[2])
  if tile:
    for i, t in enumerate(reversed([int(t) for t in tile[1].split(",")])):
      if i < len(padded):
        padded[i] = -(-padded[i] // t) * t
  space = _SPACE.search(tiles)
  return Array(dtype, sizes, order, int(space[1]) if space else 0, math.prod(padded) * width,
               math.prod(sizes) * width)


class Move(NamedTuple):
  """An operation that an iteration executes.

  Attributes:
    line: as printed.
    origin: argument of the program whose numbers are read; "" for what was computed.
    read: bytes from HBM.
    written: bytes to HBM; counted with the first operand.
    times: how often in an iteration.
    rewrites: it stores all the numbers of the operand once more, in another order or dtype.
    result: what it makes.
  """

  line: str
  origin: str
  read: int
  written: int
  times: int
  rewrites: bool
  result: Array | None


@dataclasses.dataclass
class Iteration:
  """The operations of one iteration of a module's outer loop, and of what surrounds it."""

  moves: list[Move]
  before: list[Move]

  def read(self, prefix: str = "") -> int:
    """Bytes read from HBM, of arguments whose name begins so."""
    return sum(m.read * m.times for m in self.moves if m.origin.startswith(prefix))

  def written(self) -> int:
    """Bytes written to HBM."""
    return sum(m.written * m.times for m in self.moves)

  def by_origin(self) -> Counter:
    """Bytes read from HBM for each argument; "" is what was computed."""
    out = Counter()
    for m in self.moves:
      out[m.origin] += m.read * m.times
    return out


def iteration(module: hlo.Module, inner_trips: int) -> Iteration:
  """Follows one iteration of the loop that the module consists of.

  Args:
    module: of `core.loop.run`.
    inner_trips: how often a loop within the iteration runs, which is the drafter's.
  """
  walk = _Walk(module, inner_trips)
  entry = module.computations[module.entry]
  values = {i.name: argument(i) for i in entry.values() if i.opcode == "parameter"}
  loops = [i for i in entry.values() if i.opcode == "while"]
  if len(loops) != 1:
    raise ValueError(f"the program has {len(loops)} outer loops; expected one")
  before = list(walk.moves(module.entry, values, 1, {loops[0].name}))
  begin = values[loops[0].operands[0]]
  body = loop_part(loops[0], "body")
  moves = list(walk.moves(body, walk.bind(body, [begin]), 1))
  return Iteration(moves, before)


def everything(module: hlo.Module) -> list[Move]:
  """All operations of a module, those of a loop once."""
  entry = module.computations[module.entry]
  values = {i.name: argument(i) for i in entry.values() if i.opcode == "parameter"}
  return list(_Walk(module, 1).moves(module.entry, values, 1))


def argument(instruction: hlo.Instruction) -> str:
  """`state.target_cache.self_key[0]` of a parameter, as the caller knows it."""
  found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', instruction.line)
  return found[1].replace("\\'", "'") if found else instruction.name


def loop_part(loop: hlo.Instruction, part: str) -> str:
  """Name of the `body` or `condition` of a loop."""
  return re.search(part + r"=%?([\w.\-]+)", loop.line)[1]


class _Walk:

  def __init__(self, module: hlo.Module, inner_trips: int):
    self._module, self._inner_trips = module, inner_trips

  def bind(self, name: str, arguments: list) -> dict:
    """Origins of a computation's parameters."""
    parameters = [i for i in self._module.computations[name].values() if i.opcode == "parameter"]
    number = lambda i: int(re.search(r"parameter\((\d+)\)", i.line)[1])
    return {i.name: arguments[number(i)] for i in parameters}

  def moves(self, name: str, values: dict, times: int, skip: set = frozenset()) -> Iterator[Move]:
    """Operations of a computation; fills in the origins of its `values`."""
    computation = self._module.computations[name]
    for i in computation.values():
      if i.opcode != "parameter":
        values[i.name] = self._origin(i, values, computation)
      if i.opcode in _FREE or i.name in skip:
        continue
      if i.opcode == "while":
        body = loop_part(i, "body")
        yield from self.moves(body, self.bind(body, [values[i.operands[0]]]),
                              times * self._inner_trips)
      elif i.opcode == "conditional":
        # The branch that does least: nobody asks for filters or controls.
        branches = [list(self.moves(c, self.bind(c, [values.get(i.operands[n + 1])]), times))
                    for n, c in enumerate(i.called)]
        yield from min(branches, key=lambda moves: sum(m.read + m.written for m in moves))
      elif i.opcode == "call":
        yield from self.moves(i.called[0], self.bind(
            i.called[0], [values.get(o) for o in i.operands]), times)
      elif not (i.opcode == "custom-call" and any(c in i.line for c in _FREE_CALLS)):
        yield from self._move(i, values, computation, times)

  def _move(self, i: hlo.Instruction, values: dict, computation: dict,
            times: int) -> Iterator[Move]:
    results = arrays(i.shape)
    if i.opcode in ("copy-start", "slice-start"):
      # (destination, source, ...), or ((source), destination, ...).
      results = results[:1] if i.opcode == "copy-start" else results[1:2]
    fused = self._module.computations[i.called[0]] if i.opcode == "fusion" else None
    written = self._written(i, results, computation, fused)
    moved = (fused is None and i.opcode in hlo.MOVES) or (fused is not None and _only_moves(fused))
    for n, name in enumerate(i.operands):
      operand = computation.get(name)
      if operand is None:
        continue
      source = _whole(operand)
      if source is None:
        continue
      read = 0
      if source.space in (0, _HOST_SPACE):
        if fused is not None:
          read = _used(self._module, i.called[0], n, source)
        elif i.opcode in _PARTS:
          read = min(results[0].nbytes, source.nbytes) if n == 0 else source.nbytes
        elif i.opcode in ("dynamic-update-slice", "scatter") and n == 0:
          read = 0
        else:
          read = source.nbytes
      result = results[0] if len(results) == 1 else None
      same = result is not None and moved and result.size == source.size
      fetch = i.opcode == "copy-start" and result is not None and result.layout == source.layout
      yield Move(i.line, _name(values.get(name)), read, written if n == 0 else 0, times,
                 same and not fetch, result)

  def _written(self, i: hlo.Instruction, results: tuple[Array, ...], computation: dict,
               fused: dict | None) -> int:
    if i.opcode == "dynamic-update-slice":
      return _bytes(_whole(computation[i.operands[1]]))
    if fused is None:
      return sum(_bytes(r) for r in results if r.space == 0)
    root = next(f for f in fused.values() if f.root)
    parts = [fused[o] for o in root.operands] if root.opcode == "tuple" else [root]
    out = 0
    for part, result in zip(parts, results):
      part = _behind(part, fused)
      if result.space == 0:
        update = part.opcode == "dynamic-update-slice"
        out += _bytes(_whole(fused[part.operands[1]])) if update else result.nbytes
    return out

  def _origin(self, i: hlo.Instruction, values: dict, computation: dict):
    """The argument an instruction's result comes from, a list for a tuple, None for neither."""
    first = values.get(i.operands[0]) if i.operands else None
    if i.opcode == "tuple":
      return [values.get(o) for o in i.operands]
    if i.opcode == "get-tuple-element":
      index = int(re.search(r"index=(\d+)", i.line)[1])
      return first[index] if isinstance(first, list) else first
    if i.opcode in ("while", "dynamic-update-slice", "scatter") or i.opcode in _SAME:
      return first
    if i.opcode == "custom-call" and "ConcatBitcast" in i.line:
      return first
    if i.opcode == "fusion":
      fused = self._module.computations[i.called[0]]
      updated = _updated(fused)
      if updated is not None:
        return values.get(i.operands[updated])
      if _only_moves(fused):
        return next((v for v in map(values.get, i.operands) if v is not None), None)
    return None


def _name(origin) -> str:
  return origin if isinstance(origin, str) else ""


def _bytes(array: Array | None) -> int:
  return array.nbytes if array else 0


def _whole(i: hlo.Instruction) -> Array | None:
  """The array that an instruction makes; None for a tuple."""
  found = arrays(i.shape)
  return found[0] if len(found) == 1 else None


def _behind(i: hlo.Instruction, computation: dict) -> hlo.Instruction:
  while i.opcode in ("bitcast", "reshape") and i.operands[0] in computation:
    i = computation[i.operands[0]]
  return i


def _updated(fused: dict) -> int | None:
  """Parameter of a fused computation that it updates where it stands."""
  root = _behind(next(f for f in fused.values() if f.root), fused)
  if root.opcode not in ("dynamic-update-slice", "scatter"):
    return None
  first = _behind(fused[root.operands[0]], fused)
  found = re.search(r"parameter\((\d+)\)", first.line)
  return int(found[1]) if found else None


def _only_moves(fused: dict) -> bool:
  """Whether a fused computation only reorders, casts or cuts out."""
  done = [f.opcode for f in fused.values() if f.opcode not in ("parameter", "constant")]
  return bool(done) and all(o in _SAME for o in done) and any(o != "bitcast" for o in done)


def _renames(module: hlo.Module, fusion: hlo.Instruction) -> bool:
  inner = module.computations[fusion.called[0]].values()
  return all(i.opcode in ("parameter", "bitcast") for i in inner)


def _used(module: hlo.Module, name: str, index: int, source: Array) -> int:
  """Bytes of a parameter that a fused computation reads."""
  fused = module.computations[name]
  parameter = next(f for f in fused.values() if f"parameter({index})" in f.line)
  pending, out = [parameter.name], 0
  while pending:
    value = pending.pop()
    for user in fused.values():
      if value not in user.operands:
        continue
      if user.opcode == "bitcast" or (user.opcode == "fusion" and _renames(module, user)):
        pending.append(user.name)
      elif user.opcode in _PARTS and user.operands[0] == value:
        out += _bytes(_whole(user))
      elif user.opcode in ("dynamic-update-slice", "scatter") and user.operands[0] == value:
        pass
      elif user.opcode == "fusion":
        out += sum(_used(module, user.called[0], n, source)
                   for n, o in enumerate(user.operands) if o == value)
      else:
        return source.nbytes
  return min(out, source.nbytes)


def host_calls(module: hlo.Module) -> list[str]:
  """Instructions that talk to the host."""
  out = []
  for name in module.reachable([module.entry]):
    for i in module.computations[name].values():
      target = re.search(r'custom_call_target="([^"]*)"', i.line)
      called = target and re.search(r"callback|host|python", target[1], re.IGNORECASE)
      spaces = any(a.space == _HOST_SPACE for a in arrays(i.shape))
      if i.opcode in _HOST or called or spaces:
        out.append(i.line)
  return out
