"""A model on disk before its numbers are read, whatever layout it is in."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
from typing import Any

import ml_dtypes
import numpy as np

from specdec.checkpoints.mapping import Shape
from specdec.errors import SpecdecError

Index = tuple[slice, ...]

FLOATS = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16),
          "float64": np.dtype(np.float64), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

_ALIGNMENT = 64
_BLOCK_BYTES = 8 * 2**20


class ArrayRef:
  """An array on disk: shape and dtype are known, values are read when asked for.

  Unknown to JAX, so it is a leaf of a tree; `np.asarray` reads it.

  Args:
    shape: of the array.
    dtype: in which it is stored.
    where: the file or folder it is in, for error messages.
    fetch: reads a part of it; may return a view of a larger array.
    source: arrays of one source are cut out of one stored array, and are best read
      one after the other.
    blocks: axis along which parts are read cheaply, and how many of its entries make a
      part; None reads the whole at once.
  """

  def __init__(self, shape: Shape, dtype: np.dtype, where: str,
               fetch: Callable[[Index], np.ndarray], source: str | None = None,
               blocks: tuple[int, int] | None = None):
    self.shape, self.dtype, self.where = tuple(shape), np.dtype(dtype), where
    self.source = where if source is None else source
    self._fetch, self._blocks = fetch, blocks

  @property
  def ndim(self) -> int:
    """Number of its axes."""
    return len(self.shape)

  @property
  def size(self) -> int:
    """Number of its elements."""
    return int(np.prod(self.shape, dtype=np.int64))

  @property
  def nbytes(self) -> int:
    """Bytes of the values once read."""
    return self.size * self.dtype.itemsize

  def read(self, index: Index | None = None, dtype: Any = None) -> np.ndarray:
    """Reads the array or a part of it.

    Args:
      index: a slice per axis; None is all of it. With a sharded model this is what
        `jax.make_array_from_callback` asks for, so that no host reads more.
      dtype: to cast to.

    Raises:
      SpecdecError: the file is damaged or gone.
    """
    with told(self.where):
      if index is not None:
        found = self._fetch(index)
        return np.ascontiguousarray(found, dtype or self.dtype).reshape(found.shape)
      out = _aligned(self.shape, np.dtype(dtype or self.dtype))
      whole = [slice(None)] * self.ndim
      axis, size = self._blocks or (0, max(self.shape, default=1))
      # Part by part into its final place: what was read in another dtype or order is
      # never there as a whole besides.
      for begin in range(0, self.shape[axis] if self.shape else 1, size):
        if self.shape:
          whole[axis] = slice(begin, min(begin + size, self.shape[axis]))
        out[tuple(whole)] = self._fetch(tuple(whole))
    return out

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    del copy  # Always one.
    return self.read(dtype=dtype)

  def cast(self, dtype: Any) -> "ArrayRef":
    """The array in another dtype."""
    return ArrayRef(self.shape, dtype, self.where, self._fetch, self.source, self._blocks)

  def finite(self, name: str) -> "ArrayRef":
    """The array under a name, refused when what is read of it is no number or infinite."""
    return ArrayRef(self.shape, self.dtype, self.where,
                    lambda index: _finite(self._fetch(index), name, self.where), self.source,
                    self._blocks)

  def transposed(self) -> "ArrayRef":
    """The array with its axes the other way round."""
    blocks = self._blocks and (self.ndim - 1 - self._blocks[0], self._blocks[1])
    return ArrayRef(self.shape[::-1], self.dtype, self.where,
                    lambda index: self._fetch(index[::-1]).T, self.source, blocks)

  def reshaped(self, shape: Shape) -> "ArrayRef":
    """The array in another shape; a part of it reads the whole."""
    whole = (slice(None),) * self.ndim
    return ArrayRef(shape, self.dtype, self.where,
                    lambda index: self._fetch(whole).reshape(shape)[index], self.source)

  def unstacked(self, axis: int) -> list["ArrayRef"]:
    """The arrays stacked along an axis.

    The stored array is read once and kept until the last of them was read, as chunks
    on disk hold all layers. Reading one source after the other keeps one at a time.
    """
    stack = _Stack(self, axis)
    shape = self.shape[:axis] + self.shape[axis + 1:]
    return [ArrayRef(shape, self.dtype, self.where,
                     lambda index, i=i: stack.take(i)[index], self.source)
            for i in range(self.shape[axis])]


# By size of a number: the integer of its bits, and those that are all set in NaN and infinity.
_BITS = {2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}
_EXPONENT = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000,
             "float64": 0x7FF0000000000000}
# Numbers looked at together: few enough to stay in a core's cache.
_LOOKED_AT = 2**17


def _finite(values: np.ndarray, name: str, where: str) -> np.ndarray:
  """The values, if all are finite.

  Raises:
    SpecdecError: names the array and the first that is not.
  """
  exponent = _EXPONENT.get(values.dtype.name)
  if exponent is None:
    return values
  exponent = _BITS[values.dtype.itemsize].type(exponent)
  # In the order of memory, which of a transposed array is another one.
  flat = values.T if values.flags.f_contiguous else values
  flat = np.ascontiguousarray(flat).reshape(-1).view(exponent.dtype)
  for begin in range(0, flat.size, _LOOKED_AT):
    block = flat[begin:begin + _LOOKED_AT]
    # Bit by bit, as bfloat16 has no fast comparison.
    if ((block & exponent) == exponent).any():
      bad = np.asarray(values).reshape(-1)[~np.isfinite(np.asarray(values, np.float64)).reshape(-1)]
      raise SpecdecError(f"{name} in {where} holds {float(bad[0])} ({bad.size} of {values.size} "
                         "numbers are not finite); expected numbers: the checkpoint is damaged, "
                         "or was trained to no good end")
  return values


def _aligned(shape: Shape, dtype: np.dtype) -> np.ndarray:
  """Room for an array where XLA's CPU backend takes it over without a copy."""
  size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
  room = np.empty(size + _ALIGNMENT, np.uint8)
  begin = -room.ctypes.data % _ALIGNMENT
  return room[begin:begin + size].view(dtype).reshape(shape)


def block_rows(shape: Shape, dtype: np.dtype) -> tuple[int, int]:
  """Blocks of some megabytes along the first axis."""
  row = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
  return 0, max(1, _BLOCK_BYTES // max(row, 1))


def in_memory(values: Any) -> ArrayRef:
  """An array that is there already, for those who want a reference."""
  return ArrayRef(values.shape, np.dtype(values.dtype), "memory",
                  lambda index: np.asarray(values)[index], str(id(values)))


def taken_once(values: np.ndarray) -> ArrayRef:
  """An array in memory that is let go of when it is read, as it is read only once."""
  held = [values]
  return ArrayRef(values.shape, values.dtype, "memory", lambda index: held.pop()[index])


class _Stack:
  """Reads a stacked array once for all who take a layer out of it."""

  def __init__(self, whole: ArrayRef, axis: int):
    self._whole, self._axis = whole, axis
    self._kept: np.ndarray | None = None
    self._left: set[int] = set()

  def take(self, i: int) -> np.ndarray:
    if self._kept is None:
      self._kept = self._whole.read()
      self._left = set(range(self._kept.shape[self._axis]))
    layer = np.take(self._kept, i, self._axis)
    self._left.discard(i)
    if not self._left:
      self._kept = None
    return layer


@dataclasses.dataclass(frozen=True)
class VocabularyFile:
  """A vocabulary as it stands on disk; the engine makes a vocabulary of it.

  Attributes:
    kind: "sentencepiece", "tokenizer" (a tokenizer.json) or "bytes" (byT5).
    content: bytes of the file; none for "bytes".
    extra_ids: sentinels `<extra_id_N>` behind the pieces of a sentencepiece model.
  """

  kind: str
  content: bytes = b""
  extra_ids: int = 0


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A model on disk, looked at but not read.

  Attributes:
    path: as the user gave it.
    layout: in words, such as "T5X, native".
    config: the architecture, fields of `T5Config`.
    arrays: every parameter by our name (see `mapping`).
    vocabulary: None where the layout carries none.
    source: where the parameters come from, one line.
    writer: what wrote it, "" when the layout does not say.
    fingerprint: of the vocabulary, where the layout records one.
    ignored: what else is there and is not a parameter, in words.
  """

  path: str
  layout: str
  config: dict[str, Any]
  arrays: dict[str, ArrayRef]
  vocabulary: VocabularyFile | None = None
  source: str = ""
  writer: str = ""
  fingerprint: str = ""
  ignored: str = ""

  @property
  def dtypes(self) -> list[str]:
    """Dtypes of the stored parameters, the most frequent first."""
    sizes: dict[str, int] = {}
    for array in self.arrays.values():
      sizes[array.dtype.name] = sizes.get(array.dtype.name, 0) + array.size
    return sorted(sizes, key=lambda name: -sizes[name])

  def tree(self) -> dict[str, Any]:
    """The parameters as a tree named as in T5X."""
    return nested(self.arrays)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
  """A tree out of values by name with slashes."""
  tree: dict[str, Any] = {}
  for name, value in flat.items():
    *parents, last = name.split("/")
    node = tree
    for parent in parents:
      node = node.setdefault(parent, {})
    node[last] = value
  return tree


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
  """Values by name with slashes; the inverse of `nested`."""
  out: dict[str, Any] = {}
  for key, value in tree.items():
    name = f"{prefix}{key}"
    out.update(flat(value, f"{name}/") if isinstance(value, dict) else {name: value})
  return out


@contextlib.contextmanager
def told(where: str, expected: str = "") -> Iterator[None]:
  """Turns whatever a library raises over a damaged file into one line that names it."""
  try:
    yield
  except (SpecdecError, KeyboardInterrupt, MemoryError):
    raise
  except Exception as error:
    # tensorstore, safetensors and torch raise a dozen types, with long messages.
    first = next((line.strip() for line in str(error).splitlines() if line.strip()),
                 type(error).__name__)
    if isinstance(error, OSError) and error.strerror:
      first = error.strerror
    raise SpecdecError(f"cannot read {where}: {first[:300]}"
                       + (f"; expected {expected}" if expected else
                          "; the checkpoint is damaged or incomplete: copy it again")) from error
