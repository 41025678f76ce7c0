"""What every drafter does alike: drawing tokens, and stopping where it is unsure.

The noise of a draft comes from here, so that no drafter can share it with a verifier, and
so that all of them can be coupled.
"""

import jax
from jax import lax
import jax.numpy as jnp

from specdec.core import controls
from specdec.core import keys
from specdec.core import probs
from specdec.core.contracts import Context
from specdec.core.contracts import Proposal

Array = jax.Array


def uniforms(context: Context, gamma: int) -> Array:
  """Noise of a whole draft, float32 [B, G, 2]; entry i goes to `draw` at index i."""
  sampled = ~probs.is_greedy(context.rules.sampling).all()
  needed = False if context.coupled else sampled
  return keys.uniforms(context.row_keys, context.length,
                       keys.place(keys.Role.DRAFT, jnp.arange(gamma)), needed)


def nothing(context: Context, gamma: int, vocab_size: int) -> Proposal:
  """A draft to `extend`."""
  batch = context.ids.shape[0]
  return Proposal(jnp.zeros((batch, gamma), jnp.int32),
                  jnp.zeros((batch, gamma, vocab_size), jnp.float32),
                  jnp.zeros((batch,), jnp.int32))


def extend(draft: Proposal, context: Context, logits: Array, noise: Array,
           index: Array | int) -> Proposal:
  """Drafts the token at position `index`.

  Args:
    draft: of the positions before.
    context: what is committed.
    logits: float [B, 1, V], of a model, at the target's vocabulary width.
    noise: from `uniforms`.
    index: int scalar.
  """
  adjusted = controls.adjust(logits, context, draft.tokens, index)
  q = probs.distribution(adjusted, context.rules.sampling)
  token = draw(context, q[:, 0], index, lax.dynamic_index_in_dim(noise, index, 1, keepdims=False))
  # A row that stopped before goes on for nothing: the others do.
  going_on = draft.num_drafted == index
  sure = going_on & is_confident(context, adjusted[:, 0], q[:, 0])
  assert draft.probs is not None  # `nothing` has some.
  return Proposal(
      tokens=lax.dynamic_update_slice(draft.tokens, token[:, None], (0, index)),
      probs=lax.dynamic_update_slice(draft.probs, q, (0, index, 0)),
      num_drafted=draft.num_drafted + sure)


def draw(context: Context, q: Array, index: Array | int, noise: Array) -> Array:
  """Draws the drafted token at `index` from a distribution over the vocabulary.

  Args:
    context: what is committed.
    q: float32 [B, V].
    index: int scalar, position in the draft.
    noise: [B, 2], entry `index` of `uniforms`.

  Returns:
    int32 [B].
  """
  if not context.coupled:
    return probs.draw(noise, q)
  return probs.race(_coupled(context, index, jnp.arange(q.shape[-1])[None]), q)


def draw_among(context: Context, ids: Array, q: Array, index: Array | int,
               noise: Array) -> Array:
  """`draw` from a distribution over a few ids [B, K], which differ where q is not 0."""
  if context.coupled:
    chosen = probs.race(_coupled(context, index, ids), q)
  else:
    chosen = probs.draw_among(noise, q)
  return jnp.take_along_axis(ids, chosen[:, None], 1)[:, 0]


def _coupled(context: Context, index: Array | int, ids: Array) -> Array:
  """Noise [B, K] of ids at the position that index `index` of the draft is for."""
  position = context.length[:, None] - 1 + index
  return keys.by_position(context.row_keys, position, ids[:, None],
                          ~probs.is_greedy(context.rules.sampling).all())[:, 0]


def is_confident(context: Context, logits: Array, q: Array) -> Array:
  """Whether the next position is drafted at all, bool [B].

  By the distribution alone: a drafter that drops a token after drawing it would bias the
  output. A greedy row's q is one-hot and says nothing, so its peak at temperature 1
  counts instead.

  Args:
    context: what is committed.
    logits: float32 [B, V] or [B, K], adjusted; what q was made of.
    q: likewise.
  """
  threshold = context.rules.speculation.confidence

  def peak() -> Array:
    greedy = probs.is_greedy(context.rules.sampling)
    return jnp.where(greedy, jax.nn.softmax(logits, -1).max(-1), q.max(-1))

  asked = (threshold > 0).any()
  return lax.cond(asked, lambda: peak() >= threshold, lambda: threshold <= 0)
