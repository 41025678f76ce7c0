"""Generation: texts or ids in, records out."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from specdec.engine import calibrate
from specdec.engine import refill
from specdec.engine import traces
from specdec.engine.batches import run_batch
from specdec.engine.costs import Costs
from specdec.engine.job import Batch
from specdec.engine.job import Job
from specdec.engine.job import from_ids
from specdec.engine.job import from_texts
from specdec.engine.job import plan
from specdec.engine.pairs import Pair
from specdec.engine.result import Record
from specdec.engine.result import Result
from specdec.types import Status


def generate(pair: Pair, texts: str | Iterable[str], *, task: str | None = None,
             prompt: Any = None, logits_fn: Any = None, trace: bool = False,
             costs: Costs | None = None,
             progress: Callable[[Record], None] | None = None, **settings: Any) -> Result:
  """Decodes texts by speculative decoding (or plainly), losslessly.

  Args:
    pair: from `load_pair`.
    texts: one text or several.
    task: name of one of the pair's tasks, whose prefix is put before each text;
      None for the pair's first task, "" for no prefix.
    prompt: what every output begins with, a text or ids; or one such per input.
    logits_fn: a hook `(logits [N, V], ids [N, T], lengths [N]) -> logits` that both
      models' logits go through, see `core.controls.adjust`.
    trace: keep each iteration's draft and what became of it in `Record.trace`.
    costs: what `gamma="auto"` goes by; measured on the first batch by default, and
      then in `Result.costs`.
    progress: called with each record as it is finished.
    **settings: fields of `Settings`: gamma, temperature, top_k, top_p, mode,
      max_decode_len, batch_size, seed and others.

  Returns:
    Records in the order of the inputs, with texts, ids, scores and statistics; with
    `num_decodes`, so many per input, the best last.

  Raises:
    SpecdecError: a setting is out of range, the task is unknown, an input is too long
      and `strict_length` is set, a prompt does not fit, or the hook returns something
      else than logits.

  >>> import specdec
  >>> pair = specdec.load_pair("demo")
  >>> result = specdec.generate(pair, "A dog runs across the grass.", gamma=4)
  >>> result.records[0].status
  'eos'
  """
  job = calibrate.ready(from_texts(pair, texts, task, settings, prompt, logits_fn=logits_fn,
                                   trace=trace, costs=costs))
  records = []
  for record in decode(job):
    records.append(record)
    if progress:
      progress(record)
  return Result(tuple(records), job.settings, job.costs)


def generate_ids(pair: Pair, encoder_ids: Any, *, prompt: Any = None, logits_fn: Any = None,
                 trace: bool = False, costs: Costs | None = None, **settings: Any) -> Result:
  """Decodes encoder ids; `input` of the records is empty.

  Args:
    pair: from `load_pair`.
    encoder_ids: int [B, S] padded with 0, or B lists of ids; EOS included. A row
      beyond `max_source_len` is cut and ends in EOS, and its record says so.
    prompt: see `generate`, and so are `logits_fn`, `trace` and `costs`.
    logits_fn: a hook.
    trace: keep each iteration.
    costs: for `gamma="auto"`.
    **settings: fields of `Settings`.

  Returns:
    Records in the order of the rows, as from `generate`.

  Raises:
    SpecdecError: a setting or an id is out of range.
  """
  job = calibrate.ready(from_ids(pair, encoder_ids, settings, prompt, logits_fn=logits_fn,
                                 trace=trace, costs=costs))
  return Result(tuple(decode(job)), job.settings, job.costs)


def iterate(pair: Pair, texts: str | Iterable[str], *, task: str | None = None,
            prompt: Any = None, logits_fn: Any = None, trace: bool = False,
            costs: Costs | None = None, **settings: Any) -> Iterator[Record]:
  """Yields the records of `generate` in order, a window of batches at a time.

  Mistakes are raised by the call itself, before anything is decoded.

  Args:
    pair: from `load_pair`.
    texts: one text or several.
    task: see `generate`, and so are all the others.
    prompt: what every output begins with.
    logits_fn: a hook.
    trace: keep each iteration.
    costs: for `gamma="auto"`.
    **settings: fields of `Settings`.

  Returns:
    An iterator; a window is decoded when its first record is asked for.

  Raises:
    SpecdecError: see `generate`.
  """
  return decode(from_texts(pair, texts, task, settings, prompt, logits_fn=logits_fn, trace=trace,
                           costs=costs))


def decode(job: Job) -> Iterator[Record]:
  """Decodes window by window, as records are asked for."""
  job = calibrate.ready(job)
  for window in plan(job):
    if job.settings.refills:
      for batch in window:
        yield from _as_they_end(job, batch)
      continue
    done: dict[int, list[Record]] = {}
    for batch in window:
      done.update(make_records(job, batch, run_batch(job, batch)))
    for i in sorted(done):
      yield from done[i]


def _as_they_end(job: Job, batch: Batch) -> Iterator[Record]:
  """Records of a queue of inputs, each as soon as it and all before it have ended."""
  run, ended, waiting = refill.Refill(job, batch), set(), 0
  for place in run.ended():
    ended.add(place)
    while waiting in ended:
      yield from _samples(job, batch.example_ids[waiting], waiting, run.found)
      waiting += 1


def make_records(job: Job, batch: Batch, fetched: dict[str, Any]) -> dict[int, list[Record]]:
  """Records of a batch's inputs by their place in the data, the best sample last.

  Args:
    job: the batch's.
    batch: out of `plan`.
    fetched: from `run_batch`.
  """
  return {example: _samples(job, example, i, fetched)
          for i, example in enumerate(batch.example_ids)}


def _samples(job: Job, example: int, place: int, fetched: dict[str, Any]) -> list[Record]:
  """Records of the input that has this place in what was fetched."""
  copies = job.settings.num_decodes
  by = "adjusted_score" if job.settings.rescale_log_probs else "score"
  samples = [_record(job, example, k, fetched, place * copies + k) for k in range(copies)]
  # T5X's order (t5x/decoding.py::temperature_sample). The sort is stable.
  return sorted(samples, key=lambda record: getattr(record, by))


def _record(job: Job, example: int, sample: int, fetched: dict[str, Any], row: int) -> Record:
  encoded = job.encoded[example]
  ids = fetched["ids"][row, 1:fetched["length"][row]].tolist()
  status = Status(int(fetched["status"][row]))
  counts = {name: int(fetched[name][row])
            for name in ("target_calls", "drafted", "tested", "accepted")}
  trace = None
  if fetched["trace"] is not None:
    trace = traces.iterations(fetched["trace"], row, counts["target_calls"],
                              ids[len(encoded.prompt):], encoded.prompt, job.pair.vocabulary)
  return Record(
      index=job.place(example), sample=sample, input=job.texts[example],
      output=text_of(job, ids, status), output_ids=ids, prompt_tokens=len(encoded.prompt),
      score=float(fetched["log_prob"][row]),
      adjusted_score=float(fetched["adjusted_log_prob"][row]), status=status.label,
      truncated=encoded.truncated, seed=job.settings.seed, lossless=job.settings.lossless,
      trace=trace, **counts)


def text_of(job: Job, ids: list[int], status: Status) -> str:
  """Text of a row's ids, without the id that ended it."""
  return job.pair.vocabulary.decode(ids[:-1] if status == Status.EOS else ids)
