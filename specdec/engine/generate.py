"""Generation: tokenise, bucket, batch, decode, detokenise.

Shapes are bucketed, so that inputs of many lengths share a few compiled programs:
the source width is a power of two from 16 up, the batch a power of two up to
`batch_size`. An input's result depends on neither.
"""

from collections.abc import Callable
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
from specdec.engine.models import make_source
from specdec.engine.result import Record
from specdec.engine.result import Result
from specdec.engine.settings import Settings
from specdec.types import Limits
from specdec.types import SpecdecError
from specdec.types import Status

# Inputs looked at together when batches of like length are formed.
_WINDOW_BATCHES = 16


def generate(pair: Pair, texts: str | Sequence[str], *, task: str | None = None,
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
  for record in iterate(pair, [texts] if isinstance(texts, str) else texts,
                        task=task, **settings):
    records.append(record)
    if progress:
      progress(record)
  return Result(tuple(records), make_settings(pair, settings))


def generate_ids(pair: Pair, encoder_ids: Any, **settings: Any) -> Result:
  """Decodes encoder ids; `input` of the records is empty.

  Args:
    pair: from `load_pair`.
    encoder_ids: int [B, S] padded with 0, or B lists of ids; EOS included.
    **settings: fields of `Settings`.

  Raises:
    SpecdecError: a setting or an id is out of range.
  """
  checked = make_settings(pair, settings)
  rows = [np.trim_zeros(np.asarray(row, np.int32), "b") for row in encoder_ids]
  make_source(rows, pair.vocabulary) if rows else None
  cut = [_cut(list(map(int, row)), i, pair, checked) for i, row in enumerate(rows)]
  return Result(tuple(_decode(pair, [""] * len(cut), cut, checked)), checked)


def iterate(pair: Pair, texts: Sequence[str], *, task: str | None = None,
            **settings: Any) -> Iterator[Record]:
  """Yields the records of `generate` in order, a window of batches at a time."""
  checked = make_settings(pair, settings)
  prefix = task_prefix(pair, task)
  for name, text in ((f"input {i}", t) for i, t in enumerate(texts)):
    if not isinstance(text, str):
      raise SpecdecError(f"{name} is {type(text).__name__}; expected text")
  encoded = [_cut(pair.vocabulary.encode(prefix + text), i, pair, checked)
             for i, text in enumerate(texts)]
  return _decode(pair, texts, encoded, checked)


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
class _Encoded:
  ids: list[int]
  truncated: bool


def _cut(ids: list[int], index: int, pair: Pair, settings: Settings) -> _Encoded:
  """Cuts ids to the source limit, keeping the EOS at the end."""
  limit = settings.max_source_len
  if len(ids) <= limit:
    return _Encoded(ids, False)
  if settings.strict_length:
    raise SpecdecError(f"input {index} has {len(ids)} tokens; expected at most {limit}: "
                       "shorten it, raise max_source_len, or allow cutting without "
                       "strict_length")
  return _Encoded([*ids[:limit - 1], pair.vocabulary.eos_id], True)


def _decode(pair: Pair, texts: Sequence[str], encoded: Sequence[_Encoded],
            settings: Settings) -> Iterator[Record]:
  """Decodes window by window; within one, like lengths share a batch."""
  count = len(encoded)
  rows = {name: settings.per_row(name, count) for name in ("temperature", "top_k", "top_p")}
  # A last batch that is not full is padded to the size of the others, so that it
  # needs no program of its own.
  batch = _power_of_two(min(settings.batch_size, max(count, 1)), 1)
  batch = min(batch, settings.batch_size)
  window = batch * _WINDOW_BATCHES
  for begin in range(0, count, window):
    members = range(begin, min(begin + window, count))
    by_length = sorted(members, key=lambda i: (len(encoded[i].ids), i))
    done: dict[int, Record] = {}
    for j in range(0, len(by_length), batch):
      chosen = by_length[j:j + batch]
      state = run_batch(
          pair, settings, [encoded[i].ids for i in chosen], np.asarray(chosen),
          {name: values[chosen] for name, values in rows.items()}, batch)
      for row, i in enumerate(chosen):
        done[i] = _record(pair, settings, texts[i], encoded[i], state, row)
    yield from (done[i] for i in members)


def run_batch(pair: Pair, settings: Settings, encoder_ids: Sequence[Sequence[int]],
              example_ids: np.ndarray, sampling: dict[str, np.ndarray],
              batch: int) -> dict[str, np.ndarray]:
  """Decodes one batch to its end and fetches the result in one copy.

  Args:
    pair: target and drafter.
    settings: of the run.
    encoder_ids: up to `batch` rows of ids.
    example_ids: place of each row in the data, for its random streams.
    sampling: values per row.
    batch: rows of the compiled program.

  Returns:
    `ids` [B, T], `length`, `status`, `log_prob` and the counts, per row.
  """
  used = len(encoder_ids)
  gamma = settings.effective_gamma
  method, weights = pair.method(gamma), pair.weights(gamma)
  width = _power_of_two(max(map(len, encoder_ids)), 16)
  source = make_source(encoder_ids, width=width, rows=batch)
  fill = lambda values: np.pad(values, (0, batch - used))
  eos = (pair.vocabulary.eos_id,) if settings.eos_ids is None else settings.eos_ids
  limits = Limits(np.full((batch,), settings.max_decode_len, np.int32),
                  np.asarray(tuple(eos) or (-1,), np.int32))
  with precision.matmul_precision(pair.target.config.dtype):
    row_keys = _row_keys(np.uint32(settings.seed), fill(example_ids).astype(np.uint32))
    state = loop.start(
        method, weights, source, np.zeros((batch,), np.int32), row_keys,
        np.arange(batch) < used, state_lib.capacity_for(settings.max_decode_len, gamma))
    state = loop.run(
        method, weights, state,
        state_lib.sampling(batch, **{k: fill(v) for k, v in sampling.items()}), limits,
        Exits(np.int32(2**30), np.int32(2**30)))
  return jax.device_get({
      "ids": state.ids, "length": state.length, "status": state.status,
      "log_prob": state.log_prob, "target_calls": state.stats.target_calls,
      "drafted": state.stats.drafted, "tested": state.stats.tested,
      "accepted": state.stats.accepted})


_row_keys = jax.jit(keys.row_keys)


def _record(pair: Pair, settings: Settings, text: str, encoded: _Encoded,
            state: dict[str, np.ndarray], row: int) -> Record:
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
