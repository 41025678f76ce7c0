"""`specdec bench` over several batch sizes: what a batch is worth, and what it changes."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from specdec.bench import measure
from specdec.bench import records
from specdec.bench import runs
from specdec.bench import timing
from specdec.bench.timing import Spread
from specdec.bench.workload import Workload
from specdec.errors import SpecdecError


def sweep(workload: Workload, batches: Sequence[int], *, repeats: int = 15,
          progress: Callable[[str], None] = lambda message: None) -> dict[str, Any]:
  """Measures the first 1, ... rows of a workload, as batches, and returns a record.

  Plain tokens per second grow with the batch while a call is bound by reading weights.
  Every row of every batch is compared with what it gives when it is decoded alone.

  Args:
    workload: with as many rows as the largest batch.
    batches: sizes, ascending; 1 is measured in any case.
    repeats: rounds; every size gives one sample per round.
    progress: told what goes on.
  """
  if workload.more:
    raise SpecdecError("several batch sizes decode one batch, and the texts make "
                       f"{len(workload.sources)} batches; expected a single one: raise "
                       "--batch_size or give fewer texts")
  batches = sorted({1, *batches})
  gamma = workload.gamma
  plain, speculative, subjects = {}, {}, {}
  for b in batches:
    progress(f"compiling for a batch of {b}")
    part = workload.rows(0, b)
    plain[b] = runs.Decode(part, 0)
    speculative[b] = runs.Decode(part, gamma)
    for name, decode in ((_plain(b), plain[b]), (_speculative(b), speculative[b])):
      decode.per_iteration()
      subjects[name] = decode.per_iteration
  samples = timing.interleave(subjects, repeats, progress=lambda done: progress(
      f"measuring, round {done} of {repeats}"))
  progress("comparing rows with their own runs")
  alone = []
  for i in range(batches[-1]):
    alone += plain[1].on(workload.rows(i, i + 1).source)
  table, speed = [], {}
  for b in batches:
    plain[b].whole()
    # Rows that have ended idle along: what an iteration yields is less than a token a row.
    speed[b] = [plain[b].tokens_per_iteration / t for t in samples[_plain(b)]]
    table.append({
        "batch_size": b,
        "tokens_per_s": Spread.of(speed[b]).rounded(),
        "times_batch_1": timing.ratios(speed[b], speed[1]).rounded(),
        "speculative_iteration_s": Spread.of(samples[_speculative(b)]).rounded(),
        "iteration_times_batch_1": timing.ratios(
            [b * t for t in samples[_speculative(1)]], samples[_speculative(b)]).rounded(),
        "rows_alike_plain": _agreeing(plain[b].ids, alone),
        "rows_alike_speculative": _agreeing(speculative[b].ids, alone)})
  return {
      "kind": "batches", **records.environment(), **measure.describe(workload, repeats),
      "batch_size": batches[-1], "batches": table,
      "samples_s": {name: timing.rounded(v) for name, v in samples.items()}}


def _agreeing(ids: list[list[int]], alone: list[list[int]]) -> int:
  """Rows that equal their own runs."""
  return sum(row == own for row, own in zip(ids, alone))


def _plain(batch: int) -> str:
  return f"plain iteration, batch {batch}"


def _speculative(batch: int) -> str:
  return f"speculative iteration, batch {batch}"
