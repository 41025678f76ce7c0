"""`specdec tune`: which drafter, and how much of it, pays on a user's own texts and device."""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from specdec.bench import records
from specdec.bench import runs
from specdec.bench import timing
from specdec.bench.compare import Pass
from specdec.bench.timing import Spread
from specdec.bench.workload import Part
from specdec.bench.workload import Workload
from specdec.engine import calibrate
from specdec.engine import job as job_lib
from specdec.engine import models
from specdec.engine.costs import Costs
from specdec.engine.job import Job
from specdec.engine.pairs import Pair
from specdec.engine.settings import AUTO
from specdec.errors import SpecdecError

_ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A drafter and what was measured of it.

  Attributes:
    spec: as in `engine.drafter_specs`.
    costs: measured.
    gamma: the best fixed size, 0 where none pays.
    expected: speed-up over plain decoding that the costs promise at that size.
    ms_per_token: of decoding with automatic gamma.
    speed_up: of automatic gamma over plain decoding, measured side by side.
  """

  spec: str
  costs: Costs
  gamma: int
  expected: float
  ms_per_token: Spread
  speed_up: Spread

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready."""
    return {"drafter": self.spec, "costs": dataclasses.asdict(self.costs),
            "cost_ratio": self.costs.drafter_call, "best_gamma": self.gamma,
            "expected_speed_up": self.expected, "ms_per_token": self.ms_per_token.rounded(),
            "speed_up": self.speed_up.rounded()}


@dataclasses.dataclass(frozen=True)
class Tuned:
  """What `tune` found.

  Attributes:
    pair: its name.
    task: as given.
    settings: of the runs, as given.
    inputs: how many texts.
    candidates: in the order of measured speed-up, the best first.
    own: spec of the pair's own drafter.
    environment: see `records.environment`.
  """

  pair: str
  task: str | None
  settings: dict[str, Any]
  inputs: int
  candidates: tuple[Candidate, ...]
  own: str
  environment: dict[str, Any]

  @property
  def winner(self) -> Candidate | None:
    """The fastest, or None where nothing is faster than plain decoding."""
    best = self.candidates[0]
    return best if best.speed_up.median > 1 else None

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready."""
    return {**self.environment, "kind": "tuned", "pair": self.pair, "task": self.task,
            "settings": self.settings, "inputs": self.inputs,
            "winner": self.winner and self.winner.spec,
            "drafters": [c.to_dict() for c in self.candidates]}

  def to_gin(self, pair: Mapping[str, str | None] | None = None) -> str:
    """Bindings that run the winner: `specdec generate --gin_file=...`.

    Args:
      pair: arguments of `load_pair` that load the pair, but for the drafter; None and "demo"
        are its defaults.
    """
    e, best = self.environment, self.winner
    lines = [f"# Measured by specdec tune on {self.inputs} texts, {e['device']} x{e['devices']}, "
             f"jax {e['jax']}, {e['date']}."]
    if best is None:
      return "\n".join([*lines, "# No drafter was faster than plain decoding.", "",
                        'Settings.mode = "plain"', ""])
    low, high = best.speed_up.quartiles
    lines += [f"# {best.speed_up.median:.2f} times plain decoding ({low:.2f} to {high:.2f}).", ""]
    named = {**(pair or {}), "drafter": None if best.spec == self.own else best.spec}
    lines += [f"load_pair.{name} = {value!r}" for name, value in named.items()
              if value is not None and (name, value) != ("pair", "demo")]
    lines.append(f"Settings.gamma = {AUTO!r}")
    lines += [f"Settings.{name} = {value!r}" for name, value in self.settings.items()]
    lines += [f"Costs.{f.name} = {getattr(best.costs, f.name)!r}"
              for f in dataclasses.fields(best.costs)]
    return "\n".join([*lines, ""])


def tune(pair: Pair, texts: Sequence[str], specs: Sequence[str], *, task: str | None = None,
         rounds: int = _ROUNDS, progress: Callable[[str], None] = lambda message: None,
         **settings: Any) -> Tuned:
  """Measures drafters on texts: costs, acceptance, and automatic gamma against plain decoding.

  All of them, and plain decoding, take turns in one process.

  Args:
    pair: with a target; the drafter that it came with is the "own" one.
    texts: one or more, such as they will be decoded.
    specs: drafters to compare.
    task: see `generate`.
    rounds: timed passes over the texts, per drafter.
    progress: told what goes on.
    **settings: fields of `Settings`, but for mode and gamma.

  Raises:
    SpecdecError: there is no text or no drafter, or a drafter is not for this target.
  """
  if not texts or not specs:
    raise SpecdecError("there is nothing to measure; expected one text and one drafter or more")
  for name in ("mode", "gamma"):
    if name in settings:
      raise SpecdecError(f"{name} does not go with tuning, which is to find it; drop it")
  jobs: dict[str, Job] = {}
  plain = job_lib.from_texts(pair, texts, task, {**settings, "mode": "plain"})
  calls: dict[int, float] = {}
  for spec in dict.fromkeys(specs):
    progress(f"{spec}: compiling and measuring iterations")
    ours = pair if spec == pair.drafter.name else pair.with_drafter(spec)
    job = job_lib.from_texts(ours, texts, task, {**settings, "gamma": AUTO})
    costs = calibrate.measure(job)
    missing = [size for size in costs.sizes if size not in calls]
    if missing:
      progress("measuring calls of the target")
      calls.update(_target_calls(plain, costs.sizes))
    verify = tuple(calibrate.rounded(calls[size] / calls[0]) for size in costs.sizes)
    jobs[spec] = dataclasses.replace(job, costs=dataclasses.replace(costs, verify=verify))
  passes = {"": Pass(plain), **{spec: Pass(job) for spec, job in jobs.items()}}
  for one in passes.values():
    progress("compiling what is left")
    one.timed()
  samples = timing.interleave_parts({name: one.parts for name, one in passes.items()}, rounds,
                                    progress=lambda done: progress(f"measuring, round {done}"))
  tokens = {name: sum(r.num_generated for r in one.records()) for name, one in passes.items()}
  per_token = {name: [t / max(tokens[name], 1) for t in times] for name, times in samples.items()}
  found = [_candidate(spec, job.costs, per_token[""], per_token[spec])
           for spec, job in jobs.items()]
  found.sort(key=lambda c: -c.speed_up.median)
  return Tuned(pair.name, task, dict(settings), len(texts), tuple(found), pair.drafter.name,
               records.environment())


def _candidate(spec: str, costs: Costs, plain: list[float], ours: list[float]) -> Candidate:
  expected = costs.speed_up(costs.alpha)
  best = int(np.argmax(expected))
  return Candidate(spec, costs, costs.sizes[best], float(expected[best]),
                   Spread.of([1e3 * t for t in ours]), timing.ratios(plain, ours))


def _target_calls(job: Job, sizes: Sequence[int]) -> dict[int, float]:
  """Seconds of a target call of each size plus one token, on the rows of the first batch."""
  batch, target = job_lib.plan(job)[0][0], job.pair.target
  rows = [job.encoded[i].ids for i in batch.example_ids]
  width = job_lib.power_of_two(max(map(len, rows)), 16)
  source = models.make_source(rows, width=width, rows=batch.size)
  part = Part(target.name, target.scorer, target.weights)
  workload = Workload(part, part, source, (), sizes[-1], job.settings.max_decode_len, random=False)
  with target.scope():
    subjects = {str(size): timing.Sampler(runs.score(workload, part, size + 1)) for size in sizes}
    samples = timing.interleave(subjects, _ROUNDS)
  return {int(size): Spread.of(values).median for size, values in samples.items()}
