"""What the core computes, again: NumPy, float64, one position at a time.

Written from the paper and from T5X's documentation of its knobs rather than from
`specdec.core`, with sorts and loops where the core has neither, so that the two
can only agree by both being right.
"""

from collections.abc import Sequence

import numpy as np

GREEDY = 1e-4
BLOCK = 128


def distribution(logits: np.ndarray, temperature: float, top_k: int = 0,
                 top_p: float = 0.0) -> np.ndarray:
  """The adjusted distribution at one position.

  Args:
    logits: [V]; -inf is a forbidden token.
    temperature: 1e-4 and below is greedy.
    top_k: 0 is off; ties at the k-th place are all kept.
    top_p: 0 is off; the smallest set of the likeliest tokens whose mass is at
      least p, ties with its last member included.

  Returns:
    float64 [V]; uniform when the logits are not sound.
  """
  x = np.asarray(logits, np.float64)
  if np.isnan(x).any() or (x == np.inf).any() or (x == -np.inf).all():
    return np.full(x.shape, 1.0 / x.size)
  if np.float32(temperature) <= np.float32(GREEDY):
    return np.eye(x.size)[np.argmax(x)]
  x = (x - x.max()) / np.float64(np.float32(temperature))
  if top_k > 0:
    kth = np.sort(x)[::-1][min(top_k, x.size) - 1]
    x = np.where(x >= kth, x, -np.inf)
  if top_p > 0:
    weights = softmax(x)
    order = np.argsort(-x, kind="stable")
    mass, last = 0.0, order[-1]
    for token in order:
      mass += weights[token]
      if mass >= top_p:
        last = token
        break
    x = np.where(x >= x[last], x, -np.inf)
  return softmax(x)


def adjust(logits: np.ndarray, tokens: Sequence[int], penalty: float = 1.0, ngram: int = 0,
           forbidden: Sequence[tuple[int, int, int]] = (), eos_ids: Sequence[int] = (),
           min_len: int = 0) -> np.ndarray:
  """Logits [V] of the position after `tokens` under the controls.

  Args:
    logits: [V].
    tokens: prompt and generated, without the start id.
    penalty: see `Controls`, and so are the others.
    ngram: size that may not repeat; 0 is off.
    forbidden: triples (id, first position, first position after).
    eos_ids: forbidden before `min_len` tokens.
    min_len: the token that reaches it may be an EOS.
  """
  out, tokens = np.array(logits, np.float64), list(tokens)
  for token in set(tokens):
    out[token] = out[token] * penalty if out[token] < 0 else out[token] / penalty
  if ngram:
    tail = tokens[len(tokens) - ngram + 1:] if ngram > 1 else []
    for at in range(len(tokens) - ngram + 1):
      if tokens[at:at + ngram - 1] == tail:
        out[tokens[at + ngram - 1]] = -np.inf
  for token, begin, end in forbidden:
    if begin <= len(tokens) < end:
      out[token] = -np.inf
  if len(tokens) + 1 < min_len:
    out[list(eos_ids)] = -np.inf
  return out


def softmax(x: np.ndarray) -> np.ndarray:
  """Softmax of [V] whose maximum is finite."""
  weights = np.exp(x - x.max())
  return weights / weights.sum()


def acceptance(p: np.ndarray, q: np.ndarray) -> float:
  """beta = sum_x min(p(x), q(x)), corollary 3.6 of the paper."""
  return float(np.minimum(p, q).sum())


def draw(noise: np.ndarray, weights: np.ndarray) -> int:
  """The id that two uniforms [2] pick: a block of 128 ids, then an id in it."""
  weights = np.asarray(weights, np.float64)
  starts = np.arange(0, weights.size, BLOCK)
  block = _pick(noise[0], np.add.reduceat(weights, starts))
  inside = weights[starts[block]:starts[block] + BLOCK]
  return int(starts[block]) + _pick(noise[1], inside)


def _pick(uniform: float, weights: np.ndarray) -> int:
  cumulated = np.cumsum(weights)
  return int(np.argmax(cumulated > np.float64(uniform) * cumulated[-1]))


def verify(accept: np.ndarray, residual: np.ndarray, bonus: np.ndarray,
           draft_tokens: np.ndarray, draft_probs: np.ndarray | None,
           target_probs: np.ndarray, num_drafted: int) -> tuple[int, int]:
  """Algorithm 1 for one row, given its noise.

  Args:
    accept: uniforms [G].
    residual: uniforms [2].
    bonus: uniforms [2].
    draft_tokens: [G].
    draft_probs: [G, V], or None when q is 1 at the drafted token.
    target_probs: [G + 1, V].
    num_drafted: how many drafted tokens count.

  Returns:
    How many drafted tokens stand, and the token after them.
  """
  p = np.asarray(target_probs, np.float64)
  for i in range(num_drafted):
    token = draft_tokens[i]
    if draft_probs is None:
      q = np.eye(p.shape[1])[token]
    else:
      q = np.asarray(draft_probs[i], np.float64)
    if np.float64(accept[i]) * q[token] < p[i, token]:
      continue
    rest = np.maximum(p[i] - q, 0.0)
    return i, draw(residual, rest if rest.sum() > 0 else p[i])
  return num_drafted, draw(bonus, p[num_drafted])


def verify_block(accept: np.ndarray, residual: np.ndarray, bonus: np.ndarray,
                 draft_tokens: np.ndarray, draft_probs: np.ndarray | None,
                 target_probs: np.ndarray, num_drafted: int) -> tuple[int, int]:
  """Block verification (Sun et al. 2024, algorithm 2) for one row; arguments as `verify`.

  From the longest prefix of the draft down: the first that its coin lets stand, does.
  """
  p, size = np.asarray(target_probs, np.float64), target_probs.shape[1]
  q = [np.eye(size)[draft_tokens[i]] if draft_probs is None else
       np.asarray(draft_probs[i], np.float64) for i in range(num_drafted)]
  weights = [1.0]
  for i in range(num_drafted):
    token = draft_tokens[i]
    weights.append(min(1.0, weights[-1] * p[i, token] / q[i][token]))
  left = lambda i: np.maximum(weights[i] * p[i] - q[i], 0.0)
  for i in range(num_drafted, 0, -1):
    if i == num_drafted:
      chance = weights[i]
    else:
      mass = left(i).sum()
      chance = mass / (mass + 1 - weights[i]) if mass > 0 else 0.0
    if accept[i - 1] < chance:
      break
  else:
    i = 0
  if i == num_drafted:
    return i, draw(bonus, p[i])
  rest = left(i)
  return i, draw(residual, rest if rest.sum() > 0 else p[i])
