"""What speculation is worth: the paper's formulas in alpha, gamma and c, and in v.

alpha is the mean acceptance rate, gamma the drafted tokens per target call, c (`cost_ratio`)
the time of a drafter call over that of a target call. The paper takes a target call of
gamma + 1 tokens to cost as much as one of 1; where it does not, the ratio of the two, v(gamma)
(`verify_ratio`), is to be measured, and it stands in these formulas where it belongs. All
of them are ratios without a unit; acceptances are independent with the same rate unless a
function says otherwise.
"""

from collections.abc import Sequence
import dataclasses
import math

import numpy as np

from specdec.errors import SpecdecError

# One number for every gamma from 1 on, or v(1), v(2), ... as far as they are known.
VerifyRatio = float | Sequence[float]


def tokens_per_iteration(alpha: float, gamma: float) -> float:
  """Expected tokens per target call, `(1 - alpha^(gamma + 1)) / (1 - alpha)`.

  Paper: section 3.1, equation 1. Between 1 and gamma + 1, and at most 1 / (1 - alpha).

  Args:
    alpha: in [0, 1].
    gamma: 0 or more; `math.inf` is allowed.

  Raises:
    SpecdecError: an argument is out of range; so do all functions here.

  >>> round(tokens_per_iteration(0.8, 5), 2)
  3.69
  >>> round(tokens_per_iteration(0.8, math.inf), 9)
  5.0
  """
  check_alpha(alpha)
  _check_gamma(gamma)
  if alpha == 1:
    return gamma + 1.0
  if alpha == 0:
    return 1.0
  # Not 1 - alpha ** (gamma + 1), which cancels near 1.
  return -math.expm1((gamma + 1) * math.log(alpha)) / (1 - alpha)


def tokens_of_betas(betas: Sequence[float]) -> float:
  """Expected tokens of one iteration whose drafted tokens have acceptance rates of their own.

  `1 + beta_1 + beta_1 beta_2 + ...`, of which equation 1 is the case of equal rates.

  >>> tokens_of_betas([0.5, 0.5])
  1.75
  """
  return 1.0 + float(np.cumprod(_betas(betas)).sum()) if len(betas) else 1.0


def accepted_share(alpha: float, gamma: int) -> float:
  """Accepted over drafted tokens, which is below alpha: what follows a rejection is untested.

  `(tokens_per_iteration - 1) / gamma`; alpha itself is accepted over tested tokens.

  >>> round(accepted_share(0.75, 7), 2)
  0.37
  """
  if gamma < 1:
    raise SpecdecError(f"gamma is {gamma}; expected 1 or more: nothing is drafted at 0")
  return (tokens_per_iteration(alpha, gamma) - 1) / gamma


def alpha_of_tokens(tokens: float, gamma: int) -> float:
  """The alpha at which equation 1 gives so many tokens per target call.

  Args:
    tokens: from 1 to gamma + 1.
    gamma: 1 or more.

  >>> round(alpha_of_tokens(tokens_per_iteration(0.8, 5), 5), 6)
  0.8
  """
  if gamma < 1 or not 1 <= tokens <= gamma + 1:
    raise SpecdecError(f"{tokens:g} tokens per call do not go with gamma {gamma}; expected from 1 "
                       "to gamma + 1")
  low, high = 0.0, 1.0
  for _ in range(60):
    middle = (low + high) / 2
    if tokens_per_iteration(middle, gamma) < tokens:
      low = middle
    else:
      high = middle
  return (low + high) / 2


def speed_up(alpha: float, gamma: float, cost_ratio: float, verify_ratio: float = 1.0) -> float:
  """Expected walltime improvement, `(1 - alpha^(gamma + 1)) / ((1 - alpha)(gamma c + v))`.

  Paper: section 3.3, theorem 3.8, with v = 1. Gamma 0 is plain decoding, which gives 1.

  Args:
    alpha: acceptance rate.
    gamma: drafted tokens; `math.inf` is allowed.
    cost_ratio: c, a drafter call over a target call.
    verify_ratio: v(gamma), a target call of gamma + 1 tokens over one of 1.

  >>> round(speed_up(0.75, 7, 0.02), 1)
  3.2
  >>> round(speed_up(0.75, 3, 0.095, verify_ratio=1.4), 2)
  1.62
  """
  check_cost_ratio(cost_ratio)
  check_verify_ratio(verify_ratio)
  tokens = tokens_per_iteration(alpha, gamma)
  if gamma == 0:
    return 1.0
  if gamma == math.inf:
    if cost_ratio:
      return 1 / cost_ratio if alpha == 1 else 0.0
    return tokens / verify_ratio
  return tokens / (gamma * cost_ratio + verify_ratio)


def least_speed_up(alpha: float, cost_ratio: float, verify_ratio: float = 1.0) -> float:
  """What the best gamma improves at least, `(1 + alpha) / (c + v(1))`: gamma 1; 1 is plain.

  Paper: corollary 3.9, with v = 1: there is a gamma that improves if, and only if,
  alpha > c, and then the gain is (1 + alpha) / (1 + c) or more.

  >>> least_speed_up(0.5, 0.25)
  1.2
  >>> least_speed_up(0.1, 0.25)
  1.0
  """
  return max(1.0, speed_up(alpha, 1, cost_ratio, verify_ratio_at(verify_ratio, 1)))


def operations(alpha: float, gamma: float, operations_ratio: float = 0.0) -> float:
  """Arithmetic operations per token, plain decoding as 1: more than 1, for calls run in parallel.

  `(1 - alpha)(gamma c_hat + gamma + 1) / (1 - alpha^(gamma + 1))`; section 3.4, theorem 3.11.
  v is a matter of time and has no part in it.

  Args:
    alpha: acceptance rate.
    gamma: drafted tokens.
    operations_ratio: c_hat, operations per token of the drafter over those of the target.

  >>> round(operations(0.8, 5), 2)
  1.63
  """
  if not 0 <= operations_ratio < math.inf:
    raise SpecdecError(f"c_hat is {operations_ratio:g}; expected a number from 0")
  tokens = tokens_per_iteration(alpha, gamma)
  if gamma == math.inf:
    return 1 + operations_ratio if alpha == 1 else math.inf
  return (gamma * operations_ratio + gamma + 1) / tokens


def memory_reads(alpha: float, gamma: float) -> float:
  """Reads of the target's weights and caches per token, plain decoding as 1.

  The inverse of equation 1, section 3.4: they are read once per target call.

  >>> round(memory_reads(0.8, 5), 2)
  0.27
  """
  tokens = tokens_per_iteration(alpha, gamma)
  return 1 / tokens if tokens < math.inf else 0.0


def best_gamma(alpha: float, cost_ratio: float, verify_ratio: VerifyRatio = 1.0) -> float:
  """The smallest gamma of the largest expected improvement, section 3.5.

  Args:
    alpha: acceptance rate.
    cost_ratio: c.
    verify_ratio: v for every gamma from 1 on, or v(1), v(2), ...; a list ends the search.

  Returns:
    An integer, 0 where plain decoding is fastest, `math.inf` where more is always better.

  >>> best_gamma(0.9, 0.01)
  24
  >>> best_gamma(0.2, 0.3), best_gamma(0.2, 0.0)
  (0, inf)
  """
  check_alpha(alpha)
  check_cost_ratio(cost_ratio)
  if isinstance(verify_ratio, Sequence):
    speeds = [1.0, *(speed_up(alpha, i, cost_ratio, v) for i, v in enumerate(verify_ratio, 1))]
    return int(np.argmax(speeds))
  check_verify_ratio(verify_ratio)
  v = verify_ratio

  def grows(gamma: int) -> bool:
    """Whether one more drafted token than `gamma`, from 1 on, makes it faster."""
    # Its share of the tokens against its share of the time; true up to some gamma only.
    return (alpha ** (gamma + 1) * (gamma * cost_ratio + v)
            > cost_ratio * tokens_per_iteration(alpha, gamma))

  if alpha and (cost_ratio == 0 or alpha == 1):
    # The gain grows towards its limit for ever, or falls towards it, or is always v's.
    limit = math.inf if cost_ratio == 0 and alpha == 1 else speed_up(
        alpha, math.inf, cost_ratio, v)
    if cost_ratio == 0 or v > cost_ratio:
      return math.inf if limit > 1 else 0
    return 1 if speed_up(alpha, 1, cost_ratio, v) > 1 else 0
  low, high = 0, 1
  while grows(high):
    low, high = high, 2 * high
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if grows(middle) else (low, middle)
  return high if speed_up(alpha, high, cost_ratio, v) > 1 else 0


def oracle_speed_up(alpha: float, cost_ratio: float, verify_ratio: VerifyRatio = 1.0) -> float:
  """Improvement with an oracle that knows which drafted tokens will stand, section 3.5.

  It drafts no other. At v = 1 an iteration then gives 1 / (1 - alpha) tokens and costs
  1 + alpha c / (1 - alpha), so that the improvement is `1 / (1 - alpha + alpha c)`. No
  choice of gamma does better; that of the best constant one is exceeded by up to 58 %
  ("~60 %" in the paper). Where v makes a short draft dearer than plain decoding, it drafts
  none, or fewer.

  Args:
    alpha: acceptance rate.
    cost_ratio: c.
    verify_ratio: as in `best_gamma`; with a list no longer draft is made.

  >>> round(oracle_speed_up(0.8, 0.05), 2)
  4.17
  """
  check_alpha(alpha)
  check_cost_ratio(cost_ratio)
  if isinstance(verify_ratio, Sequence):
    return _oracle_of_list(alpha, cost_ratio, verify_ratio)
  v = check_verify_ratio(verify_ratio)
  if alpha == 1:
    return max(1 / cost_ratio, 1.0) if cost_ratio else math.inf
  rate = 1.0
  while (room := 1 - rate * cost_ratio) > 0:
    # Drafts of this length and more are worth their time at this rate.
    shortest = max(float(math.floor(rate * (v - 1) / room)) + 1, 1.0)
    chance = alpha ** shortest
    drafted = chance * (shortest + alpha / (1 - alpha))
    better = (1 + drafted) / (1 - chance + chance * v + cost_ratio * drafted)
    if better <= rate * (1 + 1e-12):
      break
    rate = better
  return rate


def _oracle_of_list(alpha: float, cost_ratio: float, verify_ratio: Sequence[float]) -> float:
  most = len(verify_ratio)
  lengths = np.arange(most + 1)
  chances = alpha ** lengths * np.where(lengths < most, 1 - alpha, 1.0)
  times = _times(most, cost_ratio, verify_ratio)
  rate = 1.0
  while True:
    gains = lengths - rate * times
    # Of the n tokens that would stand, the best k <= n to draft.
    drafted = np.maximum.accumulate(
        np.where(gains == np.maximum.accumulate(gains), lengths, 0))
    better = float(1 + chances @ drafted) / float(chances @ times[drafted])
    if better <= rate * (1 + 1e-12):
      return rate
    rate = better


@dataclasses.dataclass(frozen=True)
class Run:
  """Totals of simulated iterations.

  Attributes:
    tokens: that they gave.
    time: in one-token target calls.
    tested: drafted tokens up to the first rejection, that one included.
    accepted: drafted tokens that stand.
  """

  tokens: int
  time: float
  tested: int
  accepted: int

  @property
  def speed_up(self) -> float:
    """Over plain decoding, which takes one call a token."""
    return self.tokens / self.time

  @property
  def alpha(self) -> float | None:
    """Accepted over tested tokens, as it is counted in a run."""
    return self.accepted / self.tested if self.tested else None


def varying_speed_up(betas: Sequence[float], gammas: Sequence[int] | int, cost_ratio: float,
                     verify_ratio: VerifyRatio = 1.0) -> float:
  """Expected improvement over iterations whose acceptance rates differ.

  Args:
    betas: [N], the rate of each iteration.
    gammas: [N], what each of them drafts, or one number for all.
    cost_ratio: c.
    verify_ratio: as in `best_gamma`.

  >>> round(varying_speed_up([0.9, 0.5], 4, 0.1), 3)
  2.155
  """
  betas = _betas(betas)
  gammas = np.broadcast_to(gammas, betas.shape)
  times = _times(int(gammas.max()), cost_ratio, verify_ratio)
  return float(_tokens(betas, gammas).sum() / times[gammas].sum())


def fixed_gamma(betas: Sequence[float], cost_ratio: float, verify_ratio: VerifyRatio = 1.0,
                max_gamma: int = 64) -> int:
  """The best gamma that is the same in iterations whose acceptance rates differ.

  >>> fixed_gamma([0.9, 0.5], 0.1)
  7
  """
  most = _most(verify_ratio, max_gamma)
  speeds = [varying_speed_up(betas, g, cost_ratio, verify_ratio) for g in range(most + 1)]
  return int(np.argmax(speeds))


def oracle_gammas(betas: Sequence[float], cost_ratio: float, verify_ratio: VerifyRatio = 1.0,
                  max_gamma: int = 64) -> np.ndarray:
  """The best gamma of each iteration for an oracle that sees its rate, section 3.5.

  It sees rates and no outcomes, so it gains less than that of `oracle_speed_up`. What it
  maximises is tokens over time of all iterations together, which is not the same as the
  ratio of each.

  Args:
    betas: [N].
    cost_ratio: c.
    verify_ratio: as in `best_gamma`.
    max_gamma: no longer draft is tried.

  Returns:
    int [N].

  >>> oracle_gammas([0.9, 0.5], 0.1).tolist()
  [12, 1]
  """
  betas = _betas(betas)
  most = _most(verify_ratio, max_gamma)
  times = _times(most, cost_ratio, verify_ratio)
  tokens = _tokens(betas[:, None], np.arange(most + 1)[None])
  gammas = np.zeros(betas.shape, int)
  rate = 1.0
  while True:
    # Dinkelbach's method: the rate rises with every round and takes finitely many values.
    gammas = np.argmax(tokens - rate * times, axis=1)
    better = float(tokens[np.arange(betas.size), gammas].sum() / times[gammas].sum())
    if better <= rate * (1 + 1e-12):
      return gammas
    rate = better


def simulate(betas: Sequence[float], gammas: Sequence[int] | int, cost_ratio: float,
             verify_ratio: VerifyRatio = 1.0, seed: int = 0) -> Run:
  """Algorithm 1 on coin tosses: each drafted token of an iteration stands at the same rate.

  Arguments are those of `varying_speed_up`, to whose value the result tends.

  >>> run = simulate([0.8] * 100_000, 5, 0.05)
  >>> abs(run.speed_up / speed_up(0.8, 5, 0.05) - 1) < 0.01
  True
  """
  betas = _betas(betas)
  gammas = np.broadcast_to(gammas, betas.shape)
  rng = np.random.default_rng(seed)
  # Heads before the first tails; a coin without tails goes on for ever.
  heads = np.where(betas < 1, rng.geometric(np.where(betas < 1, 1 - betas, 1.0)) - 1, np.inf)
  accepted = np.minimum(heads, gammas).astype(int)
  times = _times(int(gammas.max()), cost_ratio, verify_ratio)
  return Run(tokens=int(accepted.sum()) + betas.size, time=float(times[gammas].sum()),
             tested=int((accepted + (accepted < gammas)).sum()), accepted=int(accepted.sum()))


def verify_ratio_at(verify_ratio: VerifyRatio, gamma: int) -> float:
  """v of one gamma, from a number or from v(1), v(2), ...; v(0) is 1.

  >>> verify_ratio_at([1.1, 1.3], 2), verify_ratio_at(1.5, 7), verify_ratio_at(1.5, 0)
  (1.3, 1.5, 1.0)
  """
  if gamma == 0:
    return 1.0
  if not isinstance(verify_ratio, Sequence):
    return check_verify_ratio(verify_ratio)
  if gamma > len(verify_ratio):
    raise SpecdecError(f"v is known up to gamma {len(verify_ratio)}; expected a value for gamma "
                       f"{gamma} too, or a single one for all")
  return check_verify_ratio(verify_ratio[int(gamma) - 1])


def check_alpha(alpha: float) -> float:
  """Refuses what is no rate."""
  if not 0 <= alpha <= 1:
    raise SpecdecError(f"alpha is {alpha:g}; expected a number from 0 to 1")
  return alpha


def check_cost_ratio(cost_ratio: float) -> float:
  """Refuses what is no ratio of times; 0 is a drafter that takes none."""
  if not 0 <= cost_ratio < math.inf:
    raise SpecdecError(f"c is {cost_ratio:g}; expected a number from 0")
  return cost_ratio


def check_verify_ratio(verify_ratio: float) -> float:
  """Likewise; a target call takes time. Measured values can be a little below 1."""
  if not 0 < verify_ratio < math.inf:
    raise SpecdecError(f"v is {verify_ratio:g}; expected a number above 0, usually 1 or more")
  return verify_ratio


def _check_gamma(gamma: float) -> None:
  if not gamma >= 0 or gamma not in (math.inf, int(gamma) if gamma < math.inf else gamma):
    raise SpecdecError(f"gamma is {gamma:g}; expected an integer from 0")


def _betas(betas: Sequence[float]) -> np.ndarray:
  betas = np.asarray(betas, np.float64)
  if betas.ndim != 1 or not betas.size or not ((betas >= 0) & (betas <= 1)).all():
    raise SpecdecError("betas are acceptance rates; expected one number or more, from 0 to 1")
  return betas


def _tokens(betas: np.ndarray, gammas: np.ndarray) -> np.ndarray:
  """Equation 1 over arrays."""
  rest = np.where(betas < 1, 1 - betas, 1.0)
  return np.where(betas < 1, (1 - betas ** (gammas + 1.0)) / rest, gammas + 1.0)


def _times(most: int, cost_ratio: float, verify_ratio: VerifyRatio) -> np.ndarray:
  """Time of an iteration that drafts 0, 1, ... `most` tokens, in one-token target calls."""
  check_cost_ratio(cost_ratio)
  return np.asarray([g * cost_ratio + verify_ratio_at(verify_ratio, g) for g in range(most + 1)])


def _most(verify_ratio: VerifyRatio, max_gamma: int) -> int:
  return min(max_gamma, len(verify_ratio)) if isinstance(verify_ratio, Sequence) else max_gamma
