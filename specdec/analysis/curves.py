"""What the figures show, as numbers: theory's curves, measured points, timelines.

Nothing here draws, so that what a figure says can be tested.
"""

from collections.abc import Sequence
import dataclasses
import math

import numpy as np

from specdec.analysis import paper
from specdec.analysis import theory
from specdec.analysis.records import Record
from specdec.analysis.records import Timings

TOKENS_GAMMAS = (1, 3, 5, 7, 10, math.inf)
SPEED_GAMMAS = (2, 3, 5, 10)
COST_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2)
TIMELINE_GAMMAS = (7, 3)
# Tokens of a timeline, at most: more calls than these are too thin to be told apart.
TIMELINE_TOKENS = 24


@dataclasses.dataclass(frozen=True)
class Curve:
  """A function of alpha.

  Attributes:
    parameter: gamma, or c.
    alphas: [N].
    values: [N].
  """

  parameter: float
  alphas: np.ndarray
  values: np.ndarray


@dataclasses.dataclass(frozen=True)
class Point:
  """A measurement.

  Attributes:
    alpha: as measured.
    value: likewise.
    predicted: the formula at the same alpha, gamma, c and v; None where one is unknown.
    gamma: drafted tokens.
    label: what it is, in a few words.
  """

  alpha: float
  value: float
  predicted: float | None
  gamma: int
  label: str


def _curve(parameter: float, alphas: np.ndarray, function) -> Curve:
  return Curve(parameter, alphas, np.asarray([function(float(a)) for a in alphas]))


def tokens_curves(gammas: Sequence[float] = TOKENS_GAMMAS) -> list[Curve]:
  """Expected tokens per target call against alpha, per gamma: figure 2."""
  return [_curve(g, np.linspace(0, 1 if g < math.inf else 0.999, 1000),
                 lambda a, g=g: theory.tokens_per_iteration(a, g)) for g in gammas]


def gamma_curves(cost_ratios: Sequence[float] = COST_RATIOS) -> list[Curve]:
  """Optimal gamma against alpha, per c: figure 3."""
  return [_curve(c, np.linspace(0, 0.998, 1997), lambda a, c=c: theory.best_gamma(a, c))
          for c in cost_ratios]


def speed_curves(gammas: Sequence[int] = SPEED_GAMMAS) -> list[Curve]:
  """Speed-up at c = 0 against alpha, per gamma: figure 4, solid."""
  return [_curve(g, np.linspace(0, 1, 500), lambda a, g=g: theory.speed_up(a, g, 0.0))
          for g in gammas]


def operations_curves(gammas: Sequence[int] = SPEED_GAMMAS) -> list[Curve]:
  """Increase of operations at c_hat = 0 against alpha, per gamma: figure 4, dashed."""
  return [_curve(g, np.linspace(0, 1, 500), lambda a, g=g: theory.operations(a, g))
          for g in gammas]


def paper_points() -> list[tuple[float, int, float, float]]:
  """Table 1: alpha, gamma, speed-up and operations, which lie on the curves of figure 4."""
  return [(r["alpha"], r["gamma"], r["speed_up"], r["operations"])
          for r in paper.read("operations")["rows"]]


def _rows(records: Sequence[Record]):
  for record in records:
    for row in record.rows:
      if row.lenience == 1 and row.alpha is not None and row.gamma is not None:
        yield record, row, (f"{paper.display(row.task)}, {paper.display(row.drafter)}, "
                            f"t={row.temperature:g}")


def tokens_points(records: Sequence[Record]) -> list[Point]:
  """Measured tokens per target call, for figure 2."""
  return [Point(r.alpha.value, r.tokens_per_call,
                theory.tokens_per_iteration(r.alpha.value, r.gamma), r.gamma, label)
          for _, r, label in _rows(records) if r.tokens_per_call is not None]


def gamma_points(records: Sequence[Record]) -> list[Point]:
  """The fastest measured gamma of what was measured at several, for figure 3."""
  groups: dict[tuple, list] = {}
  for record, row, label in _rows(records):
    if row.speed_up is not None:
      groups.setdefault((record.label, row.key, label), []).append(row)
  points = []
  for (_, _, label), rows in groups.items():
    best = max(rows, key=lambda r: r.speed_up.value)
    if len({r.gamma for r in rows}) > 1:
      predicted = None
      if best.cost_ratio is not None:
        gamma = theory.best_gamma(best.alpha.value, best.cost_ratio)
        predicted = gamma if gamma < math.inf else None
        label += f", c={best.cost_ratio:.2g}"
      points.append(Point(best.alpha.value, best.gamma, predicted, best.gamma, label))
  return points


def speed_points(records: Sequence[Record]) -> list[Point]:
  """Measured speed-ups, for figure 4, with what the formula gives at the measured c and v."""
  points = []
  for _, r, label in _rows(records):
    if r.speed_up is not None:
      predicted = None if r.cost_ratio is None else theory.speed_up(
          r.alpha.value, r.gamma, r.cost_ratio, r.verify_ratio or 1.0)
      points.append(Point(r.alpha.value, r.speed_up.value, predicted, r.gamma, label))
  return points


@dataclasses.dataclass(frozen=True)
class Span:
  """A call on the time axis.

  Attributes:
    model: "target", "drafter", "target encoder" or "drafter encoder".
    begin: in the timeline's unit.
    end: likewise.
    tokens: that a target call added to the output; 0 for others.
  """

  model: str
  begin: float
  end: float
  tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Timeline:
  """The calls that decode some tokens.

  Attributes:
    gamma: 0 is plain decoding.
    spans: in order.
  """

  gamma: int
  spans: tuple[Span, ...]

  @property
  def tokens(self) -> int:
    """All that were decoded."""
    return sum(s.tokens for s in self.spans)

  @property
  def end(self) -> float:
    """When the last call ends."""
    return self.spans[-1].end


@dataclasses.dataclass(frozen=True)
class Timelines:
  """Plain and speculative decoding of the same number of tokens, figure 5.

  Attributes:
    lines: the largest gamma first, plain decoding last.
    unit: of the time axis, "ms" or "one-token target calls".
    durations: where they come from, in words.
    acceptance: where accepted tokens come from, in words.
  """

  lines: tuple[Timeline, ...]
  unit: str
  durations: str
  acceptance: str


def timelines(timings: Timings | None, source: str,
              accepted: dict[int, tuple[Sequence[int], str]], alpha: float, seed: int = 0,
              tokens: int = TIMELINE_TOKENS) -> Timelines:
  """Lays measured calls out on a time axis.

  Args:
    timings: measured seconds; None for the paper's c at v = 1.
    source: of the timings, in words.
    accepted: by gamma, how many drafted tokens stood in each iteration of a real run, and
      where that is from. For other gammas they are drawn at `alpha`.
    alpha: see above.
    seed: of those draws.
    tokens: length of the output.
  """
  if timings is None:
    cost = paper.cost_ratios()["t5_1_1_small"]
    timings = Timings("t5_1_1_small", (1.0,) * (TIMELINE_GAMMAS[0] + 1), cost)
    scale, unit = 1.0, "one-token target calls"
    durations = f"T5-small's c of {cost:g} and v = 1 from the paper, not measured"
  else:
    scale, unit = 1e3, "ms"
    durations = f"measured calls, {source}"
  most = len(timings.target_call_s) - 1
  # As in the paper where those were measured, else the longest that was, and half of it.
  gammas = [g for g in TIMELINE_GAMMAS if g <= most]
  if len(gammas) < len(TIMELINE_GAMMAS):
    gammas = sorted({most, (most + 1) // 2} - {0}, reverse=True)
  taken = [f"gamma {g}: {accepted[g][1]}" if g in accepted else
           f"gamma {g}: drawn at alpha {alpha:.2f}" for g in gammas]
  lines = []
  for gamma in [*gammas, 0]:
    if gamma in accepted:
      stood = list(accepted[gamma][0])
    else:
      rng = np.random.default_rng(seed)
      coins = rng.random((tokens, gamma)) < alpha
      stood = np.cumprod(coins, axis=1).sum(1).tolist() if gamma else [0] * tokens
    lines.append(_timeline(timings, gamma, stood, tokens, scale))
  # A real run may have ended before: nobody decodes more than all did.
  least = min(line.tokens for line in lines)
  if least < tokens:
    return timelines_cut(lines, least, unit, durations, taken)
  return Timelines(tuple(lines), unit, durations, "; ".join(taken))


def timelines_cut(lines: Sequence[Timeline], tokens: int, unit: str, durations: str,
                  taken: Sequence[str]) -> Timelines:
  """Timelines without the calls behind so many tokens."""
  cut = []
  for line in lines:
    spans, count = [], 0
    for span in line.spans:
      if count >= tokens:
        break
      count += span.tokens
      spans.append(dataclasses.replace(span, tokens=span.tokens - max(count - tokens, 0)))
    cut.append(Timeline(line.gamma, tuple(spans)))
  return Timelines(tuple(cut), unit, durations, "; ".join(taken))


def _timeline(timings: Timings, gamma: int, stood: Sequence[int], tokens: int,
              scale: float) -> Timeline:
  spans: list[Span] = []
  now = 0.0

  def call(model: str, seconds: float | None, count: int = 0) -> None:
    nonlocal now
    if seconds is not None:
      spans.append(Span(model, now, now + seconds * scale, count))
      now = spans[-1].end

  call("target encoder", timings.target_encoder_s)
  if gamma:
    call("drafter encoder", timings.drafter_encoder_s)
  made = 0
  for n in stood:
    if made >= tokens:
      break
    for _ in range(gamma):
      call("drafter", timings.drafter_call_s)
    added = min(n + 1, tokens - made)
    made += added
    call("target", timings.target_call_s[gamma], added)
  return Timeline(gamma, tuple(spans))
