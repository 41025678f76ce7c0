"""What iterations cost here and now: measured for automatic gamma, before a run."""

from collections.abc import Sequence
import dataclasses
import statistics
import time

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

# A run is cut after so many iterations: long outputs tell no more.
_ITERATIONS = 256
_ROUNDS = 5
# Inputs that are decoded at every size, and the most seconds that one size may take a round.
_INPUTS, _SECONDS = 16, 1.0


def ready(job: Job) -> Job:
  """The job with costs, measured on its first batch where it needs some and has none."""
  if not job.settings.paced or job.costs is not None or not job.encoded:
    return job
  return dataclasses.replace(job, costs=measure(job))


def measure(job: Job, sizes: Sequence[int] | None = None) -> Costs:
  """Decodes some of a job's first inputs at every size, in turns, and returns what it cost.

  Whole decodes are timed: rows of a batch wait for each other, and a run costs something
  beside its iterations. `Costs.iteration` is what makes the formula give the measured
  speed-up at the measured acceptance. Each size is a program that the run compiles anyway.

  Args:
    job: with one input or more.
    sizes: tokens drafted per iteration, 0 first; by default `costs.SIZES`, as far as the
      drafter goes.
  """
  sizes = tuple(sizes or sizes_for(job))
  # Only shapes are taken from these costs.
  job = dataclasses.replace(job, costs=Costs((1.0,) * len(sizes), 0.0, sizes), trace=False)
  batches = _alike(job)
  for size in sizes:
    _run(job, batches[0], size)  # Compiles.
  begin = time.perf_counter()
  _run(job, batches[0], sizes[-1])
  batches = batches[:max(int(_SECONDS / (time.perf_counter() - begin)), 1)]
  seconds: dict[int, list[float]] = {size: [] for size in sizes}
  counts = np.zeros(2, np.int64)
  for i in range(_ROUNDS):
    spent = dict.fromkeys(sizes, 0.0)
    for j, batch in enumerate(batches):
      # Batch by batch, in another order each time: a machine changes its speed meanwhile.
      first = j % len(sizes)
      order = sizes[first:] + sizes[:first]
      for size in order if i % 2 == 0 else reversed(order):
        begin = time.perf_counter()
        run = _run(job, batch, size)
        spent[size] += time.perf_counter() - begin
        if size == sizes[-1] and not i:
          counts += _counts(run)
    for size in sizes:
      seconds[size].append(spent[size])
  alpha = float(counts[1] / counts[0]) if counts[0] else 0.0
  gains = [statistics.median(a / b for a, b in zip(seconds[0], seconds[size])) for size in sizes]
  # What the formula promises where iterations cost nothing more than plain ones.
  promised = Costs((1.0,) * len(sizes), alpha, sizes).speed_up(alpha)
  return Costs(tuple(rounded(p / g) for p, g in zip(promised.tolist(), gains)), rounded(alpha),
               sizes, batch_size=batches[0].size * job.settings.num_decodes)


def sizes_for(job: Job) -> tuple[int, ...]:
  """The sizes of `SIZES` that the drafter of a job can fill and its limit has room for."""
  most = min(getattr(job.pair.drafter.drafter, "max_gamma", SIZES[-1]),
             job.settings.max_decode_len - 1)
  fitting = tuple(size for size in SIZES if size <= most)
  return fitting if len(fitting) > 1 else (0, 1)


def _alike(job: Job) -> list[Batch]:
  """Some batches of one shape, with inputs of a usual length.

  A window's batches go from its shortest inputs to its longest, and short ones accept more.
  """
  batches = plan(job)[0]
  width = lambda batch: source_width([job.encoded[i] for i in batch.example_ids])
  middle = batches[len(batches) // 2]
  alike = [batch for batch in batches if width(batch) == width(middle)]
  wanted = -(-_INPUTS // middle.size)
  begin = max(min(alike.index(middle) - wanted // 2, len(alike) - wanted), 0)
  return alike[begin:begin + wanted]


def _run(job: Job, batch: Batch, size: int) -> Run:
  """A decode at one size, done."""
  rows = batch.size * job.settings.num_decodes
  pace: Pace = Fixed(size, rows)
  if size and job.pair.drafter.drafter.abstains:
    pace = Watched(pace)
  run = Run(job, batch, pace)
  run.advance(_ITERATIONS)
  run.wait()
  return run


def _counts(run: Run) -> np.ndarray:
  """Tested and accepted tokens of a run's rows."""
  found = run.fetch()
  return np.array([found[name][:run.rows_used].sum() for name in ("tested", "accepted")])


def rounded(value: float) -> float:
  """Four digits: the rest is noise, and a gin file is read by people."""
  return float(f"{value:.4g}")
