"""Outputs out of a given set: a trie as a `logits_fn`.

Also the worked example of such a hook: a frozen dataclass whose arrays are arguments
of the compiled program, so that another set of the same size compiles nothing; a pure
function of the tokens so far, so that drafts which are rejected leave no trace.
"""

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from specdec.data.base import BaseVocabulary
from specdec.errors import InputError
from specdec.errors import SpecdecError

Array = jax.Array


class AllowedSequences(flax.struct.PyTreeNode):
  """Allows nothing but prefixes of the given sequences.

  Nodes of the trie are numbered in the order of a breadth-first walk, so that the
  children of a node stand next to each other, sorted by token. Node 0 is the root.

  Attributes:
    token: int32 [N], the token that leads to each node; the root's is -1.
    begin: int32 [N], number of each node's first child.
    count: int32 [N], how many children it has.
    widest: at least the largest `count`; static.
  """

  token: Array
  begin: Array
  count: Array
  widest: int = flax.struct.field(pytree_node=False)

  @classmethod
  def from_ids(cls, sequences: Iterable[Sequence[int]]) -> "AllowedSequences":
    """The trie of sequences of ids, each with the EOS that ends it.

    Args:
      sequences: of ids.

    Returns:
      A hook for `logits_fn`.

    Raises:
      SpecdecError: there is none, or one is empty or holds something else than ids.
    """
    level = sorted({_checked(i, s) for i, s in enumerate(sequences)})
    if not level:
      raise SpecdecError("there are no allowed sequences; expected one or more")
    token, begin, count = [-1], [0], [0]
    # (node, first and last sequence under it), of one depth; sequences are sorted, so
    # those that share a prefix stand together.
    open_nodes = [(0, 0, len(level))]
    depth = 0
    while open_nodes:
      below = []
      for node, low, high in open_nodes:
        begin[node] = len(token)
        while low < high:
          if len(level[low]) <= depth:
            low += 1
            continue
          first, head = low, level[low][depth]
          while low < high and level[low][depth] == head:
            low += 1
          below.append((len(token), first, low))
          token.append(head)
          begin.append(0)
          count.append(0)
          count[node] += 1
      open_nodes, depth = below, depth + 1
    # Sizes in powers of two, so that few programs are compiled.
    size, widest = _power_of_two(len(token)), _power_of_two(max(count))
    padded = lambda values, fill: np.asarray(values + [fill] * (size - len(values)), np.int32)
    return cls(padded(token, -1), padded(begin, 0), padded(count, 0), widest)

  @classmethod
  def from_texts(cls, vocabulary: BaseVocabulary, texts: Iterable[str]) -> "AllowedSequences":
    """The trie of texts as the vocabulary writes them, each ended by its EOS.

    Args:
      vocabulary: of the pair.
      texts: all that may be said.

    Returns:
      A hook for `logits_fn`.

    Raises:
      SpecdecError: there is none, or the vocabulary cannot write one of them.

    >>> import specdec
    >>> pair = specdec.load_pair("demo")
    >>> hook = specdec.AllowedSequences.from_texts(pair.vocabulary, ["Ein Hund.", "Ein Kind."])
    >>> specdec.generate(pair, "A dog.", logits_fn=hook).texts
    ['Ein Hund.']
    """
    if isinstance(texts, str):
      raise SpecdecError("the allowed texts are one text; expected a list of texts")
    return cls.from_ids([_encoded(vocabulary, i, text) for i, text in enumerate(texts)])

  def __call__(self, logits: Array, ids: Array, lengths: Array) -> Array:
    """Forbids every token that does not lead on; see `core.controls.adjust`."""
    token, begin, count = (jnp.asarray(x) for x in (self.token, self.begin, self.count))
    columns = jnp.arange(self.widest)

    def children(node: Array) -> tuple[Array, Array]:
      """Numbers and tokens [N, widest] of the children; -2 where there is none."""
      number = begin[node][:, None] + columns
      real = columns < count[node][:, None]
      return number, jnp.where(real, token[jnp.minimum(number, token.shape[0] - 1)], -2)

    def walk(slot: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
      node, inside = state
      number, tokens = children(node)
      hit = tokens == ids[:, slot][:, None]
      child = jnp.take_along_axis(number, jnp.argmax(hit, -1)[:, None], 1)[:, 0]
      goes_on = slot < lengths
      return (jnp.where(goes_on & hit.any(-1), child, node),
              inside & (hit.any(-1) | ~goes_on))

    rows = jnp.zeros(lengths.shape, jnp.int32)
    # Slot 0 holds the start id.
    node, inside = lax.fori_loop(1, lengths.max(), walk, (rows, rows == 0))
    _, tokens = children(node)
    chosen = jnp.where((tokens >= 0) & inside[:, None], tokens, logits.shape[-1])
    allowed = jnp.zeros(logits.shape, bool).at[
        jnp.arange(logits.shape[0])[:, None], chosen].set(True, mode="drop")
    return jnp.where(allowed, logits, -jnp.inf)


def _checked(index: int, sequence: Any) -> tuple[int, ...]:
  try:
    row = np.asarray(sequence)
  except ValueError:
    row = np.asarray("")
  if row.ndim != 1 or not row.size or row.dtype.kind not in "iu" or row.min() < 0 \
      or row.max() >= 2**31:
    raise InputError(index, f"of the allowed sequences is {sequence!r}; expected ids that end "
                     "in the EOS id")
  return tuple(row.tolist())


def _encoded(vocabulary: BaseVocabulary, index: int, text: Any) -> list[int]:
  if not isinstance(text, str) or not text.strip():
    raise InputError(index, f"of the allowed texts is {text!r}; expected a text")
  ids = vocabulary.encode(text)
  # Letters without a piece would all be the same.
  if vocabulary.decode(ids).split() != text.split():
    raise InputError(index, f"of the allowed texts is {text!r}, which the vocabulary writes as "
                     f"{vocabulary.decode(ids)!r}; expected a text that it can write")
  return ids


def _power_of_two(value: int) -> int:
  return 1 << (value - 1).bit_length()
