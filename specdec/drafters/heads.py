"""Heads on the target's own hidden state, which propose a whole draft at once.

Of the family of blockwise parallel decoding (Stern et al. 2018) and Medusa (Cai et al.
2024): head i is trained to say what follows i + 1 tokens behind the state that it sees, and
the target's output layer turns what it says into logits. There is no second model to run, so
a draft costs little more than reading the output layer once.
"""

import dataclasses
from typing import Any
from typing import Protocol

import flax.struct
import jax
from jax import lax
import jax.numpy as jnp

from specdec.core import controls
from specdec.core import drafting
from specdec.core import probs
from specdec.core import rows as rows_lib
from specdec.core.contracts import Context
from specdec.core.contracts import Proposal
from specdec.errors import SpecdecError
from specdec.types import Source

Array = jax.Array
PyTree = Any


class Ends(Protocol):
  """The first and the last layer of the target, as static code; hashable."""

  def embed(self, weights: PyTree, ids: Array) -> Array:
    """Embeds ids [...] -> [..., D]."""
    ...

  def output(self, weights: PyTree, hidden: Array) -> Array:
    """The target's logits float32 [B, G, V] of hidden states [B, G, D]."""
    ...


class HeadsState(flax.struct.PyTreeNode):
  """What is known of each row.

  Attributes:
    hidden: float32 [B, D], the target's hidden state that the row's newest token came of.
    length: int32 [B], for how many committed tokens that holds; 0 when none was seen.
  """

  hidden: Array
  length: Array


@dataclasses.dataclass(frozen=True)
class HeadsDrafter:
  """Drafts with heads on the hidden state of the target's last call.

  With h the hidden state that the newest token x came of, head i gives
  `softmax(output(h + silu(W_i [h; embed(x)] + b_i)))` for the i-th token after x. Given
  these, the tokens of a draft are independent: no head sees what another drew. Controls do,
  as they must.

  A row whose state is not that of its newest token (at its first call, and after calls
  that it was not told of) drafts nothing. A loop that watches tells of all.

  Parameters are `{"target": weights of the ends, "heads": {"kernel": [k, D, 2 D],
  "bias": [k, D]}}`; the former are the target's own arrays.

  Attributes:
    vocab_size: the target's logits width.
    num_heads: k; `gamma` is at most so many.
    emb_dim: D.
    ends: the target's first and last layer.
  """

  vocab_size: int
  num_heads: int
  emb_dim: int
  ends: Ends

  abstains = True

  @property
  def max_gamma(self) -> int:
    """Most tokens of a draft."""
    return self.num_heads

  def init(self, params: PyTree, source: Source, capacity: int, copies: int = 1) -> HeadsState:
    batch = source.ids.shape[0] * copies
    return HeadsState(jnp.zeros((batch, self.emb_dim), jnp.float32),
                      jnp.zeros((batch,), jnp.int32))

  def catch_up(self, params: PyTree, state: HeadsState, ids: Array, length: Array,
               width: int) -> HeadsState:
    # Tokens alone do not tell the target's state; `length` says that it is an old one.
    return state

  def has_draft(self, params: PyTree, state: HeadsState, context: Context) -> Array:
    return state.length == context.length

  def propose(self, params: PyTree, state: HeadsState, context: Context,
              gamma: int) -> tuple[Proposal, HeadsState]:
    """See `core.contracts.Drafter`.

    Raises:
      SpecdecError: there are fewer heads than `gamma`.
    """
    if gamma > self.num_heads:
      raise SpecdecError(f"gamma is {gamma}; expected at most {self.num_heads}, which is how "
                         "many heads the drafter has")
    batch = context.length.shape[0]
    none = Proposal(jnp.zeros((batch, gamma), jnp.int32),
                    jnp.zeros((batch, gamma, self.vocab_size), jnp.float32),
                    jnp.zeros((batch,), jnp.int32))
    able = self.has_draft(params, state, context)
    draft = lambda: self._draft(params, state, context, gamma, able, none)
    return lax.cond(able.any(), draft, lambda: none), state

  def _draft(self, params: PyTree, state: HeadsState, context: Context, gamma: int,
             able: Array, draft: Proposal) -> Proposal:
    newest = jnp.take_along_axis(context.ids, context.length[:, None] - 1, 1)[:, 0]
    heads = jax.tree.map(lambda x: x[:gamma], params["heads"])
    states = apply_heads(heads, state.hidden, self.ends.embed(params["target"], newest))
    logits = self.ends.output(params["target"], states)
    noise = drafting.uniforms(context, gamma)

    def extend(index: Array, carry: tuple[Proposal, Array]) -> tuple[Proposal, Array]:
      draft, going_on = carry
      at = lambda x: lax.dynamic_index_in_dim(x, index, 1, keepdims=False)
      adjusted = controls.adjust(at(logits)[:, None], context, draft.tokens, index)
      q = probs.distribution(adjusted, context.rules.sampling)
      token = drafting.draw(context, q[:, 0], index, at(noise))
      going_on &= drafting.is_confident(context, adjusted[:, 0], q[:, 0])
      assert draft.probs is not None  # `none` has some.
      return Proposal(
          tokens=lax.dynamic_update_slice(draft.tokens, token[:, None], (0, index)),
          probs=lax.dynamic_update_slice(draft.probs, q, (0, index, 0)),
          num_drafted=draft.num_drafted + going_on), going_on

    return lax.fori_loop(0, gamma, extend, (draft, able))[0]

  def commit(self, params: PyTree, state: HeadsState, context: Context, num_accepted: Array,
             hidden: Array) -> HeadsState:
    # The token after the accepted ones came of entry `num_accepted`. A row that has ended
    # gets none, and would have it of this very state if it went on.
    kept = jnp.take_along_axis(hidden, num_accepted[:, None, None], 1)[:, 0]
    return HeadsState(kept.astype(jnp.float32), context.length + num_accepted + 1)

  def insert(self, state: HeadsState, rows: Array, other: HeadsState) -> HeadsState:
    return rows_lib.replace(state, rows, other)


def apply_heads(heads: PyTree, hidden: Array, embedded: Array) -> Array:
  """What the heads make of hidden states: `h + silu(W_i [h; e] + b_i)`.

  Args:
    heads: kernel [k, D, 2 D] and bias [k, D].
    hidden: [..., D].
    embedded: [..., D], of the tokens that came of them.

  Returns:
    float32 [..., k, D].
  """
  kernel = heads["kernel"]
  seen = jnp.concatenate([hidden, embedded], -1, dtype=kernel.dtype)
  flat = seen.reshape((-1, seen.shape[-1]))
  # One matrix for all heads, rows as outputs: what a CPU reads fastest.
  out = lax.dot_general(flat, kernel.reshape((-1, kernel.shape[-1])), (((1,), (1,)), ((), ())),
                        preferred_element_type=jnp.float32)
  out = out.reshape((*hidden.shape[:-1], *kernel.shape[:2])) + heads["bias"]
  return hidden[..., None, :].astype(jnp.float32) + jax.nn.silu(out)
