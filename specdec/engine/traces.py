"""What happened in each iteration, as data: the paper's Figure 1."""

from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np

from specdec.core.state import Trace
from specdec.data.base import BaseVocabulary
from specdec.engine.shown import Shown


@dataclasses.dataclass(frozen=True)
class Iteration:
  """One target call of one row.

  Attributes:
    drafted: ids the drafter proposed.
    num_accepted: how many of them stand.
    next_id: the target's own id after those, the correction of a rejected one or the
      bonus after a whole draft; None when the row ended before it.
    target_probs: p of each drafted id, after controls, temperature and filters.
    draft_probs: q of each drafted id, likewise; 1 when the drafter is deterministic.
    accept_probs: how likely each drafted id was to stand, given the draft and that those
      before it do; of the token verifier, min(1, p / q).
    next_prob: p of `next_id`, or None.
  """

  drafted: tuple[int, ...]
  num_accepted: int
  next_id: int | None
  target_probs: tuple[float, ...]
  draft_probs: tuple[float, ...]
  accept_probs: tuple[float, ...]
  next_prob: float | None

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
    """Drafted ids behind the rejected one, or behind the row's end, which nobody looked at."""
    return self.drafted[self.num_accepted + (self.rejected is not None):]

  @property
  def committed(self) -> tuple[int, ...]:
    """Ids that this iteration added to the output."""
    return self.accepted if self.next_id is None else (*self.accepted, self.next_id)

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready."""
    return dataclasses.asdict(self)


class Iterations(Shown, tuple[Iteration, ...]):
  """All iterations of an output, which show themselves in notebooks and terminals.

  Args:
    iterations: in order.
    prompt: ids that stood before the first of them.
    pieces: of all ids, with T5's underscore for a space.
  """

  prompt: tuple[int, ...]
  pieces: Mapping[int, str]

  def __new__(cls, iterations: Iterable[Iteration] = (), prompt: Sequence[int] = (),
              pieces: Mapping[int, str] | None = None) -> "Iterations":
    self = super().__new__(cls, iterations)
    self.prompt, self.pieces = tuple(prompt), pieces or {}
    return self

  def text(self, ids: Iterable[int]) -> str:
    """Pieces as they are, with the space that the underscore stands for."""
    return "".join(self.pieces.get(i, f"<id {i}>") for i in ids).replace("\u2581", " ")

  def befores(self) -> list[tuple[int, ...]]:
    """Ids that stood when each iteration began."""
    out, before = [], self.prompt
    for iteration in self:
      out.append(before)
      before += iteration.committed
    return out


def iterations(trace: Trace, row: int, count: int, ids: Sequence[int], prompt: Sequence[int],
               vocabulary: BaseVocabulary) -> Iterations:
  """The iterations of one row.

  Args:
    trace: fetched, of a batch.
    row: in it.
    count: target calls of the row.
    ids: what the row generated, without prompt and start id.
    prompt: ids before them.
    vocabulary: of the ids.
  """
  out, at = [], 0
  for i in range(count):
    drafted, accepted, committed = (int(x[row, i]) for x in (
        trace.num_drafted, trace.num_accepted, trace.num_committed))
    at += committed
    own = committed > accepted
    numbers = lambda x: tuple(np.asarray(x[row, i, :drafted]).tolist())  # noqa: B023
    out.append(Iteration(
        drafted=numbers(trace.drafted), num_accepted=accepted,
        next_id=int(ids[at - 1]) if own else None,
        target_probs=numbers(trace.target_probs), draft_probs=numbers(trace.draft_probs),
        accept_probs=numbers(trace.accept_probs),
        next_prob=float(trace.next_probs[row, i]) if own else None))
  used = sorted({*prompt, *ids, *(i for one in out for i in one.drafted)})
  return Iterations(out, prompt, dict(zip(used, vocabulary.pieces(used))))
