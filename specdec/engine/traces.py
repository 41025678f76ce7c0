"""What happened in each iteration, as data: the paper's Figure 1."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from specdec.core.state import Trace


@dataclasses.dataclass(frozen=True)
class Iteration:
  """One target call of one row.

  Attributes:
    drafted: ids the drafter proposed.
    num_accepted: how many of them stand.
    next_id: the target's own id after those, the correction of a rejected one or the
      bonus after a whole draft; None when the row ended before it.
    target_probs: p of each drafted id.
    draft_probs: q of each drafted id; 1 when the drafter is deterministic.
  """

  drafted: tuple[int, ...]
  num_accepted: int
  next_id: int | None
  target_probs: tuple[float, ...]
  draft_probs: tuple[float, ...]

  @property
  def accepted(self) -> tuple[int, ...]:
    """The drafted tokens that stand."""
    return self.drafted[:self.num_accepted]

  @property
  def rejected(self) -> int | None:
    """The id that the verifier refused; None when the draft stands, or ended the row."""
    refused = self.num_accepted < len(self.drafted) and self.next_id is not None
    return self.drafted[self.num_accepted] if refused else None

  @property
  def untested(self) -> tuple[int, ...]:
    """Drafted ids behind the rejected one, which nobody looked at."""
    return self.drafted[self.num_accepted + 1:]

  @property
  def committed(self) -> tuple[int, ...]:
    """Ids that this iteration added to the output."""
    return self.accepted if self.next_id is None else (*self.accepted, self.next_id)

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready."""
    return dataclasses.asdict(self)


def iterations(trace: Trace, row: int, count: int, ids: Sequence[int]) -> tuple[Iteration, ...]:
  """The iterations of one row.

  Args:
    trace: fetched, of a batch.
    row: in it.
    count: target calls of the row.
    ids: what the row generated, without prompt and start id.
  """
  out, at = [], 0
  for i in range(count):
    drafted, accepted, committed = (int(x[row, i]) for x in (
        trace.num_drafted, trace.num_accepted, trace.num_committed))
    at += committed
    numbers = lambda x: tuple(np.asarray(x[row, i, :drafted]).tolist())  # noqa: B023
    out.append(Iteration(
        drafted=numbers(trace.drafted), num_accepted=accepted,
        next_id=int(ids[at - 1]) if committed > accepted else None,
        target_probs=numbers(trace.target_probs), draft_probs=numbers(trace.draft_probs)))
  return tuple(out)
