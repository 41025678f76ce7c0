"""Several ways of decoding the same inputs, taking turns, and what each of them took."""

from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import time

from specdec.engine import refill
from specdec.engine.batches import run_batch
from specdec.engine.generate import make_records
from specdec.engine.job import Batch
from specdec.engine.job import Job
from specdec.engine.job import plan
from specdec.engine.job import source_width
from specdec.engine.result import Record


@dataclasses.dataclass
class Clock:
  """Seconds of one way of decoding.

  Attributes:
    seconds: from handing a batch of ids to the device until its outputs are back, summed
      over batches: encoding and decoding. Not in it: reading and tokenising texts, compiling,
      detokenising, metrics.
    warm_up_s: of the batches that were decoded beforehand to compile what they need.
  """

  seconds: float = 0.0
  warm_up_s: float = 0.0


def in_turns(jobs: Mapping[str, Job], clocks: Mapping[str, Clock], process: int = 0,
             num_processes: int = 1) -> Iterator[dict[str, list[Record]]]:
  """Decodes the inputs of several jobs batch by batch, every batch in all of the ways.

  Which way goes first alternates, so that a machine that slows down or speeds up meanwhile
  does so for all of them. A batch of every shape is decoded beforehand, so that nothing is
  compiled while the clock runs (other sizes of an automatic gamma may be).

  Args:
    jobs: on the same inputs with the same batch size, by the name of the way; with the costs
      that an automatic gamma needs.
    clocks: filled in, by the same names.
    process: which of the processes that share the batches this is.
    num_processes: how many there are.

  Yields:
    The records of an input in each of the ways, input by input; of this process's share.
  """
  first = next(iter(jobs.values()))
  windows = _share(plan(first), process, num_processes)
  for name, job in jobs.items():
    begin = time.perf_counter()
    for batch in _shapes(first, windows):
      run_batch(job, batch)
    clocks[name].warm_up_s += time.perf_counter() - begin
  order = list(jobs)
  for window in windows:
    done: dict[str, dict[int, list[Record]]] = {name: {} for name in jobs}
    for batch in window:
      for name in order:
        begin = time.perf_counter()
        fetched = run_batch(jobs[name], batch)
        clocks[name].seconds += time.perf_counter() - begin
        done[name].update(make_records(jobs[name], batch, fetched))
      order.reverse()
    for i in sorted(done[order[0]]):
      yield {name: done[name][i] for name in jobs}


def _share(windows: list[list[Batch]], process: int, num_processes: int) -> list[list[Batch]]:
  """Every so many batches: whole ones, as they are in a process alone, of all lengths."""
  count, out = 0, []
  for window in windows:
    out.append([batch for i, batch in enumerate(window, count) if i % num_processes == process])
    count += len(window)
  return out


def _shapes(job: Job, windows: list[list[Batch]]) -> list[Batch]:
  """A batch of every source width; batches are all of one size."""
  if job.settings.refills:
    return [refill.sample(job, batch) for window in windows for batch in window]
  found: dict[int, Batch] = {}
  for window in windows:
    for batch in window:
      found.setdefault(source_width([job.encoded[i] for i in batch.example_ids]), batch)
  return list(found.values())
