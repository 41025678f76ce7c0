"""Compiles what a job will need, before there is a job."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import time
from typing import Any

from jax import monitoring

from specdec.engine import calibrate
from specdec.engine import shapes
from specdec.engine.costs import Costs
from specdec.engine.job import Batch
from specdec.engine.job import Job
from specdec.engine.job import from_ids
from specdec.engine.job import plan
from specdec.engine.job import power_of_two
from specdec.engine.job import prompt_width
from specdec.engine.job import source_width
from specdec.engine.pace import Auto
from specdec.engine.pace import Fixed
from specdec.engine.pace import Pace
from specdec.engine.pace import Watched
from specdec.engine.pairs import Pair
from specdec.engine.run import Run
from specdec.engine.settings import PER_ROW
from specdec.engine.settings import whole
from specdec.errors import SpecdecError

_COMPILED = "/jax/core/compile/backend_compile_duration"
_READ = "/jax/compilation_cache/cache_hits"
_counted = {_COMPILED: 0, _READ: 0}
_listening = False


@dataclasses.dataclass(frozen=True)
class Shape:
  """A shape of batches.

  Attributes:
    size: inputs.
    width: columns of the source.
    prompt: columns of the prompt, start id included.
  """

  size: int
  width: int
  prompt: int


@dataclasses.dataclass(frozen=True)
class Warmed:
  """What a warm-up did.

  Attributes:
    shapes: that are ready.
    programs: of these shapes that were not there yet.
    read: so many of them were read from disk instead of compiled.
    seconds: it took.
  """

  shapes: tuple[Shape, ...]
  programs: int
  read: int
  seconds: float


def widths_of(max_source_len: int) -> tuple[int, ...]:
  """Every source width that inputs up to a length can have."""
  widths = [power_of_two(1, 16)]
  while widths[-1] < max_source_len:
    widths.append(2 * widths[-1])
  return tuple(widths)


def empty_jobs(pair: Pair, settings: dict[str, Any], widths: Sequence[int] | None = None,
               prompt: Any = None, **options: Any) -> Iterator[Job]:
  """Jobs of one full batch each, one for every source width.

  Args:
    pair: target and drafter.
    settings: fields of `Settings`; of those that are given per input the first counts.
    widths: of sources; by default all that `max_source_len` leaves.
    prompt: what every output begins with.
    **options: `logits_fn`, `trace` and `costs` of the jobs.

  Raises:
    SpecdecError: a setting or a width is out of range.
  """
  settings = {name: value[0] if name in PER_ROW and isinstance(value, list | tuple) else value
              for name, value in settings.items()}
  eos = pair.vocabulary.eos_id
  checked = from_ids(pair, [[eos]], settings, prompt).settings
  if checked.refills:
    raise SpecdecError("batching is 'refill', whose programs go by which inputs meet; expected "
                       "batching sorted or arrival: a warm-up knows their programs beforehand")
  known = widths_of(checked.max_source_len)
  for width in known if widths is None else widths:
    whole("a width", width, 1, known[-1], "the least that holds max_source_len")
    ids = [eos] * min(power_of_two(width, known[0]), checked.max_source_len)
    yield from_ids(pair, [ids] * checked.batch_size, settings, prompt, **options)


def warm(jobs: Sequence[Job], progress: Callable[[Shape], None] = lambda shape: None) -> Warmed:
  """Has every program compiled that jobs will need; nothing is decoded.

  With automatic gamma that are the programs of all its sizes, and those that measure costs.

  Args:
    jobs: with inputs.
    progress: called with each shape before it is compiled.
  """
  _listen()
  begin, before = time.perf_counter(), dict(_counted)
  done: dict[Shape, None] = {}
  programs = 0
  for job in jobs:
    for batch in (batch for window in plan(job) for batch in window):
      encoded = [job.encoded[i] for i in batch.example_ids]
      shape = Shape(batch.size, source_width(encoded), prompt_width(encoded))
      if shape not in done:
        done[shape] = None
        progress(shape)
        known = shapes.programs()
        _warm(job, batch)
        # Fewer than before: there were too many, and others were let go of.
        programs += max(shapes.programs() - known, 0)
  read = min(_counted[_READ] - before[_READ], programs)
  return Warmed(tuple(done), programs, read, time.perf_counter() - begin)


def _warm(job: Job, batch: Batch) -> None:
  if not job.settings.paced:
    Run(job, batch).compile()
    return
  rows = batch.size * job.settings.num_decodes
  measured = job.costs is None
  if job.costs is None:
    sizes = calibrate.sizes_for(job)
    job = dataclasses.replace(job, costs=Costs((1.0,) * len(sizes), 1.0, sizes))
  # Costs are measured without a trace.
  for trace in {job.trace, job.trace and not measured}:
    traced = dataclasses.replace(job, trace=trace)
    pace: Pace = Auto(job.costs, rows)
    if job.pair.drafter.drafter.abstains:
      pace = Watched(pace)
    Run(traced, batch, pace).compile()
    # Costs may say that drafting does not pay at all.
    Run(traced, batch, Fixed(0, rows)).compile()


def _listen() -> None:
  """Counts programs from now on, and once: JAX has no way to stop listening."""
  global _listening
  if _listening:
    return
  _listening = True

  def count(event: str, *_: Any, **__: Any) -> None:
    if event in _counted:
      _counted[event] += 1

  monitoring.register_event_listener(count)
  monitoring.register_event_duration_secs_listener(count)
