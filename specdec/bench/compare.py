"""Plain against speculative decoding, measured side by side.

Both run in one process on the same tokenised inputs. After a warm-up of each,
which compiles, they take turns batch by batch, and which of the two goes first
alternates: a machine that slows down or speeds up meanwhile does so for both.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
import statistics
import time
from typing import Any

from specdec.bench import records as records_lib
from specdec.bench.timing import Spread
from specdec.bench.timing import interleave_parts
from specdec.bench.timing import ratios
from specdec.core.probs import MIN_TEMPERATURE
from specdec.engine import calibrate
from specdec.engine import generate
from specdec.engine.batches import run_batch
from specdec.engine.costs import Costs
from specdec.engine.job import Job
from specdec.engine.job import from_texts
from specdec.engine.job import plan
from specdec.engine.pairs import Pair
from specdec.engine.result import Record
from specdec.engine.result import Result
from specdec.engine.settings import Settings
from specdec.engine.settings import whole
from specdec.errors import SpecdecError


@dataclasses.dataclass(frozen=True)
class Side:
  """One of the two ways to decode.

  Attributes:
    result: its records; counts do not vary, the seed being the same.
    first_s: first pass over the inputs, compilation included.
    times_s: of each repeat: encoding and decoding all inputs, without tokenising,
      detokenising and compiling.
  """

  result: Result
  first_s: float
  times_s: tuple[float, ...]

  @property
  def ms_per_token(self) -> Spread:
    """Milliseconds per generated token, over the repeats."""
    return Spread.of([1e3 * t / max(self.result.tokens, 1) for t in self.times_s])

  @property
  def compile_s(self) -> float:
    """What the first pass took longer than a usual one."""
    return max(self.first_s - statistics.median(self.times_s), 0.0)

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready."""
    r = self.result
    return {
        "tokens": r.tokens, "target_calls": r.target_calls, "drafted": r.drafted,
        "tested": r.tested, "accepted": r.accepted, "alpha": r.alpha,
        "tokens_per_call": r.tokens_per_call, "first_s": self.first_s,
        "compile_s": self.compile_s, "times_s": list(self.times_s),
        "ms_per_token": dataclasses.asdict(self.ms_per_token)}


@dataclasses.dataclass(frozen=True)
class Comparison:
  """What both ways of decoding made of the same inputs, and how long it took.

  Attributes:
    pair: name of the pair.
    drafter: name of its drafter.
    task: whose prefix was used, None for the pair's first, "" for none.
    dtype: of the target's weights.
    settings: of the speculative side; the plain one differs in `mode` alone.
    rows: of a batch; less than `settings.batch_size` when there are few inputs.
    plain: the target alone.
    speculative: with the drafter.
    environment: see `bench.records.environment`.
    weights: "trained", or "widened", see `bench.widen`.
  """

  pair: str
  drafter: str
  task: str | None
  dtype: str
  settings: Settings
  rows: int
  plain: Side
  speculative: Side
  environment: dict[str, Any]
  weights: str = "trained"

  @property
  def ratio(self) -> Spread:
    """How many times as fast speculation is per token, repeat by repeat."""
    per_token = [[t / max(side.result.tokens, 1) for t in side.times_s]
                 for side in (self.plain, self.speculative)]
    return ratios(*per_token)

  @property
  def verdict(self) -> str:
    """The ratio in words, above 1 or below."""
    r = self.ratio
    words = "faster than plain decoding" if r.median > 1 else "slower than plain decoding"
    # Quartiles, because a single disturbed repeat says nothing about the rest.
    if r.quartiles[0] <= 1 <= r.quartiles[1]:
      words = "no clear difference from plain decoding"
    return f"{r.median:.2f}x: {words}"

  @property
  def greedy(self) -> bool:
    """Whether every input is decoded greedily."""
    return bool((self.settings.per_row("temperature", len(self.plain.result.best))
                 <= MIN_TEMPERATURE).all())

  @property
  def reproducible(self) -> bool:
    """Whether both sides must agree: they are greedy, or their draws are coupled."""
    return self.greedy or self.settings.verifier == "coupled"

  @property
  def differences(self) -> dict[int, int]:
    """Index of the first differing token, by input, where outputs differ."""
    out = {}
    for i, (a, b) in enumerate(zip(self.plain.result.ids, self.speculative.result.ids,
                                   strict=True)):
      if a != b:
        same = [x == y for x, y in zip(a, b)]  # One may be the longer.
        out[i] = same.index(False) if False in same else len(same)
    return out

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready."""
    count = len(self.plain.result.best)
    return {
        **self.environment,
        "pair": self.pair, "drafter": self.drafter, "task": self.task,
        "dtype": self.dtype, "weights": self.weights, "inputs": count,
        **dataclasses.asdict(self.settings),
        "rows": self.rows, "repeats": len(self.plain.times_s),
        "plain": self.plain.to_dict(), "speculative": self.speculative.to_dict(),
        "ratio": dataclasses.asdict(self.ratio), "verdict": self.verdict,
        "identical_outputs": count - len(self.differences) if self.reproducible else None,
        "first_differences": self.differences if self.reproducible else None,
        "lossless": self.settings.lossless}


def compare(pair: Pair, texts: Sequence[str], *, task: str | None = None, repeats: int = 5,
            prompt: Any = None, logits_fn: Any = None, costs: Costs | None = None,
            **settings: Any) -> Comparison:
  """Decodes texts plainly and speculatively, in turns, and times both.

  Args:
    pair: target and drafter.
    texts: the inputs; tokenised once, before anything is timed.
    task: see `generate`.
    repeats: timed passes of each side.
    prompt: see `generate`, and so is `logits_fn`.
    logits_fn: a hook.
    costs: for `gamma="auto"`; measured before the comparison by default.
    **settings: fields of `Settings`, but for `mode`.

  Raises:
    SpecdecError: a setting is out of range, gamma is 0 or there is no text.
  """
  whole("repeats", repeats, 1, 1000)
  if "mode" in settings:
    raise SpecdecError("mode does not go with a comparison: it runs both modes")
  speculative = from_texts(pair, texts, task, settings, prompt, logits_fn=logits_fn, costs=costs)
  if not speculative.settings.gamma:
    raise SpecdecError("gamma is 0, which is plain decoding; a comparison needs 1 or more")
  if not speculative.texts:
    raise SpecdecError("there is nothing to compare; expected one text or more")
  speculative = calibrate.ready(speculative)
  plain = dataclasses.replace(
      speculative, costs=None, settings=dataclasses.replace(speculative.settings, mode="plain"))

  passes = [Pass(job) for job in (plain, speculative)]
  first = [p.timed() for p in passes]
  times = interleave_parts({str(i): p.parts for i, p in enumerate(passes)}, repeats)
  sides = [Side(Result(tuple(p.records()), p.job.settings, p.job.costs), f, tuple(t))
           for p, f, t in zip(passes, first, times.values(), strict=True)]
  return Comparison(pair.name, pair.drafter.name, task, pair.target.config.dtype,
                    speculative.settings, passes[0].rows, *sides, records_lib.environment(),
                    "widened" if pair.target.widened else "trained")


class Pass:
  """All inputs decoded once, as often as one likes.

  Args:
    job: with costs, where its gamma is automatic.

  Attributes:
    rows: of a batch.
  """

  def __init__(self, job: Job):
    self.job = job
    self._batches = [b for window in plan(job) for b in window]
    self._fetched: list[dict] = [{} for _ in self._batches]
    self.rows = self._batches[0].size * job.settings.num_decodes

  @property
  def parts(self) -> list[Callable[[], None]]:
    """Calls that decode a batch each, and wait for it."""
    return [functools.partial(self._decode, i) for i in range(len(self._batches))]

  def _decode(self, i: int) -> None:
    # It blocks: it fetches the result.
    self._fetched[i] = run_batch(self.job, self._batches[i])

  def timed(self) -> float:
    """Seconds of one pass."""
    begin = time.perf_counter()
    for part in self.parts:
      part()
    return time.perf_counter() - begin

  def records(self) -> list[Record]:
    """Records of the last pass, in input order."""
    done: dict[int, list[Record]] = {}
    for batch, fetched in zip(self._batches, self._fetched, strict=True):
      done.update(generate.make_records(self.job, batch, fetched))
    return [record for i in sorted(done) for record in done[i]]
