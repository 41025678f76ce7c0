"""Goodness of fit between samples and an exact law."""

from collections.abc import Hashable
from collections.abc import Mapping

from scipy import stats


def chi_square(counts: Mapping[Hashable, int],
               law: Mapping[Hashable, float]) -> tuple[float, int]:
  """Pearson's statistic and its degrees of freedom.

  Outcomes expected fewer than 5 times are pooled. An outcome that the law rules out
  makes the statistic infinite, however rare it is.

  Args:
    counts: how often each outcome was seen.
    law: probabilities that sum to 1.
  """
  if any(law.get(outcome, 0.0) <= 0 for outcome, n in counts.items() if n):
    return float("inf"), 1
  total = sum(counts.values())
  cells = sorted((total * p, counts.get(outcome, 0)) for outcome, p in law.items())
  pooled, rest = (0.0, 0), []
  for expected, seen in cells:
    if expected < 5 or 0 < pooled[0] < 5:
      pooled = (pooled[0] + expected, pooled[1] + seen)
    else:
      rest.append((expected, seen))
  if pooled[0] > 0:
    rest.append(pooled)
  return sum((seen - expected) ** 2 / expected for expected, seen in rest), len(rest) - 1


def p_value(*fits: tuple[float, int]) -> float:
  """Chance of so bad a fit or worse, over independent samples taken together."""
  statistic, freedom = (sum(part) for part in zip(*fits))
  if freedom == 0:  # A law with one outcome: it fits, or it does not.
    return float(statistic == 0)
  return float(stats.chi2.sf(statistic, freedom))
