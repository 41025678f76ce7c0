"""Generation: tokenise, bucket, batch, decode, detokenise.

Shapes are bucketed, so that inputs of many lengths share a few compiled programs:
the source width is a power of two from 16 up, the batch a power of two or
`batch_size` itself. An input's result depends on neither.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
import numpy as np

from specdec.core import keys
from specdec.core import loop
from specdec.core import state as state_lib
from specdec.core.state import Exits
from specdec.engine import precision
from specdec.engine.models import Pair
from specdec.engine.models import id_rows
from specdec.engine.models import make_source
from specdec.engine.result import Record
from specdec.engine.result import Result
from specdec.engine.settings import Settings
from specdec.errors import InputError
from specdec.errors import SpecdecError
from specdec.types import Limits
from specdec.types import Status

# Inputs looked at together when batches of like length are formed.
_WINDOW_BATCHES = 16


def generate(pair: Pair, texts: str | Iterable[str], *, task: str | None = None,
             progress: Callable[[Record], None] | None = None, **settings: Any) -> Result:
  """Decodes texts by speculative decoding (or plainly), losslessly.

  Args:
    pair: from `load_pair`.
    texts: one text or several.
    task: name of one of the pair's tasks, whose prefix is put before each text;
      None for the pair's first task, "" for no prefix.
    progress: called with each record as it is finished.
    **settings: fields of `Settings`: gamma, temperature, top_k, top_p, mode,
      max_decode_len, batch_size, seed and others.

  Returns:
    Records in the order of the inputs, with texts, ids, scores and statistics.

  Raises:
    SpecdecError: a setting is out of range, the task is unknown, or an input is
      too long and `strict_length` is set.

  >>> import specdec
  >>> pair = specdec.load_pair("demo")
  >>> result = specdec.generate(pair, "A dog runs across the grass.", gamma=4)
  >>> result.records[0].status
  'eos'
  """
  records = []
  for record in iterate(pair, texts, task=task, **settings):
    records.append(record)
    if progress:
      progress(record)
  return Result(tuple(records), make_settings(pair, settings))


def generate_ids(pair: Pair, encoder_ids: Any, **settings: Any) -> Result:
  """Decodes encoder ids; `input` of the records is empty.

  Args:
    pair: from `load_pair`.
    encoder_ids: int [B, S] padded with 0, or B lists of ids; EOS included. A row
      beyond `max_source_len` is cut and ends in EOS, and its record says so.
    **settings: fields of `Settings`.

  Raises:
    SpecdecError: a setting or an id is out of range.
  """
  checked = make_settings(pair, settings)
  rows = id_rows(encoder_ids, pair.vocabulary)
  cut = [_cut(row.tolist(), i, pair, checked) for i, row in enumerate(rows)]
  return Result(tuple(_decode(pair, [""] * len(cut), cut, checked)), checked)


def iterate(pair: Pair, texts: str | Iterable[str], *, task: str | None = None,
            **settings: Any) -> Iterator[Record]:
  """Yields the records of `generate` in order, a window of batches at a time.

  Mistakes are raised by the call itself, before anything is decoded.
  """
  checked = make_settings(pair, settings)
  texts = as_texts(texts)
  return _decode(pair, texts, encode(pair, texts, task, checked), checked)


def as_texts(texts: str | Iterable[str]) -> list[str]:
  """A list of texts out of one text or any iterable of texts.

  Raises:
    SpecdecError: it is something else.
  """
  if isinstance(texts, str):
    return [texts]
  if not isinstance(texts, Iterable) or isinstance(texts, bytes):
    raise SpecdecError(f"the input is {type(texts).__name__}; expected a text or several")
  texts = list(texts)
  for i, text in enumerate(texts):
    if not isinstance(text, str):
      raise InputError(i, f"is {type(text).__name__}; expected text")
  return texts


def encode(pair: Pair, texts: Sequence[str], task: str | None,
           settings: Settings) -> list["Encoded"]:
  """Tokenises texts behind a task's prefix, cut to the source limit.

  Raises:
    SpecdecError: the task is unknown, or a text is too long under `strict_length`.
  """
  prefix = task_prefix(pair, task)
  return [_cut(pair.vocabulary.encode(prefix + text), i, pair, settings)
          for i, text in enumerate(texts)]


def make_settings(pair: Pair, settings: dict[str, Any]) -> Settings:
  """Fills in the pair's defaults and checks names and values."""
  known = {f.name for f in dataclasses.fields(Settings)}
  unknown = sorted(set(settings) - known)
  if unknown:
    raise SpecdecError(f"unknown setting {', '.join(unknown)}; expected some of "
                       f"{', '.join(sorted(known))}")
  defaults = {"max_decode_len": pair.max_decode_len, "max_source_len": pair.max_source_len}
  return Settings(**{**defaults, **settings})


def task_prefix(pair: Pair, task: str | None) -> str:
  """The prefix of a task; None is the first task, "" no prefix."""
  if task == "" or (task is None and not pair.tasks):
    return ""
  if task is None:
    return next(iter(pair.tasks.values()))
  if task not in pair.tasks:
    listed = ", ".join(pair.tasks) or "none"
    raise SpecdecError(f"pair {pair.name!r} has no task {task!r}; it has: {listed}")
  return pair.tasks[task]


@dataclasses.dataclass(frozen=True)
class Encoded:
  """Encoder ids of an input, and whether they had to be cut."""

  ids: list[int]
  truncated: bool


def _cut(ids: list[int], index: int, pair: Pair, settings: Settings) -> Encoded:
  """Cuts ids to the source limit, keeping the EOS at the end."""
  limit = settings.max_source_len
  if len(ids) <= limit:
    return Encoded(ids, False)
  if settings.strict_length:
    raise InputError(index, f"has {len(ids)} tokens; expected at most {limit}: shorten it, "
                     "raise max_source_len, or allow cutting without strict_length")
  return Encoded([*ids[:limit - 1], pair.vocabulary.eos_id], True)


@dataclasses.dataclass(frozen=True)
class Batch:
  """Inputs that are decoded together.

  Attributes:
    example_ids: place of each input in the data, which its random streams and
      its record go by.
    encoder_ids: of each input.
    sampling: temperature, top_k and top_p, a value per input.
    rows: of the compiled program, at least as many as inputs.
  """

  example_ids: list[int]
  encoder_ids: list[list[int]]
  sampling: dict[str, np.ndarray]
  rows: int


def plan(encoded: Sequence[Encoded], settings: Settings) -> list[list[Batch]]:
  """Windows of batches; within a window, inputs of like length share a batch.

  Raises:
    SpecdecError: a setting has neither one value nor one per input.
  """
  count = len(encoded)
  values = {name: settings.per_row(name, count) for name in ("temperature", "top_k", "top_p")}
  # A last batch that is not full is padded to the size of the others, so that it
  # needs no program of its own.
  rows = min(_power_of_two(min(settings.batch_size, max(count, 1)), 1), settings.batch_size)
  windows = []
  for begin in range(0, count, rows * _WINDOW_BATCHES):
    members = range(begin, min(begin + rows * _WINDOW_BATCHES, count))
    members = sorted(members, key=lambda i: (len(encoded[i].ids), i))
    chosen = [members[j:j + rows] for j in range(0, len(members), rows)]
    windows.append([
        Batch(ids, [encoded[i].ids for i in ids],
              {name: value[ids] for name, value in values.items()}, rows)
        for ids in chosen])
  return windows


def _decode(pair: Pair, texts: Sequence[str], encoded: Sequence[Encoded],
            settings: Settings) -> Iterator[Record]:
  """Plans at once, then decodes window by window as records are asked for."""
  windows = plan(encoded, settings)

  def records() -> Iterator[Record]:
    for window in windows:
      done: dict[int, Record] = {}
      for batch in window:
        state = run_batch(pair, settings, batch)
        for row, i in enumerate(batch.example_ids):
          done[i] = make_record(pair, settings, texts[i], encoded[i], state, row)
      yield from (done[i] for i in sorted(done))

  return records()


def run_batch(pair: Pair, settings: Settings, batch: Batch) -> dict[str, np.ndarray]:
  """Decodes one batch to its end and fetches the result in one copy.

  Args:
    pair: target and drafter.
    settings: of the run.
    batch: out of `plan`.

  Returns:
    `ids` [B, T], `length`, `status`, `log_prob` and the counts, per row.
  """
  used, rows = len(batch.encoder_ids), batch.rows
  gamma = settings.effective_gamma
  method, weights = pair.method(gamma), pair.weights(gamma)
  width = _power_of_two(max(map(len, batch.encoder_ids)), 16)
  source = make_source(batch.encoder_ids, width=width, rows=rows)
  fill = lambda values: np.pad(values, (0, rows - used))
  eos = (pair.vocabulary.eos_id,) if settings.eos_ids is None else settings.eos_ids
  limits = Limits(np.full((rows,), settings.max_decode_len, np.int32),
                  np.asarray(tuple(eos) or (-1,), np.int32))
  with precision.matmul_precision(pair.target.config.dtype):
    row_keys = _row_keys(np.uint32(settings.seed), fill(batch.example_ids).astype(np.uint32))
    state = loop.start(
        method, weights, source, np.zeros((rows,), np.int32), row_keys,
        np.arange(rows) < used, state_lib.capacity_for(settings.max_decode_len, gamma))
    state = loop.run(
        method, weights, state,
        state_lib.sampling(rows, **{k: fill(v) for k, v in batch.sampling.items()}), limits,
        Exits(np.int32(2**30), np.int32(2**30)))
  return jax.device_get({
      "ids": state.ids, "length": state.length, "status": state.status,
      "log_prob": state.log_prob, "target_calls": state.stats.target_calls,
      "drafted": state.stats.drafted, "tested": state.stats.tested,
      "accepted": state.stats.accepted})


_row_keys = jax.jit(keys.row_keys)


def make_record(pair: Pair, settings: Settings, text: str, encoded: Encoded,
                state: dict[str, np.ndarray], row: int) -> Record:
  """The record of one input, from what `run_batch` returned and its row in it."""
  ids = state["ids"][row, 1:state["length"][row]].tolist()
  counts = {name: int(state[name][row])
            for name in ("target_calls", "drafted", "tested", "accepted")}
  return Record(
      input=text, output=pair.vocabulary.decode(ids), output_ids=ids,
      score=float(state["log_prob"][row]), status=Status(int(state["status"][row])).label,
      truncated=encoded.truncated, seed=settings.seed, **counts)


def _power_of_two(value: int, least: int) -> int:
  """The smallest power of two that is at least `value` and `least`."""
  return max(least, 1 << (value - 1).bit_length())
