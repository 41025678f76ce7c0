"""What acceptance follows from two distributions at one position: p the target's, q the drafter's.

Every function takes float arrays [V] that sum to 1, adjusted for temperature and filters
as in section 2.2 of the paper. Counts and probabilities have no unit.
"""

import math

import numpy as np

from specdec.errors import SpecdecError

# Rounding that a distribution's sum may have; float32 softmaxes of 32k ids stay below it.
_SUM_TOLERANCE = 1e-4


def beta(p: np.ndarray, q: np.ndarray, lenience: float = 1.0) -> float:
  """Probability that a token drawn from q is accepted: `sum_x min(p(x) / l, q(x))`.

  Paper: definition 3.1, theorem 3.5 and corollary 3.6; section A.5 for l below 1.

  Args:
    p: the target's distribution.
    q: the drafter's.
    lenience: l in (0, 1], by which q counts in the acceptance test.

  Raises:
    SpecdecError: an argument is no distribution, or l is out of range.

  >>> round(beta([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]), 6)
  0.7
  >>> round(beta([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], lenience=0.5), 6)
  0.9
  """
  p, q = _pair(p, q)
  return float(np.minimum(p / _lenience(lenience), q).sum())


def divergence(p: np.ndarray, q: np.ndarray) -> float:
  """`D_LK(p, q) = sum_x |p(x) - q(x)| / 2`, which is `1 - beta`.

  Paper: definition 3.2, lemma 3.3, corollary 3.4: symmetric, in [0, 1], 0 for equal
  distributions alone, 1 for those without a common token.

  >>> round(divergence([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]), 6)
  0.3
  """
  p, q = _pair(p, q)
  middle = (p + q) / 2
  return float(np.abs(p - middle).sum())


def residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
  """What a rejected token is replaced from: `norm(max(0, p - q))`, section 2.3; p when p = q.

  >>> residual([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]).tolist()
  [1.0, 0.0, 0.0]
  """
  p, q = _pair(p, q)
  rest = np.maximum(p - q, 0.0)
  return rest / rest.sum() if rest.sum() > 0 else p


def speculative_law(p: np.ndarray, q: np.ndarray, lenience: float = 1.0) -> np.ndarray:
  """Distribution of the token that speculative sampling gives, section A.1 and A.5.

  It is p itself at lenience 1, and at most p / l below: a lenient run is not lossless,
  but makes no token more than 1 / l times as likely.

  >>> speculative_law([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]).round(6).tolist()
  [0.5, 0.3, 0.2]
  >>> speculative_law([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], lenience=0.5).round(6).tolist()
  [0.3, 0.3, 0.4]
  """
  accepted = np.minimum(np.asarray(p, float) / _lenience(lenience), q)
  return accepted + (1 - accepted.sum()) * residual(p, q)


def rejection_acceptance(p: np.ndarray, q: np.ndarray) -> float:
  """Acceptance of classical rejection sampling: `min_x q(x) / p(x)`, which is 1 / M.

  Paper: section A.2, `sum_x p(x) min_x' q(x') / p(x')`. Never more than `beta`.

  >>> rejection_acceptance([0.5, 0.3, 0.2], [0.2, 0.3, 0.5])
  0.4
  """
  p, q = _pair(p, q)
  possible = p > 0
  # Above 1 by rounding alone: the ratio is 1 where p = q.
  return min(float((q[possible] / p[possible]).min()), 1.0)


def rejection_draws(p: np.ndarray, q: np.ndarray) -> float:
  """Draws from q that classical rejection sampling makes per token on average: M = max p / q.

  Infinite where q lacks a token of p's.

  >>> rejection_draws([0.5, 0.3, 0.2], [0.2, 0.3, 0.5])
  2.5
  """
  accepted = rejection_acceptance(p, q)
  return 1 / accepted if accepted else math.inf


def speculative_draws(p: np.ndarray, q: np.ndarray) -> float:
  """Draws of speculative sampling per token on average: one from q, and a second from the
  residual after a rejection, `2 - beta`. At most 2, and never more than `rejection_draws`.

  >>> round(speculative_draws([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]), 6)
  1.3
  """
  return 2.0 - beta(p, q)


def _pair(p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
  for name, x in (("p", p), ("q", q)):
    if x.ndim != 1 or not x.size or not (x >= 0).all() or abs(x.sum() - 1) > _SUM_TOLERANCE:
      raise SpecdecError(f"{name} is no distribution; expected numbers from 0 that sum to 1")
  if p.shape != q.shape:
    raise SpecdecError(f"p has {p.size} entries and q {q.size}; expected the same vocabulary")
  return p, q


def _lenience(lenience: float) -> float:
  if not 0 < lenience <= 1:
    raise SpecdecError(f"lenience is {lenience:g}; expected a number above 0, up to 1")
  return lenience
