"""What iterations cost here and now: measured for automatic gamma, before a run."""

from collections.abc import Sequence
import dataclasses
import statistics

import numpy as np

from specdec.engine.costs import SIZES
from specdec.engine.costs import Costs
from specdec.engine.job import Batch
from specdec.engine.job import Job
from specdec.engine.job import plan
from specdec.engine.job import source_width
from specdec.engine.pace import Fixed
from specdec.engine.pace import Pace
from specdec.engine.pace import Watched
from specdec.engine.run import Run

# Enough for medians and for a first idea of the acceptance, whatever the outputs' lengths.
_ITERATIONS = 48
_ROUNDS = 3
# Per size: a large model needs no more than that, and a small one settles within it.
_SECONDS = 2.0
# Tested tokens that make an acceptance rate worth believing: a standard error of 0.03.
_TESTED = 256


def ready(job: Job) -> Job:
  """The job with costs, measured on its first batch where it needs some and has none."""
  if not job.settings.paced or job.costs is not None or not job.encoded:
    return job
  return dataclasses.replace(job, costs=measure(job))


def measure(job: Job, sizes: Sequence[int] | None = None) -> Costs:
  """Decodes a job's first batches at every size, in turns, and returns what it cost.

  Each size is a program that the run compiles anyway. Acceptance is counted at the largest,
  over as many of the first inputs as it takes.

  Args:
    job: with one input or more.
    sizes: tokens drafted per iteration, 0 first; by default `costs.SIZES`, as far as the
      drafter goes.
  """
  sizes = tuple(sizes or sizes_for(job))
  # Only shapes are taken from these costs.
  job = dataclasses.replace(job, costs=Costs((1.0,) * len(sizes), 0.0, sizes), trace=False)
  batches = _alike(job)
  # To the limit, or what a run costs beside its iterations would weigh more on those of the
  # sizes that need few.
  endless = dataclasses.replace(job, settings=dataclasses.replace(job.settings, eos_ids=()))
  times: dict[int, list[float]] = {size: [] for size in sizes}
  for size in sizes:
    _run(endless, batches[0], size)  # Compiles.
  for i in range(_ROUNDS):
    for size in sizes if i % 2 == 0 else reversed(sizes):
      if sum(times[size]) < _SECONDS / _ITERATIONS:
        times[size].append(_seconds(_run(endless, batches[0], size), size))
  medians = [statistics.median(times[size]) for size in sizes]
  return Costs(tuple(rounded(t / medians[0]) for t in medians),
               rounded(_acceptance(job, batches, sizes[-1])), sizes,
               batch_size=batches[0].size * job.settings.num_decodes)


def _acceptance(job: Job, batches: Sequence[Batch], size: int) -> float:
  """Share of tested tokens that were accepted, 0 where nothing was drafted."""
  tested = accepted = 0
  for batch in batches:
    run = _run(job, batch, size)
    found = run.fetch()
    tested += int(np.sum(found["tested"][:run.rows_used]))
    accepted += int(np.sum(found["accepted"][:run.rows_used]))
    if tested >= _TESTED:
      break
  return accepted / tested if tested else 0.0


def sizes_for(job: Job) -> tuple[int, ...]:
  """The sizes of `SIZES` that the drafter of a job can fill and its limit has room for."""
  most = min(getattr(job.pair.drafter.drafter, "max_gamma", SIZES[-1]),
             job.settings.max_decode_len - 1)
  fitting = tuple(size for size in SIZES if size <= most)
  return fitting if len(fitting) > 1 else (0, 1)


def _alike(job: Job) -> list[Batch]:
  """The first batches that share the shapes of the very first."""
  batches = plan(job)[0]
  width = lambda batch: source_width([job.encoded[i] for i in batch.example_ids])
  return [batch for batch in batches if width(batch) == width(batches[0])]


def _run(job: Job, batch: Batch, size: int) -> Run:
  """A decode at one size, done."""
  rows = batch.size * job.settings.num_decodes
  pace: Pace = Fixed(size, rows)
  if size and job.pair.drafter.drafter.abstains:
    pace = Watched(pace)
  run = Run(job, batch, pace, watchful=True)
  run.wait()
  run.advance(_ITERATIONS)
  return run


def _seconds(run: Run, size: int) -> float:
  """Seconds of an iteration of the program of a size."""
  mine = [s for s in run.segments if s.size == size and s.iterations]
  return sum(s.seconds for s in mine) / sum(s.iterations for s in mine)


def rounded(value: float) -> float:
  """Four digits: the rest is noise, and a gin file is read by people."""
  return float(f"{value:.4g}")
