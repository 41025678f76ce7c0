"""`specdec bench`: everything that speed is made of, measured side by side."""

from collections.abc import Callable
from collections.abc import Sequence
import statistics
from typing import Any

from specdec.analysis import theory
from specdec.bench import memory
from specdec.bench import records
from specdec.bench import runs
from specdec.bench import timing
from specdec.bench.peers import Peer
from specdec.bench.timing import Spread
from specdec.bench.workload import Workload
from specdec.errors import SpecdecError

PLAIN, SPECULATIVE = "plain iteration", "speculative iteration"
WHOLE, WHOLE_SPECULATIVE = "specdec", "specdec, speculative"
ALPHAS = (0.6, 0.7, 0.8, 0.9)
_STEADY = 0.15


def measure(workload: Workload, *, repeats: int = 15, alphas: Sequence[float] = ALPHAS,
            peers: Sequence[Callable[[Workload], Peer]] = (),
            buffer_bytes: int = memory.BUFFER_BYTES,
            progress: Callable[[str], None] = lambda message: None) -> dict[str, Any]:
  """Measures a workload and returns a JSON-ready record.

  Args:
    workload: models, inputs and sizes.
    repeats: rounds; every subject gives one sample per round.
    alphas: acceptance rates for which speed-ups are worked out from the measured times.
    peers: other libraries, made when their turn comes.
    buffer_bytes: of the memory read, see `memory.readers`.
    progress: told what goes on.

  Raises:
    SpecdecError: there are baselines, and a temperature that they know nothing of.
  """
  gamma = workload.gamma
  if peers and not workload.greedy:
    raise SpecdecError(f"temperature {workload.temperature:g} does not go with baselines, which "
                       "decode greedily; expected 0")
  progress("compiling plain decoding")
  plain = runs.Decode(workload, 0)
  progress("compiling speculative decoding")
  speculative = runs.Decode(workload, gamma)
  subjects: dict[str, Callable[[], float]] = {
      PLAIN: _warm(plain.per_iteration), SPECULATIVE: _warm(speculative.per_iteration)}
  progress("compiling single calls")
  for n in range(1, gamma + 2):
    subjects[_target(n)] = timing.Sampler(runs.score(workload, workload.target, n))
  if workload.drafter.part:
    for n in (1, 2):
      subjects[_drafter(n)] = timing.Sampler(runs.score(workload, workload.drafter.part, n))
  subjects["drafter proposal"] = timing.Sampler(runs.propose(workload))
  readers = memory.readers(buffer_bytes)
  for name, read in readers.items():
    subjects[name] = timing.Sampler(timing.one_by_one(read))
  others = []
  for make in peers:
    progress("preparing a baseline")
    others.append(make(workload))
    subjects[others[-1].name] = _warm(others[-1].whole)
  if others:
    subjects[WHOLE] = _warm(plain.whole)
    subjects[WHOLE_SPECULATIVE] = _warm(speculative.whole)

  samples = timing.interleave(
      subjects, repeats, [p.name for p in others],
      progress=lambda done: progress(f"measuring, round {done} of {repeats}"))
  progress("counting accepted tokens")
  histogram, totals = runs.accepted_lengths(workload)
  plain.whole()
  totals["plain_iterations"], totals["plain_tokens"] = plain.iterations, plain.tokens
  ids = totals.pop("ids")
  # Sampled outputs follow one law; they are not the same ones.
  alike = (sum(a == b for a, b in zip(plain.ids, ids, strict=True)) if workload.greedy else None)
  return {
      "kind": "calls", **records.environment(),
      **describe(workload, repeats),
      "compile_s": {"plain": plain.compile_s, "speculative": speculative.compile_s},
      "seconds": {name: Spread.of(v).rounded() for name, v in samples.items()},
      **_shares(workload, samples, readers, buffer_bytes),
      **_speed(workload, samples, alphas, totals),
      "accepted_lengths": histogram,
      "rows": len(ids), "identical_outputs": alike,
      **totals,
      "unsteady": unsteady(samples),
      "baselines": {p.name: _compared(p, plain, speculative, samples) for p in others},
      "samples_s": {name: timing.rounded(v) for name, v in samples.items()},
  }


def _warm(sample: Callable[[], float]) -> Callable[[], float]:
  sample()
  return sample


def _target(tokens: int) -> str:
  return f"target call, {tokens} token{'s' * (tokens > 1)}"


def _drafter(tokens: int) -> str:
  return f"drafter call, {tokens} token{'s' * (tokens > 1)}"


def describe(workload: Workload, repeats: int) -> dict[str, Any]:
  """What was measured, for the record."""
  return {
      "matmul_precision": "highest" if workload.dtype == "float32" else "default",
      "target": records.model_name(workload.target.name),
      "drafter": records.model_name(workload.drafter.name),
      "weights": workload.weights_are, "dtype": workload.dtype, "task": workload.task,
      "temperature": workload.temperature,
      "batch_size": workload.batch_size, "batches": len(workload.sources),
      "gamma": workload.gamma,
      "source_len": int(workload.source.ids.shape[1]),
      "max_decode_len": workload.max_decode_len, "repeats": repeats,
      "bytes_per_call": {"target": workload.target.bytes_per_call,
                         "drafter": workload.drafter.bytes_per_call}}


def unsteady(samples: dict[str, list[float]]) -> list[str]:
  """Subjects whose middle half is spread over more than 15 % of the median: the machine had
  other things to do, or more rounds are wanted."""
  spreads = {name: Spread.of(values) for name, values in samples.items()}
  return [name for name, s in spreads.items()
          if s.quartiles[1] - s.quartiles[0] > _STEADY * s.median]


def _shares(workload: Workload, samples: dict[str, list[float]], readers: dict[str, Any],
            buffer_bytes: int) -> dict[str, Any]:
  """What an iteration consists of, as ratios taken round by round."""
  gamma = workload.gamma
  fastest = min(readers, key=lambda name: statistics.median(samples[name]))
  bandwidth = [buffer_bytes / t for t in samples[fastest]]
  read = [workload.target.bytes_per_call / t for t in samples[PLAIN]]
  rows = lambda *names: zip(*(samples[name] for name in names), strict=True)
  call = _drafter_call(workload, samples)
  overhead = [i - gamma * d - t for d, (i, t) in
              zip(call, rows(SPECULATIVE, _target(gamma + 1)), strict=True)]
  own = [i - p - t for i, p, t in rows(SPECULATIVE, "drafter proposal", _target(gamma + 1))]
  return {
      "memory_read": {"method": fastest, "bytes_per_s": Spread.of(bandwidth).rounded()},
      "plain_read_share": timing.ratios(read, bandwidth).rounded(),
      "cost_ratio": timing.ratios(call, samples[_target(1)]).rounded(),
      "verify_ratio": timing.ratios(samples[_target(gamma + 1)], samples[_target(1)]).rounded(),
      "plain_overhead": Spread.of([(i - t) / i for i, t in rows(PLAIN, _target(1))]).rounded(),
      # As defined by gamma drafter calls of one token; a proposal begins with one of two.
      "loop_overhead": timing.ratios(overhead, samples[SPECULATIVE]).rounded(),
      "loop_overhead_beside_proposal": timing.ratios(own, samples[SPECULATIVE]).rounded()}


def _drafter_call(workload: Workload, samples: dict[str, list[float]]) -> list[float]:
  """Seconds of a drafter's call of one token; what has no such calls, of a drafted token."""
  if workload.drafter.part:
    return samples[_drafter(1)]
  return [t / workload.gamma for t in samples["drafter proposal"]]


def _speed(workload: Workload, samples: dict[str, list[float]], alphas: Sequence[float],
           totals: dict[str, Any]) -> dict[str, Any]:
  gamma = workload.gamma
  middle = lambda name: statistics.median(samples[name])
  c = statistics.median(_drafter_call(workload, samples)) / middle(_target(1))
  v = middle(_target(gamma + 1)) / middle(_target(1))
  relative = timing.ratios(samples[PLAIN], samples[SPECULATIVE])
  expected = lambda alpha: {
      "alpha": alpha,
      "tokens_per_iteration": theory.tokens_per_iteration(alpha, gamma),
      "paper": theory.speed_up(alpha, gamma, c),
      "with_verify_ratio": theory.speed_up(alpha, gamma, c, v),
      # Nothing is modelled here but how many tokens an iteration yields.
      "with_measured_iteration": theory.tokens_per_iteration(alpha, gamma) * relative.median}
  measured = at_alpha = None
  if not workload.random:
    # Rows that have ended idle along: tokens over iterations, not over calls.
    plain = totals["plain_tokens"] / totals["plain_iterations"]
    ours = totals["tokens"] / totals["iterations"]
    measured = timing.ratios([t / plain for t in samples[PLAIN]],
                             [t / ours for t in samples[SPECULATIVE]])
    if totals["alpha"] is not None:
      at_alpha = expected(totals["alpha"])
      at_alpha["measured"] = measured.median
      at_alpha["measured_over_expected"] = measured.median / at_alpha["with_verify_ratio"]
      # Acceptances are not independent, and a draft can be shorter than gamma.
      at_alpha["with_counted_tokens"] = totals["tokens_per_call"] / (gamma * c + v)
    measured = measured.rounded()
  return {"speed_up": measured, "expected_at_alpha": timing.rounded(at_alpha),
          "expected_speed_up": timing.rounded([expected(alpha) for alpha in alphas])}


def _compared(peer: Peer, plain: runs.Decode, speculative: runs.Decode,
              samples: dict[str, list[float]]) -> dict[str, Any]:
  """A baseline beside our plain and speculative decoding; above 1 is in our favour."""
  tokens = sum(map(len, peer.ids))
  per_token = lambda name, count: [t / count for t in samples[name]]
  return {
      "version": peer.version, "dtype": peer.dtype, "tokens": tokens,
      "ms_per_token": Spread.of([1e3 * t for t in per_token(peer.name, tokens)]).rounded(),
      "ratio": timing.ratios(
          per_token(peer.name, tokens), per_token(WHOLE, plain.tokens)).rounded(),
      "ratio_speculative": timing.ratios(
          per_token(peer.name, tokens),
          per_token(WHOLE_SPECULATIVE, speculative.tokens)).rounded(),
      "rows_alike": sum(a == b for a, b in zip(peer.ids, plain.ids, strict=True)),
      "first_difference": _first_difference(peer.ids, plain.ids)}


def _first_difference(a: list[list[int]], b: list[list[int]]) -> int | None:
  """The earliest position at which any two rows differ."""
  places = [next((i for i, (p, q) in enumerate(zip(x, y)) if p != q), min(len(x), len(y)))
            for x, y in zip(a, b, strict=True) if x != y]
  return min(places, default=None)
