"""What an iteration costs at each compiled size, and what is to be expected of it."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from specdec.engine.settings import each
from specdec.engine.settings import whole
from specdec.errors import SpecdecError

# The sizes that automatic gamma chooses among: few, as each is a program to compile, and
# closer together where one token more makes a larger difference.
SIZES = (0, 1, 2, 4, 7)


@dataclasses.dataclass(frozen=True)
class Costs:
  """Costs of a pair on a device, in iterations of plain decoding.

  Measured by `specdec tune`, or at the start of a run with `gamma="auto"`. Pinned in a gin
  file they make a run reproducible: what a row drafts then depends on these numbers and on
  the row alone.

  Attributes:
    iteration: of an iteration at each size: proposal, target call and all around them. Worked
      out of whole decodes, so that waiting for the slowest row of a batch is part of it.
    alpha: share of tested tokens that were accepted while measuring; what is believed of
      a row before it has a history of its own.
    sizes: tokens drafted per iteration, increasing; 0 is plain decoding.
    verify: v, the target call of an iteration alone; () when it was not measured.
    batch_size: rows that were decoded together.

  Raises:
    SpecdecError: the numbers are no costs.
  """

  iteration: Sequence[float]
  alpha: float
  sizes: Sequence[int] = SIZES
  verify: Sequence[float] = ()
  batch_size: int = 1

  def __post_init__(self):
    for name in ("sizes", "iteration", "verify"):
      if not isinstance(getattr(self, name), Sequence | np.ndarray):
        raise SpecdecError(f"Costs.{name} is {getattr(self, name)!r}; expected a number per size")
      object.__setattr__(self, name, tuple(getattr(self, name)))
    for size in self.sizes:
      whole("a size of Costs.sizes", size, 0, 64)
    if len(self.sizes) < 2 or self.sizes[0] != 0 or list(self.sizes) != sorted(set(self.sizes)):
      raise SpecdecError(f"Costs.sizes is {self.sizes}; expected 0 and larger sizes, increasing")
    for name in ("iteration", "verify"):
      values = getattr(self, name)
      each(f"Costs.{name}", values, float, lambda x: 0 < x < 1e9, "positive numbers")
      if len(values) != len(self.sizes) and (values or name == "iteration"):
        raise SpecdecError(f"Costs.{name} has {len(values)} numbers for the {len(self.sizes)} "
                           "sizes of Costs.sizes; expected one for each")
    each("Costs.alpha", self.alpha, float, lambda x: 0 <= x <= 1, "a number from 0 to 1")
    whole("Costs.batch_size", self.batch_size, 1, 2**20)

  @property
  def drafter_call(self) -> float | None:
    """c, what drafting a token costs over a target call, at the largest size."""
    if not self.verify:
      return None
    return max(self.iteration[-1] - self.verify[-1], 0.0) / self.sizes[-1]

  def speed_up(self, alpha: np.ndarray | float) -> np.ndarray:
    """Expected speed-up over plain decoding of every size, [..., sizes].

    Paper, theorem 3.8, with the measured cost of an iteration for `gamma c + 1`.

    Args:
      alpha: [...], acceptance rates.

    Returns:
      Times as fast as plain decoding, for each of `sizes`.
    """
    alpha = np.asarray(alpha, np.float64)[..., None]
    # The sum over i of alpha^i up to each size, which is equation 1 and holds at 1 as well.
    powers = alpha ** np.arange(self.sizes[-1] + 1)
    tokens = np.cumsum(powers, -1)[..., list(self.sizes)]
    return tokens * self.iteration[0] / np.asarray(self.iteration)
