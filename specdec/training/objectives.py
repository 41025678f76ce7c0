"""What is minimised: of a small T5, and of heads on the target's hidden states.

Frozen dataclasses of static settings, so that a training step is compiled once for each.
"""

import dataclasses
from typing import Any
from typing import Protocol

import jax
import jax.numpy as jnp

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
