"""Repeated measurements that take turns."""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import statistics
import time
from typing import Any

# A sample consists of calls that take so long together, so that the clock and the first
# call after another subject's weigh little.
_SAMPLE_S = 0.06
_MIN_CALLS, _MAX_CALLS = 4, 200


@dataclasses.dataclass(frozen=True)
class Spread:
  """Median, quartiles and range of repeated measurements."""

  median: float
  low: float
  high: float
  quartiles: tuple[float, float]

  @classmethod
  def of(cls, values: Sequence[float]) -> "Spread":
    """The spread of one value or more."""
    median = statistics.median(values)
    if len(values) == 1:  # `statistics.quantiles` wants two at least.
      return cls(median, median, median, (median, median))
    q1, _, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return cls(median, min(values), max(values), (q1, q3))

  def rounded(self) -> dict[str, Any]:
    """JSON-ready, see `rounded`."""
    return rounded(dataclasses.asdict(self))


def interleave(subjects: Mapping[str, Callable[[], float]], repeats: int,
               restless: Collection[str] = (), pause_s: float = 0.25,
               progress: Callable[[int], None] | None = None) -> dict[str, list[float]]:
  """Lets subjects take turns, a sample each per round.

  Every other round goes backwards: a machine that slows down or speeds up meanwhile
  does so for all. Samples of one round are near each other in time, so ratios are to be
  taken round by round.

  Args:
    subjects: by name, what takes one sample and returns it, in seconds.
    repeats: rounds.
    restless: subjects whose threads spin for a while after their work, as OpenMP's do
      for up to 0.2 s, and would slow down whoever comes next.
    pause_s: rest after a sample of theirs.
    progress: called with the number of finished rounds.

  Returns:
    Samples by name, a value per round.
  """
  samples: dict[str, list[float]] = {name: [] for name in subjects}
  names = list(subjects)
  for i in range(repeats):
    for name in names if i % 2 == 0 else reversed(names):
      samples[name].append(subjects[name]())
      if name in restless:
        time.sleep(pause_s)
    if progress:
      progress(i + 1)
  return samples


def interleave_parts(subjects: Mapping[str, Sequence[Callable[[], object]]], repeats: int,
                     progress: Callable[[int], None] | None = None) -> dict[str, list[float]]:
  """Lets subjects take turns at every part of a piece of work, such as a batch of many.

  Where a pass over the work takes a second, a machine has changed its speed before the next
  subject's; within a part it hardly does. Who goes first changes from part to part, and so
  does who follows whom.

  Args:
    subjects: by name, calls that do the parts, as many and in the same order for all.
    repeats: rounds.
    progress: called with the number of finished rounds.

  Returns:
    Seconds of all parts together by name, a value per round.
  """
  samples: dict[str, list[float]] = {name: [] for name in subjects}
  turn = 0
  for i in range(repeats):
    totals = dict.fromkeys(subjects, 0.0)
    for calls in zip(*subjects.values(), strict=True):
      order = list(zip(subjects, calls))
      first = turn % len(order)
      order = order[first:] + order[:first]
      turn += 1
      for name, call in order if i % 2 == 0 else reversed(order):
        begin = time.perf_counter()
        call()
        totals[name] += time.perf_counter() - begin
    for name, total in totals.items():
      samples[name].append(total)
    if progress:
      progress(i + 1)
  return samples


class Sampler:
  """Samples a short call: the mean over enough calls in a row.

  Args:
    calls: runs so many calls in a row and waits for the results.
  """

  def __init__(self, calls: Callable[[int], object]):
    self._calls = calls
    self._calls(1)  # Whatever happens on a first call happens here.
    once = min(self._timed(1) for _ in range(2))
    self._count = int(min(max(_SAMPLE_S / max(once, 1e-9), _MIN_CALLS), _MAX_CALLS))

  def _timed(self, count: int) -> float:
    begin = time.perf_counter()
    self._calls(count)
    return (time.perf_counter() - begin) / count

  def __call__(self) -> float:
    # Once for nothing: threads and caches come from another subject.
    self._calls(1)
    return self._timed(self._count)


def one_by_one(call: Callable[[], object]) -> Callable[[int], object]:
  """What runs a call so many times, for `Sampler`."""
  def several(count: int) -> None:
    for _ in range(count):
      call()

  return several


def ratios(above: Sequence[float], below: Sequence[float]) -> Spread:
  """Spread of the ratio of two subjects, round by round."""
  return Spread.of([a / b for a, b in zip(above, below, strict=True)])


def rounded(value: Any) -> Any:
  """A JSON-ready copy, floats to five significant digits: more is noise, and takes room."""
  if isinstance(value, dict):
    return {k: rounded(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [rounded(v) for v in value]
  return float(f"{value:.5g}") if isinstance(value, float) else value


def spread_text(spread: dict[str, Any]) -> str:
  """A recorded spread in words: its median, and its quartiles in brackets."""
  low, high = spread["quartiles"]
  return f"{spread['median']:.2f} ({low:.2f} to {high:.2f})"


def percent_text(spread: dict[str, Any]) -> str:
  """Likewise, of shares."""
  low, high = spread["quartiles"]
  return f"{spread['median']:.0%} ({low:.0%} to {high:.0%})"
