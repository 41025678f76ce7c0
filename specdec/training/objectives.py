"""What is minimised: of a small T5, and of heads on the target's hidden states.

Frozen dataclasses of static settings, so that a training step is compiled once for each.
"""

import dataclasses
from typing import Any
from typing import Protocol

import jax
import jax.numpy as jnp

from specdec.drafters.heads import apply_heads
from specdec.models.t5.network import T5
from specdec.training import losses

Array = jax.Array
Params = Any
# encoder ids [B, S], decoder ids [B, T], target ids [B, T].
Arrays = tuple[Array, Array, Array]


class Objective(Protocol):
  """What `runs.train` needs to know of what is trained."""

  def loss(self, params: Params, frozen: Params, batch: Arrays) -> Array:
    """Mean loss per token, float32 scalar."""
    ...

  def acceptance(self, params: Params, frozen: Params, batch: Arrays) -> tuple[Array, Array]:
    """Summed `sum min(p, q)` over the tokens, and how many tokens there are."""
    ...


@dataclasses.dataclass(frozen=True)
class SmallT5:
  """A small T5 that is to draft for a target.

  Attributes:
    student: the network, in T5X's layout.
    teacher: the target's network, in the layout of the frozen weights.
    loss_name: one of `losses.NAMES`.
  """

  student: T5
  teacher: T5
  loss_name: str = "forward_kl"

  def _logits(self, network: T5, params: Params, batch: Arrays) -> Array:
    encoder_ids, decoder_ids, _ = batch
    return network.apply({"params": params}, encoder_ids, encoder_ids > 0, decoder_ids)

  def loss(self, params: Params, frozen: Params, batch: Arrays) -> Array:
    logits = self._logits(self.student, params, batch)
    reference = None if self.loss_name == "ce" else self._logits(self.teacher, frozen, batch)
    weights = batch[2] > 0
    found = losses.per_token(self.loss_name, logits, reference, batch[2])
    return (found * weights).sum() / jnp.maximum(weights.sum(), 1)

  def acceptance(self, params: Params, frozen: Params, batch: Arrays) -> tuple[Array, Array]:
    beta = losses.acceptance(self._logits(self.student, params, batch),
                             self._logits(self.teacher, frozen, batch))
    weights = batch[2] > 0
    return (beta * weights).sum(), weights.sum()


@dataclasses.dataclass(frozen=True)
class Heads:
  """Heads on a target's hidden states, see `drafters.heads`.

  With h_t the state that the target says token t + 1 from, head i is to say what the target
  says i + 1 positions later. Means are over heads and positions.

  Attributes:
    teacher: the target's network.
    loss_name: one of `losses.NAMES`.
  """

  teacher: T5
  loss_name: str = "forward_kl"

  def loss(self, params: Params, frozen: Params, batch: Arrays) -> Array:
    total, count = self._sums(
        params, frozen, batch, lambda *args: losses.per_token(self.loss_name, *args))
    return total / jnp.maximum(count, 1)

  def acceptance(self, params: Params, frozen: Params, batch: Arrays) -> tuple[Array, Array]:
    return self._sums(params, frozen, batch,
                      lambda logits, reference, ids: losses.acceptance(logits, reference))

  def _sums(self, params: Params, frozen: Params, batch: Arrays, measure: Any
            ) -> tuple[Array, Array]:
    """Sums a measure of (logits, teacher's logits, tokens) over heads, and counts."""
    encoder_ids, decoder_ids, target_ids = batch
    apply = lambda *args, method: self.teacher.apply({"params": frozen}, *args, method=method)
    hidden = apply(encoder_ids, encoder_ids > 0, decoder_ids, method="hidden")
    reference = apply(hidden, method="logits_of")
    states = apply_heads(params, hidden, apply(target_ids, method="embed"))

    # The logits of one head at a time: those of all would not fit a large vocabulary.
    @jax.checkpoint
    def of_head(state: Array, reference: Array, ids: Array) -> Array:
      logits = apply(state.astype(hidden.dtype), method="logits_of")
      return (measure(logits, reference, ids) * (ids > 0)).sum()

    total = count = 0.0
    width = target_ids.shape[1]
    for i in range(min(params["bias"].shape[0], width - 1)):
      ids = target_ids[:, i + 1:]
      total += of_head(states[:, :width - i - 1, i], reference[:, i + 1:], ids)
      count += (ids > 0).sum()
    return total, count
