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
from specdec.engine.run import Timed

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
  times: dict[int, list[float]] = {size: [] for size in sizes}
  spent = dict.fromkeys(sizes, 0.0)
  for size in sizes:
    _timed(job, batches[0], size)  # Compiles.
  counts = np.zeros(2, np.int64)
  for i in range(max(_ROUNDS, len(batches))):
    for size in sizes if i % 2 == 0 else reversed(sizes):
      last = size == sizes[-1]
      enough = i >= _ROUNDS and (not last or counts[0] >= _TESTED)
      if enough or (i and spent[size] > _SECONDS):
        continue
      segments, found = _timed(job, batches[i % len(batches)], size)
      mine = [s for s in segments if s.size == size and s.iterations]
      seconds = sum(s.seconds for s in mine)
      times[size].append(seconds / sum(s.iterations for s in mine))
      spent[size] += seconds
      if last and i < len(batches):
        counts += found
  tested, accepted = counts.tolist()
  batch = batches[0]
  medians = [statistics.median(times[size]) for size in sizes]
  return Costs(tuple(rounded(t / medians[0]) for t in medians),
               rounded(accepted / tested) if tested else 0.0, sizes,
               batch_size=batch.size * job.settings.num_decodes)


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


def _timed(job: Job, batch: Batch, size: int) -> tuple[list[Timed], tuple[int, int]]:
  """Segments of a decode at one size, and the tested and accepted tokens of its rows."""
  rows = batch.size * job.settings.num_decodes
  pace: Pace = Fixed(size, rows)
  if size and job.pair.drafter.drafter.abstains:
    pace = Watched(pace)
  run = Run(job, batch, pace, watchful=True)
  run.wait()
  run.advance(_ITERATIONS)
  found = run.fetch()
  used = slice(0, run.rows_used)
  return run.segments, (int(np.sum(found["tested"][used])), int(np.sum(found["accepted"][used])))


def rounded(value: float) -> float:
  """Four digits: the rest is noise, and a gin file is read by people."""
  return float(f"{value:.4g}")
