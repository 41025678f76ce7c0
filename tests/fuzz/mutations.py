"""Damage: valid files, changed in the ways in which files go wrong or are made to.

Every strategy draws a few small numbers that say what is done, so that examples are cheap and
shrink to a single change.
"""

import copy
import json
import re
import struct
from typing import Any

from hypothesis import strategies as st

_HUGE = (2**63 - 1, 2**64 - 1, 2**31, 2**40, 0, 2**32 - 1)
_NUMBERS = (b"-1", b"0", b"1e999", b"4294967296", b"9223372036854775808", b"99999999999999999999",
            b"1.5", b"NaN", b'"1"', b"00")
_DEEP: Any = []
for _ in range(60):
  _DEEP = [_DEEP]

# What stands in the place of a value, a name or a whole table of JSON.
VALUES = (None, True, False, 0, -1, 1, 3, 2**31, 2**63, 10**30, 1.5, 1e308, float("nan"),
          float("inf"), "", "x", "a\nb", "\ud800", "..", "/", "../../etc/passwd", "\0", "é" * 40,
          "x" * 5000, [], [[]], [None], [1, 2], [-1], [2**40, 2**40], {}, {"a": 1},
          {"": None}, {"driver": "memory"}, _DEEP)

_ops = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 2**20), st.integers(0, 2**16)),
                min_size=1, max_size=4)


def _changed(data: bytes, ops: list[tuple[int, int, int]]) -> bytes:
  for kind, place, value in ops:
    at = place % (len(data) + 1)
    if kind == 0 and data:
      at %= len(data)
      data = data[:at] + bytes([data[at] ^ (1 << value % 8)]) + data[at + 1:]
    elif kind == 1:
      data = data[:at] + bytes([value % 256]) + data[at + 1:]
    elif kind == 2:
      data = data[:at]
    elif kind == 3:
      data = data[:at] + data[at + 1 + value % 64:]
    elif kind == 4:
      data = data[:at] + bytes([value % 256]) * (1 + value % 300) + data[at:]
    elif kind == 5:
      chunk = data[at:at + 1 + value % 512]
      data = data[:at] + chunk + data[at:]
    elif kind == 6:
      data = data[:at] + struct.pack("<Q", _HUGE[value % len(_HUGE)]) + data[at + 8:]
    elif kind == 7:
      data = data[:at] + struct.pack(">I", _HUGE[value % len(_HUGE)] % 2**32) + data[at + 4:]
    elif kind == 8:
      found = list(re.finditer(rb"\d+", data[:4096]))
      if found:
        number = found[place % len(found)]
        data = (data[:number.start()] + _NUMBERS[value % len(_NUMBERS)] + data[number.end():])
    elif kind == 9:
      lines = data.split(b"\n")
      i, j = place % len(lines), value % len(lines)
      lines[i], lines[j] = lines[j], lines[i]
      data = b"\n".join(lines)
    elif kind == 10:
      data = data[:at] + (b"[", b"{\"a\":", b"(", b"\x91")[value % 4] * 30_000
    elif kind == 11:
      data = data[:at] + "\u2028\ufeff\x00é\U0001f600".encode()[:1 + value % 12] + data[at:]
  return data


def damaged(data: bytes) -> st.SearchStrategy[bytes]:
  """Bytes with one to four changes."""
  return _ops.map(lambda ops: _changed(data, ops))


def _places(value: Any, path: tuple = ()) -> list[tuple]:
  """Where something stands in a tree: paths of keys and indices, none for the tree itself."""
  out = [path]
  if isinstance(value, dict):
    for key in value:
      out += _places(value[key], (*path, key))
  elif isinstance(value, list):
    for i, entry in enumerate(value):
      out += _places(entry, (*path, i))
  return out


def _tree_changed(tree: Any, ops: list[tuple[int, int, int]]) -> Any:
  for kind, place, value in ops:
    places = _places(tree)
    path = places[place % len(places)]
    new = copy.deepcopy(VALUES[value % len(VALUES)])
    if not path:
      # The whole of it seldom: what is below is more interesting.
      tree = new if kind == 0 else tree
      continue
    node = tree
    for key in path[:-1]:
      node = node[key]
    if kind in (1, 2):
      del node[path[-1]]
    elif kind == 3 and isinstance(node, dict):
      node[new if isinstance(new, str) else f"{path[-1]}x"] = node.pop(path[-1])
    elif kind == 4 and isinstance(node, list):
      node.append(new)
    elif kind == 4:
      node[str(new)[:20]] = new
    else:
      node[path[-1]] = new
  return tree


def damaged_tree(tree: Any) -> st.SearchStrategy[Any]:
  """A tree as JSON has them with one to four places changed, removed, renamed or added."""
  return _ops.map(lambda ops: _tree_changed(copy.deepcopy(tree), ops))


def as_json(tree: Any) -> bytes:
  """A tree as text, whatever it holds."""
  return json.dumps(tree).encode("utf-8", "surrogatepass")


def damaged_json(content: bytes | str | Any) -> st.SearchStrategy[bytes]:
  """JSON with changes to what it says, or to its text."""
  tree = json.loads(content) if isinstance(content, bytes | str) else content
  text = content if isinstance(content, bytes) else as_json(tree)
  return st.one_of(damaged_tree(tree).map(as_json), damaged_tree(tree).map(as_json),
                   damaged(text))
