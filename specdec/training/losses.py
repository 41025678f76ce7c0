"""What a drafter is trained on, position by position.

With p the target's distribution and q the drafter's, a drafted token stands with
probability `sum min(p, q) = 1 - TV(p, q)` (section 3.2 of the paper: beta), so the total
variation is the share of drafts that are rejected. The Kullback-Leibler divergences bound
it (Pinsker) and have gradients where p and q do not overlap yet.
"""

import jax
import jax.numpy as jnp

from specdec.errors import SpecdecError

Array = jax.Array

# "ce" needs no teacher: it looks at the target's tokens alone.
NAMES = ("forward_kl", "reverse_kl", "tv", "ce")


def per_token(name: str, logits: Array, teacher_logits: Array | None, target_ids: Array) -> Array:
  """The loss of every position in nats (a probability for "tv").

  Logits of different widths are compared where both have some: what is beyond is padding.

  Args:
    name: one of `NAMES`:

      * forward_kl: `sum p log(p / q)`. Its minimum is where q covers all that p may say.
      * reverse_kl: `sum q log(q / p)`. Its minimum is where q says nothing that p would not.
      * tv: `1 - sum min(p, q)`.
      * ce: `-log q` of the target's token.

    logits: float32 [..., V], the drafter's.
    teacher_logits: float32 [..., V'], the target's; not looked at by "ce".
    target_ids: int32 [...], the tokens that follow; looked at by "ce" alone.

  Returns:
    float32 [...].

  Raises:
    SpecdecError: there is no such loss.
  """
  if name == "ce":
    # A comparison, not a gather: the gradient of a gather is a scatter, which costs
    # a CPU more than the rest of the loss.
    hit = target_ids[..., None] == jnp.arange(logits.shape[-1])
    return -jnp.where(hit, jax.nn.log_softmax(logits), 0.0).sum(-1)
  logits, teacher_logits = _common(logits, teacher_logits)
  log_p, log_q = jax.nn.log_softmax(teacher_logits), jax.nn.log_softmax(logits)
  if name == "forward_kl":
    return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)
  if name == "reverse_kl":
    return (jnp.exp(log_q) * (log_q - log_p)).sum(-1)
  if name == "tv":
    return 1 - jnp.minimum(jnp.exp(log_p), jnp.exp(log_q)).sum(-1)
  raise SpecdecError(f"there is no loss {name!r}; expected one of {', '.join(NAMES)}")


def acceptance(logits: Array, teacher_logits: Array) -> Array:
  """beta = `sum min(p, q)` at temperature 1, float32 [...]; its mean is alpha.

  >>> import numpy as np
  >>> same = np.zeros((1, 4), np.float32)
  >>> float(acceptance(same, same)[0])
  1.0
  """
  return 1 - per_token("tv", logits, teacher_logits, None)


def _common(a: Array, b: Array) -> tuple[Array, Array]:
  width = min(a.shape[-1], b.shape[-1])
  return a[..., :width], b[..., :width]
