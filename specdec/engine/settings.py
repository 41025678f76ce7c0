"""What a user may ask of a decoding run, checked in one place."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from specdec.errors import SpecdecError

MODES = ("speculative", "plain")
# Names of `core.verify.VERIFIERS`, which would import jax.
VERIFIERS = ("token", "block", "lenient", "coupled")
SORTED, ARRIVAL, REFILL = BATCHING = ("sorted", "arrival", "refill")
MAX_GAMMA = 64
AUTO = "auto"

# Settings that take one value, or one per input.
PER_ROW = ("temperature", "top_k", "top_p", "min_decode_len", "repetition_penalty",
           "no_repeat_ngram_size", "confidence", "lenience")

# Far above anything sensible, and low enough that differences between logits survive
# the division in float32: beyond some 1e37 they would flush to zero and all tie.
_MAX_TEMPERATURE = 1e30


@dataclasses.dataclass(frozen=True)
class Settings:
  """Settings of a run; values are checked on construction.

  Attributes:
    mode: "speculative", or "plain" for the target alone.
    gamma: tokens drafted per target call; 0 is plain decoding, "auto" picks as it goes.
    verifier: which drafted tokens stand. "token" is the paper's rule; "block" accepts more
      and is as lossless; "coupled" gives the same ids whatever drafts, plain decoding
      included; "lenient" accepts more than the target would, and is NOT lossless.
    lenience: the paper's l in (0, 1], for the lenient verifier alone: no token becomes more
      than 1 / l times as likely. A number, or one per input.
    confidence: stop a draft where the drafter gives its likeliest token less than this; 0 is
      off. Likewise.
    temperature: 1e-4 and below is greedy. A number, or one per input.
    top_k: keep the k likeliest tokens, ties included; 0 is off. Likewise.
    top_p: keep the likeliest tokens of this joint mass; 0 is off. Likewise.
    max_decode_len: limit of the output's tokens, EOS and prompt included.
    min_decode_len: fewest tokens of an output, counted likewise: until then the EOS
      ids are forbidden. A number, or one per input.
    repetition_penalty: divides the positive logits of tokens that the output has
      already, and multiplies the negative ones; 1 is off. Likewise.
    no_repeat_ngram_size: no n-gram of this size occurs twice in an output; 0 is off.
      Likewise.
    forbidden_ids: ids that are never generated; a triple (id, begin, end) forbids the id
      at positions from `begin` up to, not including, `end`. Positions count from 0,
      the prompt's included.
    num_decodes: samples per input.
    rescale_log_probs: order an input's samples by `adjusted_score` (T5X's default)
      instead of `score`.
    batch_size: inputs decoded together.
    batching: which ones. "sorted" puts inputs of like length into a batch, "arrival" takes
      them as they come, and so does "refill", which gives the place of an output that has
      ended to the next input instead of waiting for the whole batch. Results are the same.
    seed: of all random draws. An input's result depends on the seed and on its
      place in the data, not on what it is batched with.
    eos_ids: ids that end a row; None takes the vocabulary's EOS, () none.
    max_source_len: encoder tokens beyond this are cut, EOS kept.
    strict_length: refuse inputs that would be cut.

  Raises:
    SpecdecError: a value is out of range.
  """

  mode: str = "speculative"
  gamma: int | str = 4
  temperature: float | Sequence[float] = 0.0
  top_k: int | Sequence[int] = 0
  top_p: float | Sequence[float] = 0.0
  max_decode_len: int = 128
  batch_size: int = 8
  seed: int = 0
  eos_ids: Sequence[int] | None = None
  min_decode_len: int | Sequence[int] = 0
  repetition_penalty: float | Sequence[float] = 1.0
  no_repeat_ngram_size: int | Sequence[int] = 0
  forbidden_ids: Sequence[int | tuple[int, int, int]] = ()
  num_decodes: int = 1
  rescale_log_probs: bool = False
  max_source_len: int = 512
  strict_length: bool = False
  verifier: str = "token"
  lenience: float | Sequence[float] = 1.0
  confidence: float | Sequence[float] = 0.0
  batching: str = SORTED

  def __post_init__(self):
    if self.mode not in MODES:
      raise SpecdecError(f"mode is {self.mode!r}; expected one of {', '.join(MODES)}")
    if self.verifier not in VERIFIERS:
      raise SpecdecError(f"verifier is {self.verifier!r}; expected one of "
                         f"{', '.join(VERIFIERS)}")
    if self.batching not in BATCHING:
      raise SpecdecError(f"batching is {self.batching!r}; expected one of {', '.join(BATCHING)}")
    if not isinstance(self.gamma, str) or self.gamma != AUTO:
      whole("gamma", self.gamma, 0, MAX_GAMMA, "0 is plain decoding", f" or {AUTO!r}")
    whole("max_decode_len", self.max_decode_len, 1, 2**20)
    whole("max_source_len", self.max_source_len, 2, 2**20)
    whole("batch_size", self.batch_size, 1, 2**16)
    whole("seed", self.seed, 0, 2**32 - 1)
    each("temperature", self.temperature, float, lambda t: 0 <= t <= _MAX_TEMPERATURE,
         "a finite number from 0 (greedy) up")
    each("top_k", self.top_k, int, lambda k: 0 <= k < 2**31, "an integer from 0 (off) up")
    each("top_p", self.top_p, float, lambda p: p == 0 or 1e-30 <= p <= 1,
         "a number from 0 (off) to 1")
    each("min_decode_len", self.min_decode_len, int, lambda n: 0 <= n <= self.max_decode_len,
         f"an integer from 0 to max_decode_len, which is {self.max_decode_len}")
    each("repetition_penalty", self.repetition_penalty, float, lambda r: 1e-6 <= r <= 1e6,
         "a number from 1e-6 to 1e6, 1 for none")
    each("no_repeat_ngram_size", self.no_repeat_ngram_size, int, lambda n: 0 <= n <= 1024,
         "an integer from 0 (off) to 1024")
    each("confidence", self.confidence, float, lambda c: 0 <= c <= 1,
         "a number from 0 (off) to 1")
    # In float32, where its logarithm is taken.
    each("lenience", self.lenience, float, lambda x: 1e-30 <= x <= 1,
         "a number above 0, up to 1 (none)")
    if self.verifier != "lenient" and not np.all(np.asarray(self.lenience) == 1):
      raise SpecdecError(f"lenience is {self.lenience!r} and the verifier {self.verifier!r}, "
                         "which knows no lenience; expected the verifier lenient, or drop it")
    whole("num_decodes", self.num_decodes, 1, 4096)
    if self.eos_ids is not None:
      for i in _listed("eos_ids", self.eos_ids):
        whole("an entry of eos_ids", i, 0, 2**31 - 1)
    for entry in _listed("forbidden_ids", self.forbidden_ids):
      _check_forbidden(entry)
    for name in ("strict_length", "rescale_log_probs"):
      if not isinstance(getattr(self, name), bool | np.bool_):
        raise SpecdecError(f"{name} is {getattr(self, name)!r}; expected True or False")
    if self.refills and self.paced:
      # It decides at fixed iterations of a batch, and rows that came in later would be at
      # others of their own: results would depend on the neighbours.
      raise SpecdecError("batching is 'refill' and gamma is 'auto', which decides for batches "
                         "that begin together; expected a number for gamma, or batching sorted "
                         "or arrival")
    # Python's own numbers, whatever came in: settings go into JSON records.
    for name in ("gamma", "max_decode_len", "max_source_len", "batch_size", "seed",
                 "eos_ids", "forbidden_ids", "num_decodes", *PER_ROW):
      object.__setattr__(self, name, _plain(getattr(self, name)))

  @property
  def effective_gamma(self) -> int | str:
    """Gamma, or 0 in plain mode."""
    return 0 if self.mode == "plain" else self.gamma

  @property
  def paced(self) -> bool:
    """Whether gamma is picked as it goes, among the sizes of `engine.costs.Costs`."""
    return self.effective_gamma == AUTO

  @property
  def refills(self) -> bool:
    """Whether the rows of a batch are given to new inputs as they end."""
    return self.batching == REFILL

  @property
  def lossless(self) -> bool:
    """Whether outputs follow the target's own distribution."""
    return self.verifier != "lenient" or self.effective_gamma == 0

  @property
  def forbidden(self) -> list[tuple[int, int, int]]:
    """`forbidden_ids` as triples (id, first position, first position after)."""
    return [(e, 0, 2**31 - 1) if isinstance(e, int) else tuple(e) for e in self.forbidden_ids]

  def per_row(self, name: str, count: int) -> np.ndarray:
    """A setting that may differ from input to input.

    Args:
      name: out of `PER_ROW`.
      count: of inputs.

    Returns:
      Its value for each of them, [count].
    """
    value = np.asarray(getattr(self, name))
    if value.ndim > 1:
      raise SpecdecError(f"{name} has the shape {value.shape}; expected one number, or a list "
                         "with one per input")
    if value.ndim and value.shape != (count,):
      raise SpecdecError(f"{name} has {value.size} values for {count} inputs; expected one "
                         "number, or one per input")
    return np.broadcast_to(value, (count,))


def _listed(name: str, value: Any) -> Sequence[Any]:
  listed = value.ndim > 0 if hasattr(value, "ndim") else isinstance(value, Sequence)
  if not listed or isinstance(value, str):
    raise SpecdecError(f"{name} is {value!r}; expected a list of ids, () for none")
  return value


def _check_forbidden(entry: Any) -> None:
  """An id, or an id and the positions it is forbidden at."""
  triple = entry if isinstance(entry, Sequence | np.ndarray) and len(entry) == 3 else (entry, 0, 1)
  whole("an id of forbidden_ids", triple[0], 0, 2**31 - 1, "or a triple (id, begin, end)")
  whole("a position of forbidden_ids", triple[1], 0, 2**31 - 1)
  whole("a position of forbidden_ids", triple[2], 0, 2**31 - 1)
  if triple[1] >= triple[2]:
    raise SpecdecError(f"forbidden_ids holds {tuple(triple)}, which is no range of positions; "
                       "expected (id, begin, end) with begin below end")


def _plain(value: Any) -> Any:
  """Numbers and (nested) sequences of numbers as Python numbers and tuples."""
  if hasattr(value, "tolist"):  # Arrays and scalars of NumPy and jax.
    value = value.tolist()
  listed = isinstance(value, Sequence) and not isinstance(value, str)
  return tuple(map(_plain, value)) if listed else value


def whole(name: str, value: Any, low: int, high: int, hint: str = "", other: str = "") -> None:
  """Checks an integer setting; `hint` and what `other` values there are go into the message."""
  integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
  if not integer or not low <= value <= high:
    raise SpecdecError(f"{name} is {value!r}; expected an integer from {low} to {high}{other}"
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
