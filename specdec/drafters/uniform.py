"""Any token at random: the least that a drafter can do (section 3.6 of the paper)."""

import dataclasses
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from specdec.core import drafting
from specdec.core.contracts import Context
from specdec.core.contracts import Proposal
from specdec.types import Source

Array = jax.Array
PyTree = Any


@dataclasses.dataclass(frozen=True)
class UniformDrafter:
  """Drafts from the uniform distribution over what is allowed.

  Its alpha is 1 / V or so, and decoding with it is the proof that nothing but speed
  depends on the drafter. It has no parameters.

  Attributes:
    vocab_size: the target's logits width.
  """

  vocab_size: int

  abstains = False

  def init(self, params: PyTree, source: Source, capacity: int, copies: int = 1) -> PyTree:
    return ()

  def catch_up(self, params: PyTree, state: PyTree, ids: Array, length: Array,
               width: int) -> PyTree:
    return state

  def propose(self, params: PyTree, state: PyTree, context: Context,
              gamma: int) -> tuple[Proposal, PyTree]:
    noise = drafting.uniforms(context, gamma)
    logits = jnp.zeros((context.ids.shape[0], 1, self.vocab_size), jnp.float32)
    draft = lax.fori_loop(
        0, gamma, lambda index, draft: drafting.extend(draft, context, logits, noise, index),
        drafting.nothing(context, gamma, self.vocab_size))
    return draft, state

  def has_draft(self, params: PyTree, state: PyTree, context: Context) -> Array:
    return jnp.ones(context.length.shape, bool)

  def commit(self, params: PyTree, state: PyTree, context: Context, num_accepted: Array,
             hidden: Array) -> PyTree:
    return state

  def insert(self, state: PyTree, rows: Array, other: PyTree) -> PyTree:
    return state
