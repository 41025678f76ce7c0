"""What the decoding loop carries from iteration to iteration."""

import dataclasses
from typing import Any

import flax.struct
import jax

from specdec.core import verify
from specdec.core.contracts import Drafter
from specdec.core.contracts import Scorer
from specdec.types import Status

Array = jax.Array
PyTree = Any


@dataclasses.dataclass(frozen=True)
class Method:
  """The static part of a decoding program; one compilation per value and shape.

  Plain decoding is `gamma=0`: the same loop, one token per call. A drafter that is there
  all the same is left out of it, and lags; see `loop.catch_up`.

  Attributes:
    scorer: the target.
    drafter: the approximation model, or None.
    gamma: tokens drafted per iteration, at least 0.
    verifier: decides which of them stand.
    trace: keep what happened in every iteration, see `Trace`.
    watch: leave the loop where another size would do better: with gamma 1 or more after an
      iteration in which no running row drafted anything, with gamma 0 as soon as one
      would. For drafters that abstain.
  """

  scorer: Scorer
  drafter: Drafter | None = None
  gamma: int = 0
  verifier: verify.TokenVerifier = dataclasses.field(default_factory=verify.TokenVerifier)
  trace: bool = False
  watch: bool = False

  def __post_init__(self):
    if self.gamma < 0 or (self.gamma > 0 and self.drafter is None):
      raise ValueError(
          f"gamma is {self.gamma} and the drafter is {self.drafter!r}; expected gamma 1 or "
          "more with a drafter, or gamma 0")
    if self.watch and not getattr(self.drafter, "abstains", False):
      raise ValueError("watch is set; expected a drafter that abstains")


class Weights(flax.struct.PyTreeNode):
  """Prepared weights of the target and parameters of the drafter (or None)."""

  target: PyTree
  drafter: PyTree = None


class Exits(flax.struct.PyTreeNode):
  """When the loop hands control back to the host; traced int32 scalars.

  It always leaves when every row has ended.

  Attributes:
    max_iterations: leave after so many iterations of this call.
    min_ended: leave when so many rows have ended during this call.
  """

  max_iterations: Array | int = 2**30
  min_ended: Array | int = 2**30


class Stats(flax.struct.PyTreeNode):
  """Counts per row, int32 [B].

  alpha is `accepted / tested`: a position is tested when the verifier looks at
  its token, which it does up to the first rejection.

  Attributes:
    target_calls: target calls while the row was running.
    drafted: tokens proposed.
    tested: proposed tokens that the verifier looked at.
    accepted: proposed tokens that stand.
  """

  target_calls: Array
  drafted: Array
  tested: Array
  accepted: Array


class Trace(flax.struct.PyTreeNode):
  """What happened in each iteration of each row; entry i belongs to its i-th target call.

  Attributes:
    drafted: int32 [B, I, G], the draft.
    num_drafted: int32 [B, I].
    num_accepted: int32 [B, I], drafted tokens that stand.
    num_committed: int32 [B, I]; those, and the verifier's token unless the row ended
      before it.
    target_probs: float32 [B, I, G], p of each drafted token.
    draft_probs: float32 [B, I, G], q of each drafted token.
    accept_probs: float32 [B, I, G], how likely each was to stand, given the draft and that
      those before it do.
    next_probs: float32 [B, I], p of the verifier's token.
  """

  drafted: Array
  num_drafted: Array
  num_accepted: Array
  num_committed: Array
  target_probs: Array
  draft_probs: Array
  accept_probs: Array
  next_probs: Array


class DecodeState(flax.struct.PyTreeNode):
  """State of one batch. Donated to every call of the loop.

  Between iterations the target has been fed all committed tokens but the last.

  Attributes:
    ids: int32 [B, T]; the start id, the prompt, then what was generated, then 0.
    length: int32 [B], tokens in use, the start id included.
    status: int32 [B], values of `Status`.
    log_prob: float32 [B], summed log-probability of the generated tokens under the
      target itself, before controls, temperature and filters, in nats.
    adjusted_log_prob: float32 [B], the same under the distribution that was sampled
      from: after controls, temperature and filters. 0 for a greedy row.
    row_keys: typed keys [B].
    target_cache: the scorer's.
    draft_state: the drafter's, or None.
    stats: counts.
    iterations: int32 scalar, loop iterations so far.
    drafting: bool scalar, some running row drafted something in the last of them.
    trace: what happened in each of them, or None.
  """

  ids: Array
  length: Array
  status: Array
  log_prob: Array
  adjusted_log_prob: Array
  row_keys: Array
  target_cache: PyTree
  draft_state: PyTree
  stats: Stats
  iterations: Array
  drafting: Array
  trace: Trace | None = None

  @property
  def running(self) -> Array:
    """bool [B]."""
    return self.status == Status.RUNNING


def capacity_for(max_decode_len: int, gamma: int) -> int:
  """Slots a row needs: the start id, the tokens, and one padded target call.

  The last call of a row starts at `max_decode_len - 1` at the latest and ended
  rows go on writing at `max_decode_len`; with gamma + 1 slots behind it no write
  ever reaches the end, where XLA would clamp it onto valid slots.
  """
  return 1 + max_decode_len + gamma + 1
