"""What a user may ask of a decoding run, checked in one place."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from specdec.errors import SpecdecError

MODES = ("speculative", "plain")

# Far above anything sensible, and low enough that differences between logits survive
# the division in float32: beyond some 1e37 they would flush to zero and all tie.
_MAX_TEMPERATURE = 1e30


@dataclasses.dataclass(frozen=True)
class Settings:
  """Settings of a run; values are checked on construction.

  Attributes:
    mode: "speculative", or "plain" for the target alone.
    gamma: tokens drafted per target call; 0 is plain decoding.
    temperature: 1e-4 and below is greedy. A number, or one per input.
    top_k: keep the k likeliest tokens, ties included; 0 is off. Likewise.
    top_p: keep the likeliest tokens of this joint mass; 0 is off. Likewise.
    max_decode_len: limit of generated tokens, EOS included.
    batch_size: inputs decoded together.
    seed: of all random draws. An input's result depends on the seed and on its
      place in the data, not on what it is batched with.
    eos_ids: ids that end a row; None takes the vocabulary's EOS, () none.
    max_source_len: encoder tokens beyond this are cut, EOS kept.
    strict_length: refuse inputs that would be cut.

  Raises:
    SpecdecError: a value is out of range.
  """

  mode: str = "speculative"
  gamma: int = 4
  temperature: float | Sequence[float] = 0.0
  top_k: int | Sequence[int] = 0
  top_p: float | Sequence[float] = 0.0
  max_decode_len: int = 128
  batch_size: int = 8
  seed: int = 0
  eos_ids: Sequence[int] | None = None
  max_source_len: int = 512
  strict_length: bool = False

  def __post_init__(self):
    if self.mode not in MODES:
      raise SpecdecError(f"mode is {self.mode!r}; expected one of {', '.join(MODES)}")
    whole("gamma", self.gamma, 0, 64, "0 is plain decoding")
    whole("max_decode_len", self.max_decode_len, 1, 2**20)
    whole("max_source_len", self.max_source_len, 2, 2**20)
    whole("batch_size", self.batch_size, 1, 2**16)
    whole("seed", self.seed, 0, 2**32 - 1)
    each("temperature", self.temperature, float, lambda t: 0 <= t <= _MAX_TEMPERATURE,
         "a finite number from 0 (greedy) up")
    each("top_k", self.top_k, int, lambda k: 0 <= k < 2**31, "an integer from 0 (off) up")
    each("top_p", self.top_p, float, lambda p: 0 <= p <= 1, "a number from 0 (off) to 1")
    if self.eos_ids is not None:
      if not isinstance(self.eos_ids, Sequence | np.ndarray) or isinstance(self.eos_ids, str):
        raise SpecdecError(f"eos_ids is {self.eos_ids!r}; expected a list of ids, () for none")
      for i in self.eos_ids:
        whole("an entry of eos_ids", i, 0, 2**31 - 1)
    if not isinstance(self.strict_length, bool | np.bool_):
      raise SpecdecError(f"strict_length is {self.strict_length!r}; expected True or False")
    # Python's own numbers, whatever came in: settings go into JSON records.
    for name in ("gamma", "max_decode_len", "max_source_len", "batch_size", "seed",
                 "temperature", "top_k", "top_p", "eos_ids"):
      object.__setattr__(self, name, _plain(getattr(self, name)))

  @property
  def effective_gamma(self) -> int:
    """Gamma, or 0 in plain mode."""
    return 0 if self.mode == "plain" else self.gamma

  def per_row(self, name: str, count: int) -> np.ndarray:
    """Value of `temperature`, `top_k` or `top_p` for each of `count` inputs."""
    value = np.asarray(getattr(self, name))
    if value.ndim > 1:
      raise SpecdecError(f"{name} has the shape {value.shape}; expected one number, or a list "
                         "with one per input")
    if value.ndim and value.shape != (count,):
      raise SpecdecError(f"{name} has {value.size} values for {count} inputs; expected one "
                         "number, or one per input")
    return np.broadcast_to(value, (count,))


def _plain(value: Any) -> Any:
  """Numbers and (nested) sequences of numbers as Python numbers and tuples."""
  if isinstance(value, np.ndarray | np.generic):
    value = value.tolist()
  return tuple(map(_plain, value)) if isinstance(value, Sequence) else value


def whole(name: str, value: Any, low: int, high: int, hint: str = "") -> None:
  """Checks an integer setting."""
  integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
  if not integer or not low <= value <= high:
    raise SpecdecError(f"{name} is {value!r}; expected an integer from {low} to {high}"
                       + (f" ({hint})" if hint else ""))


def each(name: str, value: Any, kind: type, allowed, expected: str) -> None:
  """Checks a number, or every number of a sequence."""
  wrong = SpecdecError(f"{name} is {value!r}; expected {expected}")
  try:
    values = np.asarray(value)
    # Text, booleans and complex numbers would convert, to something else.
    if values.dtype.kind not in "iuf" and values.size:
      raise wrong
    values = values.astype(np.float64)
  except (TypeError, ValueError):
    raise wrong from None
  for v in values.ravel():
    if not allowed(v) or (kind is int and v != int(v)):
      raise SpecdecError(f"{name} is {v:g}; expected {expected}")
