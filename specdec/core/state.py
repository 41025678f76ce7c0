"""What the decoding loop carries from iteration to iteration."""

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from specdec.core import verify
from specdec.core.contracts import Drafter
from specdec.core.contracts import Scorer
from specdec.types import Sampling
from specdec.types import Status

Array = jax.Array
PyTree = Any


@dataclasses.dataclass(frozen=True)
class Method:
  """The static part of a decoding program; one compilation per value and shape.

  Plain decoding is `drafter=None, gamma=0`: the same loop, one token per call.

  Attributes:
    scorer: the target.
    drafter: the approximation model, or None.
    gamma: tokens drafted per iteration, at least 0.
    verifier: decides which of them stand.
  """

  scorer: Scorer
  drafter: Drafter | None = None
  gamma: int = 0
  verifier: verify.TokenVerifier = dataclasses.field(default_factory=verify.TokenVerifier)

  def __post_init__(self):
    if self.gamma < 0 or (self.gamma > 0) != (self.drafter is not None):
      raise ValueError(
          f"gamma is {self.gamma} and the drafter is {self.drafter!r}; expected gamma 1 or "
          "more with a drafter, or gamma 0 without one")


@flax.struct.dataclass
class Weights:
  """Prepared weights of the target and parameters of the drafter (or None)."""

  target: PyTree
  drafter: PyTree = None


@flax.struct.dataclass
class Exits:
  """When the loop hands control back to the host; traced int32 scalars.

  It always leaves when every row has ended.

  Attributes:
    max_iterations: leave after so many iterations of this call.
    min_ended: leave when so many rows have ended during this call.
  """

  max_iterations: Array | int = 2**30
  min_ended: Array | int = 2**30


@flax.struct.dataclass
class Stats:
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


@flax.struct.dataclass
class DecodeState:
  """State of one batch. Donated to every call of the loop.

  Between iterations the target has been fed all committed tokens but the last.

  Attributes:
    ids: int32 [B, T]; the start id, then what was generated, then 0.
    length: int32 [B], tokens in use, the start id included.
    status: int32 [B], values of `Status`.
    log_prob: float32 [B], summed raw log-probability of the generated tokens
      under the target (before temperature and filters), in nats.
    row_keys: typed keys [B].
    target_cache: the scorer's.
    draft_state: the drafter's, or None.
    stats: counts.
    iterations: int32 scalar, loop iterations so far.
  """

  ids: Array
  length: Array
  status: Array
  log_prob: Array
  row_keys: Array
  target_cache: PyTree
  draft_state: PyTree
  stats: Stats
  iterations: Array

  @property
  def running(self) -> Array:
    """bool [B]."""
    return self.status == Status.RUNNING


def sampling(batch: int, temperature: Any = 0.0, top_k: Any = 0, top_p: Any = 0.0) -> Sampling:
  """Spreads scalars or per-row values over a batch."""
  spread = lambda value, dtype: jnp.broadcast_to(jnp.asarray(value, dtype), (batch,))
  return Sampling(temperature=spread(temperature, jnp.float32),
                  top_k=spread(top_k, jnp.int32), top_p=spread(top_p, jnp.float32))


def capacity_for(max_decode_len: int, gamma: int) -> int:
  """Slots a row needs: the start id, the tokens, and one padded target call.

  The last call of a row starts at `max_decode_len - 1` at the latest and ended
  rows go on writing at `max_decode_len`; with gamma + 1 slots behind it no write
  ever reaches the end, where XLA would clamp it onto valid slots.
  """
  return 1 + max_decode_len + gamma + 1
