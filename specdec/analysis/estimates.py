"""Acceptance rates from samples: intervals, profiles, and whether a run kept to its rates."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from specdec.analysis.records import Interval
from specdec.errors import SpecdecError

# Three standard errors: a sound run is outside of them once in 370 times.
_ERRORS = 3.0
# What float32 sums of probabilities may be off, per position.
_ROUNDING = 1e-5


def mean(values: Sequence[np.ndarray], confidence: float = 0.95, resamples: int = 2000,
         seed: int = 0) -> Interval | None:
  """Mean over the positions of several sentences, with a bootstrap interval.

  Positions of one sentence are alike, so that whole sentences are resampled: an interval
  from single positions would be too narrow.

  Args:
    values: a float array per sentence, of any shape; NaN entries are none. Those of no entry
      do no harm.
    confidence: of the percentile interval.
    resamples: of the sentences, with replacement.
    seed: of the resampling.

  Returns:
    None when there is no value at all.

  >>> mean([np.array([0.5, np.nan]), np.array([0.5])])
  Interval(value=0.5, low=0.5, high=0.5)
  """
  if not 0 < confidence < 1 or resamples < 1:
    raise SpecdecError(f"confidence is {confidence:g} and resamples {resamples}; expected a number "
                       "between 0 and 1 and an integer from 1")
  sums = np.array([np.nansum(v, dtype=np.float64) for v in values])
  counts = np.array([np.count_nonzero(~np.isnan(v)) for v in values])
  if not counts.sum():
    return None
  # As often as each sentence is drawn: a multinomial, which needs no array of indices.
  drawn = np.random.default_rng(seed).multinomial(
      len(sums), np.full(len(sums), 1 / len(sums)), size=resamples)
  total = drawn @ counts
  means = (drawn @ sums)[total > 0] / total[total > 0]
  # Of sums that differ by rounding alone.
  low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2]).round(12)
  value = float((sums.sum() / counts.sum()).round(12))
  return Interval(value, min(float(low), value), max(float(high), value))


def profile(values: Sequence[np.ndarray]) -> list[dict[str, Any]]:
  """Means by position in the output, in groups of 1, 1, 2, 4, 8, ... positions.

  Args:
    values: [T] per sentence; NaN entries are none.

  Returns:
    JSON-ready: `begin`, `end` (not included), `mean` and `positions`, of groups that are not
    empty.

  >>> profile([np.array([1.0, 0.5, 0.25]), np.array([0.5])])[0]
  {'begin': 0, 'end': 1, 'mean': 0.75, 'positions': 2}
  """
  longest = max((len(v) for v in values), default=0)
  out, begin, end = [], 0, 1
  while begin < longest:
    part = np.concatenate([v[begin:end] for v in values])
    part = part[~np.isnan(part)]
    if part.size:
      out.append({"begin": begin, "end": min(end, longest),
                  "mean": float(part.mean(dtype=np.float64)), "positions": int(part.size)})
    begin, end = end, 2 * end
  return out


@dataclasses.dataclass(frozen=True)
class Calibration:
  """Whether drafted tokens stood as often as their distributions say.

  Given all that was before, a tested token stands with probability beta = sum min(p, q), so
  the differences sum to a martingale: its expectation is 0 and its variance the sum of
  beta (1 - beta), however the tested positions came to be tested.

  Attributes:
    tested: drafted tokens that the verifier looked at.
    accepted: those that stood.
    expected: the sum of their betas.
    standard_error: of `accepted - expected`.
  """

  tested: int
  accepted: int
  expected: float
  standard_error: float

  @classmethod
  def of(cls, accepted: np.ndarray, betas: np.ndarray) -> "Calibration":
    """From bool [N] and float [N], one entry per tested token.

    >>> Calibration.of(np.array([True, False]), np.array([0.5, 0.5])).holds
    True
    """
    betas = np.asarray(betas, np.float64)
    if betas.size and not (np.isfinite(betas) & (betas > -1e-3) & (betas < 1 + 1e-3)).all():
      raise SpecdecError("a tested token has no acceptance rate between 0 and 1; expected the "
                         "rates of this very run")
    betas = betas.clip(0, 1)
    return cls(int(betas.size), int(np.count_nonzero(accepted)), float(betas.sum()),
               float((betas * (1 - betas)).sum() ** 0.5))

  @property
  def difference(self) -> float:
    """Accepted tokens beyond those that the rates promise."""
    return self.accepted - self.expected

  @property
  def holds(self) -> bool:
    """Within three standard errors, and rounding."""
    return abs(self.difference) <= _ERRORS * self.standard_error + _ROUNDING * self.tested

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready."""
    return {**dataclasses.asdict(self), "difference": self.difference, "holds": self.holds}
