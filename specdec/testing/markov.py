"""A second-order Markov model behind the `Scorer` contract.

Its law can be enumerated, and it is built to notice mistakes: the logits depend on
the last TWO tokens, which it reads back from its cache and not from the call's
arguments, so a wrong length, a slot that was not written over or a token that was
never fed all change what comes out. A memoryless toy would see none of these.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from specdec.core import rows as rows_lib
from specdec.testing import oracle
from specdec.types import Source

Array = jax.Array
PyTree = Any


class MarkovCache(flax.struct.PyTreeNode):
  """What was fed to the model.

  Attributes:
    buffer: int32 [B, T], the fed tokens; behind `length` whatever was left there.
    length: int32 [B], tokens fed.
    kind: int32 [B], the first id of each row's source.
  """

  buffer: Array
  length: Array
  kind: Array


@dataclasses.dataclass(frozen=True)
class MarkovScorer:
  """Scores by the last two tokens and by the first id of the source.

  Weights are `{"logits": [V, V, V], "by_source": [N, V, V]}`: the logits after
  tokens (a, b) in a row whose source begins with n are `logits[a, b] +
  by_source[n, b]`. Before the first token stands a virtual 0.

  Attributes:
    vocab_size: width `V` of the logits.
  """

  vocab_size: int

  def prepare(self, params: PyTree) -> PyTree:
    return params

  def init(self, weights: PyTree, source: Source, capacity: int, copies: int = 1) -> MarkovCache:
    kind = jnp.repeat(source.ids[:, 0], copies)
    # Poisoned slots: what is read before it is written is no valid history.
    return MarkovCache(buffer=jnp.full((kind.shape[0], capacity), self.vocab_size - 1, jnp.int32),
                       length=jnp.zeros_like(kind), kind=kind)

  def score(self, weights: PyTree, tokens: Array,
            cache: MarkovCache) -> tuple[Array, Array, MarkovCache]:
    rows = jnp.arange(tokens.shape[0])[:, None]
    slots = cache.length[:, None] + jnp.arange(tokens.shape[1])
    buffer = cache.buffer.at[rows, slots].set(tokens, mode="drop")
    # A target with a wider vocabulary may feed ids that this model lacks.
    known = jnp.minimum(buffer, self.vocab_size - 1)
    newest = known[rows, slots]
    before = jnp.where(slots > 0, known[rows, jnp.maximum(slots - 1, 0)], 0)
    logits = weights["logits"][before, newest] + weights["by_source"][cache.kind[:, None], newest]
    hidden = jnp.stack([before, newest], -1).astype(jnp.float32)
    return logits, hidden, cache.replace(buffer=buffer, length=cache.length + tokens.shape[1])

  def rollback(self, cache: MarkovCache, length: Array) -> MarkovCache:
    return cache.replace(length=length.astype(jnp.int32))

  def insert(self, cache: MarkovCache, rows: Array, other: MarkovCache) -> MarkovCache:
    return rows_lib.replace(cache, rows, other)


def random_weights(seed: int, vocab_size: int, kinds: int = 1, scale: float = 1.5) -> PyTree:
  """Normal logits, as NumPy float32 arrays."""
  rng = np.random.default_rng(seed)
  normal = lambda *shape: rng.normal(0, scale, shape).astype(np.float32)
  return {"logits": normal(vocab_size, vocab_size, vocab_size),
          "by_source": normal(kinds, vocab_size, vocab_size) / 2}


def table(weights: PyTree, kind: int) -> np.ndarray:
  """Logits [V, V, V] of the rows whose source begins with `kind`."""
  # The sum in float32, as the model computes it.
  return np.asarray(weights["logits"]) + np.asarray(weights["by_source"])[kind]


def joint_law(logits: np.ndarray, temperature: float, top_k: int, top_p: float,
              eos: int, length: int, start: int = 0, prompt: tuple[int, ...] = (),
              adjust: Callable[[np.ndarray, tuple[int, ...]], np.ndarray] | None = None,
              ) -> dict[tuple[int, ...], float]:
  """The law of everything that plain decoding can return.

  Args:
    logits: [V, V, V], from `table`.
    temperature: as in `Sampling`, and so are `top_k` and `top_p`.
    top_k: 0 is off.
    top_p: 0 is off.
    eos: the id that ends a sequence; -1 for none.
    length: tokens at most.
    start: the first decoder input.
    prompt: what every sequence begins with.
    adjust: logits [V] and the tokens so far, the prompt included, to logits.

  Returns:
    The probability of each sequence that has one, with its prompt: those that end with
    `eos`, those of `length` tokens, and those after which every token is forbidden.
  """
  law: dict[tuple[int, ...], float] = {}
  adjust = adjust or (lambda x, tokens: x)

  def extend(sequence: tuple[int, ...], probability: float):
    a, b = (0, start, *sequence)[-2:]
    adjusted = adjust(logits[a, b], sequence)
    if (adjusted == -np.inf).all():
      law[sequence] = law.get(sequence, 0.0) + probability
      return
    after = oracle.distribution(adjusted, temperature, top_k, top_p)
    for token in np.flatnonzero(after):
      longer = (*sequence, int(token))
      chance = probability * after[token]
      if token == eos or len(longer) == length:
        law[longer] = law.get(longer, 0.0) + chance
      else:
        extend(longer, chance)

  extend(prompt, 1.0)
  return law
