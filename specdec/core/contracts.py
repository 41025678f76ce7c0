"""The two contracts of the core: what scores tokens, and what proposes them.

Implementations are frozen dataclasses of static settings; weights, caches and
states are pytrees that are handed in and out. The core never looks inside them.
"""

from typing import Any
from typing import Protocol

import flax.struct
import jax

from specdec.types import Rules
from specdec.types import Source

Array = jax.Array
PyTree = Any


class Scorer(Protocol):
  """A model that scores tokens given a source and the tokens before them.

  Nothing here assumes an encoder: `init` of an encoder-decoder encodes the
  source, that of a decoder-only model reads it in as a prompt. Lengths count the
  tokens fed through `score` since `init`.

  Attributes:
    vocab_size: width `V` of the logits.
  """

  vocab_size: int

  def prepare(self, params: PyTree) -> PyTree:
    """Turns parameters named as in T5X into decode weights: fused, cast. Once."""
    ...

  def init(self, weights: PyTree, source: Source, capacity: int, copies: int = 1) -> PyTree:
    """Builds the cache of a batch, with room for `capacity` tokens per row.

    Args:
      weights: from `prepare`.
      source: of `B / copies` inputs, each encoded once.
      capacity: static.
      copies: rows of the cache per input, next to each other; static.
    """
    ...

  def score(self, weights: PyTree, tokens: Array, cache: PyTree) -> tuple[Array, Array, PyTree]:
    """Feeds tokens [B, G] to every row at its own length.

    Slots that the call writes are overwritten whatever they held.

    Returns:
      Logits float32 [B, G, V], hidden states [B, G, D], and the cache, whose rows
      are G longer.
    """
    ...

  def rollback(self, cache: PyTree, length: Array) -> PyTree:
    """Forgets what was fed beyond `length` int32 [B]."""
    ...

  def insert(self, cache: PyTree, rows: Array, other: PyTree) -> PyTree:
    """Replaces rows of a cache by the rows of another, in place where the cache is donated.

    A row that came in goes on as it would in its own cache, and nothing of the one before
    is left. `core.rows.replace` does that for arrays with the rows first.

    Args:
      cache: of B rows.
      rows: int32 [N]; a row outside the batch is ignored.
      other: from `init`, of N rows; its source may be narrower, and its capacity smaller.
    """
    ...


class Context(flax.struct.PyTreeNode):
  """What a drafter may look at when it proposes.

  Attributes:
    ids: int32 [B, T], the start id and the tokens committed so far.
    length: int32 [B], how many of them are in use; at least 1.
    row_keys: typed keys [B].
    rules: settings that p and q share.
    wanted: int32 [B], how many drafted tokens a row has a use for; 0 for one that has
      ended. What is drafted beyond is cut.
    coupled: draws go by absolute position instead of by iteration; static. See
      `core.verify.CoupledVerifier`.
    lag: how many of the last committed tokens a drafter's model may not have been fed;
      static. After a draft that stood whole these are its last token and the target's own.
      In a cascade every level adds the token of its own model.
  """

  ids: Array
  length: Array
  row_keys: Array
  rules: Rules
  wanted: Array
  coupled: bool = flax.struct.field(pytree_node=False, default=False)
  lag: int = flax.struct.field(pytree_node=False, default=2)


class Proposal(flax.struct.PyTreeNode):
  """A draft.

  Attributes:
    tokens: int32 [B, G].
    probs: float32 [B, G, V], the distribution each token was drawn from, at the
      target's vocabulary width; None when the drafter is deterministic.
    num_drafted: int32 [B] in [0, G]. Whether position i is drafted may depend on
      earlier tokens and on q_i as a distribution, never on the token drawn at i.
  """

  tokens: Array
  probs: Array | None
  num_drafted: Array


class Drafter(Protocol):
  """An approximation model M_q, of any kind (section 3.6 of the paper).

  Attributes:
    abstains: it may have nothing to draft for a row, and `has_draft` tells cheaply; a loop
      that watches then runs the one-token program meanwhile, in which `commit` follows no
      `propose`. Its state never lags.
  """

  abstains: bool

  def init(self, params: PyTree, source: Source, capacity: int, copies: int = 1) -> PyTree:
    """Builds the drafter's state for a batch; arguments as `Scorer.init`."""
    ...

  def catch_up(self, params: PyTree, state: PyTree, ids: Array, length: Array,
               width: int) -> PyTree:
    """Brings a state level with committed tokens that it was not asked to draft after.

    That is how a prompt enters, and how a drafter that was left out for a while
    comes back.

    Args:
      params: of the drafter.
      state: lacks at most the last `width` committed tokens of any row.
      ids: int32 [B, T].
      length: int32 [B], committed tokens, the start id included.
      width: static.
    """
    ...

  def propose(self, params: PyTree, state: PyTree, context: Context,
              gamma: int) -> tuple[Proposal, PyTree]:
    """Drafts up to `gamma` tokens (static) after the committed ones.

    It may stop where no row wants more. `core.drafting` has what it takes to draw.
    """
    ...

  def has_draft(self, params: PyTree, state: PyTree, context: Context) -> Array:
    """Whether `propose` would draft a token of each row, bool [B].

    A function of the committed tokens alone. Asked for only where `abstains` is set.
    """
    ...

  def commit(self, params: PyTree, state: PyTree, context: Context, num_accepted: Array,
             hidden: Array) -> PyTree:
    """Learns how many drafted tokens stand.

    Only the first `num_accepted` tokens of the draft may leave a trace in the state. In a
    cascade the state may have got ahead by several drafts of its own by then; what
    stands is still counted from `context`.

    Args:
      params: of the drafter.
      state: from `propose`.
      context: the one that `propose` saw.
      num_accepted: int32 [B].
      hidden: [B, G + 1, D], the target's hidden states in the call that verified; entry i
        is the one that scored position i of the draft, so that the token after
        `num_accepted` drafted ones came of entry `num_accepted`.
    """
    ...

  def insert(self, state: PyTree, rows: Array, other: PyTree) -> PyTree:
    """Replaces rows of a state by those of another; see `Scorer.insert`."""
    ...
