"""How many tokens to draft next: the host's decisions between segments of the loop.

A row's gamma is a function of pinned costs and of the row's own history, and changes at
fixed iterations alone; so a row's output depends on no other row. The compiled size is the
largest that a row asks for.
"""

import dataclasses
from typing import Protocol

import numpy as np

from specdec.engine.costs import Costs

# Iterations between decisions: a look at the counts costs the host up to a millisecond, and a
# decision wants some drafts to go by.
SEGMENT = 16
# Iterations that a row decodes plainly before it may try again; doubled every time.
REST = 32
# How many tested tokens the acceptance that was measured beforehand counts as much as.
_PRIOR = 8.0
# What speculation must be expected to gain: below this the measured costs are not sure
# enough to leave plain decoding.
_MARGIN = 1.02

_ALWAYS = 2**30


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
  """What the loop does next.

  Attributes:
    size: tokens drafted per iteration by the program to run.
    gamma: int32 [B], each row's own bound.
    iterations: until the next decision.
  """

  size: int
  gamma: np.ndarray
  iterations: int


@dataclasses.dataclass(frozen=True, eq=False)
class Counts:
  """How a batch stands, fetched.

  Attributes:
    running: bool [B].
    tested: int [B], since the start.
    accepted: int [B], likewise.
    iterations: of the loop, likewise.
    drafting: some row drafted something in the last of them.
  """

  running: np.ndarray
  tested: np.ndarray
  accepted: np.ndarray
  iterations: int
  drafting: bool


class Pace(Protocol):
  """Decides between segments."""

  def next(self) -> Segment:
    """What to run now."""
    ...

  def observe(self, counts: Counts) -> None:
    """Learns what became of it."""
    ...


class Fixed:
  """One gamma from beginning to end.

  Args:
    gamma: tokens drafted per iteration.
    rows: of the batch.
  """

  def __init__(self, gamma: int, rows: int):
    self.gamma = gamma
    self._segment = Segment(gamma, np.full((rows,), gamma, np.int32), _ALWAYS)

  def next(self) -> Segment:
    return self._segment

  def observe(self, counts: Counts) -> None:
    pass


class Auto:
  """The gamma with the best expected speed-up, for every row by itself.

  A row whose drafts are not worth it decodes plainly for a while. Then it forgets half of
  what it knew, which may let it try again, and otherwise rests twice as long.

  Args:
    costs: of the pair, measured or pinned.
    rows: of the batch.
  """

  def __init__(self, costs: Costs, rows: int):
    self._costs = costs
    self._tested, self._accepted = np.zeros(rows), np.zeros(rows)
    self._seen = np.zeros((2, rows))
    self._running = np.ones(rows, bool)
    self._begin = self._now = 0
    self._rest = np.full(rows, REST)
    self._rested = np.zeros(rows, int)
    self._gamma = self._best()

  def _best(self) -> np.ndarray:
    alpha = (self._accepted + _PRIOR * self._costs.alpha) / (self._tested + _PRIOR)
    expected = self._costs.speed_up(alpha)
    expected[:, 1:] /= _MARGIN
    return np.asarray(self._costs.sizes, np.int32)[expected.argmax(-1)]

  def next(self) -> Segment:
    gamma = np.where(self._running, self._gamma, 0).astype(np.int32)
    size = int(gamma.max(initial=0))
    # Nothing is learnt while all of them rest: on to where the first may try again.
    resting = self._rest - self._rested
    end = self._begin + (SEGMENT if size else int(resting[self._running].min(initial=_ALWAYS)))
    return Segment(size, gamma, max(end - self._now, 1))

  def observe(self, counts: Counts) -> None:
    self._now, self._running = counts.iterations, counts.running
    # Decisions at fixed iterations: when a caller comes back earlier, or the loop does, a
    # row's gamma must not depend on it.
    if self._now < self._begin + SEGMENT:
      return
    passed, self._begin = self._now - self._begin, self._now
    now = np.stack([counts.tested, counts.accepted]).astype(np.float64)
    tested, accepted = now - self._seen
    self._seen = now
    self._tested += tested
    self._accepted += accepted
    self._rested = np.where(self._gamma == 0, self._rested + passed, 0)
    waking = self._rested >= self._rest
    self._tested[waking] /= 2
    self._accepted[waking] /= 2
    self._rested[waking] = 0
    self._rest[waking] *= 2
    self._gamma = self._best()


class Watched:
  """Another pace for a drafter that abstains: one-token iterations while no row has a draft.

  The program of one token leaves as soon as a row has a draft, and the larger one when none
  had; which of the two a row goes through does not change what becomes of it.

  Args:
    pace: decides on gamma.
  """

  def __init__(self, pace: Pace):
    self._pace = pace
    self._silent = False
    self._before = 0

  def next(self) -> Segment:
    segment = self._pace.next()
    return dataclasses.replace(segment, size=0) if self._silent else segment

  def observe(self, counts: Counts) -> None:
    self._pace.observe(counts)
    if self._silent:
      # It left because a row has a draft, or at the end of a segment, when nobody has.
      self._silent = False
    else:
      self._silent = not counts.drafting
