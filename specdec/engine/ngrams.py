"""N-gram tables: counted, written and read.

Best counted from outputs of the target itself: what it says is what a draft has to guess.
"""

from collections.abc import Iterable
import dataclasses
import hashlib
import itertools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from specdec.checkpoints import drafter_folder
from specdec.checkpoints import vocabularies
from specdec.data.base import BaseVocabulary
from specdec.data.base import is_sentinel
from specdec.data.make import make as make_vocabulary
from specdec.drafters.ngram import MAX_ORDER
from specdec.drafters.ngram import NgramDrafter
from specdec.drafters.ngram import Tables
from specdec.drafters.ngram import longest
from specdec.drafters.ngram import successors as successors_of
from specdec.engine.settings import whole
from specdec.errors import InputError
from specdec.errors import SpecdecError

KIND = "ngram"
SUCCESSORS = 64
# What stands before a sequence: the decoder's start id.
_START = 0
# A draw costs the square of it.
_MAX_SUCCESSORS = 1024
# The n-grams of `MAX_ORDER` ids are told apart by one int64.
_MAX_VOCAB = 2**20


def count(sequences: Iterable[list[int]], order: int, vocab_size: int,
          successors: int = SUCCESSORS, min_count: int = 1) -> Tables:
  """Counts what follows what.

  Args:
    sequences: ids as a decoder writes them: without the start id, with the EOS.
    order: 1 for unigrams to 3 for trigrams; the shorter ones come along, to back off to.
    vocab_size: ids are below it.
    successors: most successors kept per history, the likeliest.
    min_count: n-grams of two or more tokens that are rarer are left out.

  Returns:
    Tables in NumPy arrays. Log-probabilities are those among all successors, kept or not;
    a row begins with the likeliest.

  Raises:
    SpecdecError: a number is out of range, there are no tokens, or an id is out of the
      vocabulary (as `InputError`, which knows the sequence).
  """
  check(order, successors, min_count)
  whole("vocab_size", vocab_size, 1, _MAX_VOCAB)
  flat, first = _flat(sequences, vocab_size)
  rows = [_rows(flat, first, n, vocab_size, successors, min_count if n else 1)
          for n in range(order)]
  sizes = np.concatenate([size for _, size, _, _ in rows])
  if sizes.sum() >= 2**31:
    raise SpecdecError(f"{sizes.sum()} n-grams are more than a table can hold; lower order or "
                       "successors, or raise min_count")
  return Tables(
      histories=tuple(histories for histories, _, _, _ in rows[1:]),
      begin=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
      tokens=np.concatenate([tokens for _, _, tokens, _ in rows]),
      log_probs=np.concatenate([log_probs for _, _, _, log_probs in rows]),
      width=int(sizes.max()))


def check(order: int, successors: int, min_count: int) -> None:
  """Checks what `count` is asked for.

  Raises:
    SpecdecError: a number is out of range.
  """
  whole("order", order, 1, MAX_ORDER, "unigrams, bigrams or trigrams")
  whole("successors", successors, 1, _MAX_SUCCESSORS)
  whole("min_count", min_count, 1, 2**31 - 1)


def _flat(sequences: Iterable[list[int]], vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
  """Sequences in one row, each behind a start id: int64 [M], and where each begins."""
  arrays = []
  for i, ids in enumerate(sequences):
    try:
      array = np.asarray(ids)
    except ValueError:
      array = np.zeros((), object)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
      raise InputError(i, "is not a list of ids; expected integers")
    if array.size and not 0 <= array.min() <= array.max() < vocab_size:
      beyond = array[(array < 0) | (array >= vocab_size)][0]
      raise InputError(i, f"holds the id {beyond}; expected ids from 0 to {vocab_size - 1}, "
                       "those of the vocabulary")
    if array.size:
      arrays.append(array.astype(np.int64))
  if not arrays:
    raise SpecdecError("there are no tokens to count; expected one sequence of ids or more")
  start = np.full(1, _START, np.int64)
  flat = np.concatenate(list(itertools.chain.from_iterable((start, a) for a in arrays)))
  lengths = np.array([a.size + 1 for a in arrays])
  return flat, np.cumsum(lengths) - lengths


def _rows(flat: np.ndarray, first: np.ndarray, n: int, vocab_size: int, successors: int,
          min_count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Rows of the histories of n tokens.

  Returns:
    Histories int32 [R, n], sorted; how many successors each has [R]; successors int32 [N];
    their log-probabilities float32 [N].
  """
  # Nobody predicts a start id, and before it is another sequence: tokens near it have no
  # history of this length. None of them is beyond the sequence, which has two ids or more.
  inside = np.ones(flat.size, bool)
  for near in range(max(n, 1)):
    inside[first + near] = False
  at = np.flatnonzero(inside)
  keys = np.zeros(at.size, np.int64)
  for back in range(n, -1, -1):
    keys = keys * vocab_size + flat[at - back]
  keys, counts = np.unique(keys, return_counts=True)
  history, token = np.divmod(keys, vocab_size)
  # How often a history was seen, before anything is left out.
  _, group, size = np.unique(history, return_inverse=True, return_counts=True)
  totals = np.bincount(group, weights=counts, minlength=size.size)
  log_probs = np.log(counts / totals[group]).astype(np.float32)
  kept = counts >= min_count
  history, token, counts, log_probs = (x[kept] for x in (history, token, counts, log_probs))
  # The likeliest first, those of lower id before others.
  ordered = np.lexsort((token, -counts, history))
  history, token, log_probs = (x[ordered] for x in (history, token, log_probs))
  found, begin, size = np.unique(history, return_index=True, return_counts=True)
  rank = np.arange(history.size) - np.repeat(begin, size)
  kept = rank < successors
  columns = [found // vocab_size**back % vocab_size for back in reversed(range(n))]
  histories = np.stack(columns, 1) if n else np.zeros((found.size, 0))
  return (histories.astype(np.int32), np.minimum(size, successors), token[kept].astype(np.int32),
          log_probs[kept])


def save(path: str | pathlib.Path, tables: Tables, vocabulary: BaseVocabulary,
         source: str = "") -> None:
  """Writes tables as a drafter's folder.

  Args:
    path: the folder; must not exist yet.
    tables: from `count`.
    vocabulary: of the ids.
    source: what was counted, one line.

  Raises:
    SpecdecError: the folder exists or cannot be written.
  """
  arrays = {name: np.asarray(getattr(tables, name)) for name in ("begin", "tokens", "log_probs")}
  arrays |= {f"histories_{h.shape[1]}": np.asarray(h) for h in tables.histories}
  settings = {"order": tables.order, "width": tables.width, "pieces": _pieces(vocabulary)}
  drafter_folder.save(path, kind=KIND, arrays=arrays, settings=settings,
                      vocabulary=vocabulary.fingerprint, source=source, compress=True)


def load(path: str | pathlib.Path, vocabulary: BaseVocabulary, vocab_size: int | None = None,
         verify: bool = True) -> tuple[NgramDrafter, Tables]:
  """Reads tables for a target.

  Args:
    path: a folder that `save` wrote.
    vocabulary: the target's.
    vocab_size: width of the target's logits; by default the pieces of its vocabulary.
    verify: see `drafter_folder.load`.

  Returns:
    The drafter and its parameters, on the device.

  Raises:
    SpecdecError: the folder is damaged, holds another kind of drafter, or was counted under
      another vocabulary.
  """
  folder = drafter_folder.load(path, verify)
  check_vocabulary(folder, vocabulary)
  tables = tables_of(folder)
  vocab_size = len(vocabulary) if vocab_size is None else vocab_size
  highest = int(tables.tokens.max())
  if highest >= vocab_size:
    raise SpecdecError(f"{path} drafts the id {highest}; expected ids below the {vocab_size} "
                       "logits of the target: count the tables with its own vocabulary")
  return NgramDrafter(vocab_size, tables.order), jax.tree.map(jnp.asarray, tables)


def check_vocabulary(folder: drafter_folder.DrafterFolder, vocabulary: BaseVocabulary) -> None:
  """Refuses tables of another vocabulary. Sentinels do not count: no decoder needs them.

  Raises:
    SpecdecError: names both.
  """
  if folder.vocabulary == vocabulary.fingerprint:
    return
  if folder.settings.get("pieces") == _pieces(vocabulary):
    return
  raise SpecdecError(
      f"{folder.path} was counted under another vocabulary (fingerprint "
      f"{folder.vocabulary[:12]}) than the target's ({len(vocabulary)} pieces, fingerprint "
      f"{vocabulary.fingerprint[:12]}); build it again with specdec ngram build")


def tables_of(folder: drafter_folder.DrafterFolder) -> Tables:
  """The tables of a folder, in NumPy arrays, whatever vocabulary they belong to.

  Raises:
    SpecdecError: it is another kind of drafter, or its tables are unsound.
  """
  if folder.kind != KIND:
    raise SpecdecError(f"{folder.path} is a drafter of kind {folder.kind!r}; expected n-gram "
                       "tables, as specdec ngram build writes them")
  order = folder.whole("order", 1, MAX_ORDER)
  histories = tuple(folder.array(f"histories_{n}", "i", (None, n)) for n in range(1, order))
  rows = 1 + sum(h.shape[0] for h in histories)
  tables = Tables(
      histories, folder.array("begin", "i", (rows + 1,)), folder.array("tokens", "i", (None,)),
      folder.array("log_probs", "f", (None,)), folder.whole("width"))
  problem = _problem(tables)
  if problem:
    raise SpecdecError(f"the tables in {folder.path} are unsound: {problem}; build them again")
  return tables


def _problem(tables: Tables) -> str:
  """What is wrong with tables, in words; "" for nothing."""
  sizes = np.diff(tables.begin)
  if tables.begin[0] != 0 or tables.begin[-1] != tables.tokens.size or (sizes < 1).any():
    return "a row has no successors, or rows overlap"
  if tables.tokens.shape != tables.log_probs.shape or sizes.max() != tables.width:
    return "successors, their probabilities and the width of the rows do not agree"
  if tables.tokens.min() < 0 or any((h < 0).any() for h in tables.histories):
    return "there are negative ids"
  if not np.isfinite(tables.log_probs).all() or (tables.log_probs > 0).any():
    return "log-probabilities are positive or not finite"
  for histories in tables.histories:
    before, after = histories[:-1], histories[1:]
    ascends = np.zeros(before.shape[0], bool)
    for column in reversed(range(histories.shape[1])):
      a, b = before[:, column], after[:, column]
      ascends = (a < b) | ((a == b) & ascends)
    if not ascends.all():
      return "histories are not sorted, or one is there twice"
  return ""


@dataclasses.dataclass(frozen=True)
class After:
  """What tables expect.

  Attributes:
    history: the tokens that were looked at, the longest history that is known.
    tokens: its successors, the likeliest first.
    probs: how often each of them followed, of all times.
  """

  history: list[int]
  tokens: list[int]
  probs: list[float]


def after(tables: Tables, ids: list[int]) -> After:
  """What tables expect after ids, behind a start id."""
  newest = [_START, *ids][max(len(ids) + 2 - tables.order, 0):]
  recent = np.full((1, tables.order - 1), -1, np.int32)
  recent[0, tables.order - 1 - len(newest):] = newest
  tables = jax.tree.map(jnp.asarray, tables)
  row = int(longest(tables, jnp.asarray(recent))[0])
  length = 0
  for histories in tables.histories:
    length += row > 0
    row -= histories.shape[0]
  tokens, log_probs = (np.asarray(x)[0] for x in successors_of(tables, jnp.asarray(recent)))
  there = log_probs > -np.inf
  return After(newest[len(newest) - length:], tokens[there].tolist(),
               np.exp(log_probs[there]).tolist())


def describe(tables: Tables) -> str:
  """Order and size, in words."""
  name = ("unigrams", "bigrams", "trigrams")[tables.order - 1]
  histories = sum(h.shape[0] for h in tables.histories)
  return (f"{name}, {histories} histories, {tables.tokens.size} successors, at most "
          f"{tables.width} each")


def named_vocabulary(value: str) -> BaseVocabulary:
  """The vocabulary that a user names: a file, a folder with one, or "bytes".

  Raises:
    SpecdecError: there is none, or it is no vocabulary.
  """
  # How wide the logits are nobody knows here; sentinels do not matter to tables.
  file = vocabularies.given(value, 0)
  try:
    return make_vocabulary(file.kind, file.content, file.extra_ids)
  except SpecdecError as error:
    raise SpecdecError(f"{value}: {error}") from error


def _pieces(vocabulary: BaseVocabulary) -> str:
  """Fingerprint without the sentinels behind the pieces: they come and go with the same ids."""
  size = len(vocabulary)
  while size and is_sentinel(vocabulary.piece(size - 1)):
    size -= 1
  digest = hashlib.sha256()
  for i in range(size):
    digest.update(vocabulary.piece(i).encode() + b"\n")
  return digest.hexdigest()
