"""What speculation is expected to gain, from alpha and measured costs.

For random weights no acceptance rate means anything, but the time of an iteration does:
it does not depend on how many tokens stand.
"""


def tokens_per_iteration(alpha: float, gamma: int) -> float:
  """Expected tokens per target call, paper section 3.1, equation 1.

  >>> round(tokens_per_iteration(0.8, 5), 2)
  3.69
  """
  if alpha == 1:
    return gamma + 1.0
  return (1 - alpha ** (gamma + 1)) / (1 - alpha)


def speed_up(alpha: float, gamma: int, cost_ratio: float, verify_ratio: float = 1.0) -> float:
  """Expected walltime improvement over plain decoding, paper theorem 3.8.

  Args:
    alpha: acceptance rate.
    gamma: drafted tokens.
    cost_ratio: c, a drafter call over a target call.
    verify_ratio: v, a target call of gamma + 1 tokens over one of 1. The paper sets 1,
      which holds where the target is bound by reading its weights.

  >>> round(speed_up(0.75, 7, 0.02), 1)
  3.2
  """
  return tokens_per_iteration(alpha, gamma) / (gamma * cost_ratio + verify_ratio)
