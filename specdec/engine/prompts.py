"""What an output begins with: prompts for the decoder, as ids."""

from collections.abc import Sequence
import functools
from typing import Any

import numpy as np

from specdec.data.base import BaseVocabulary
from specdec.errors import InputError
from specdec.errors import SpecdecError


def encode(prompt: Any, count: int, vocabulary: BaseVocabulary, width: int, eos_ids: Sequence[int],
           limit: int) -> list[list[int]]:
  """Ids of every input's prompt.

  Args:
    prompt: text or ids for all inputs, a list with one of these per input, or None;
      zeros at the end of ids are padding.
    count: inputs.
    vocabulary: for texts; the EOS it ends them with is left out.
    width: ids must be below it.
    eos_ids: ids that no prompt may hold.
    limit: most tokens of an output; a prompt must leave one of them.

  Raises:
    SpecdecError: there are not as many prompts as inputs, or one does not fit.
  """
  if prompt is None or isinstance(prompt, str) or (not hasattr(prompt, "shape") and not prompt):
    prompt = [prompt or ""] * count
  try:
    if isinstance(prompt, bytes | dict):
      raise TypeError
    prompt = np.asarray(prompt) if hasattr(prompt, "shape") else prompt
    prompts = list(prompt)
  except TypeError:
    raise SpecdecError(f"prompt is {type(prompt).__name__}; expected a text, or a text or ids "
                       "per input") from None
  if prompts and all(isinstance(p, int | np.integer) for p in prompts):
    prompts = [prompts] * count
  if len(prompts) != count:
    raise SpecdecError(f"prompt has {len(prompts)} entries for {count} inputs; expected one "
                       "text, or a text or ids per input")
  # Most often all are the same text.
  of_text = functools.cache(lambda text: vocabulary.encode(text)[:-1] if text else [])
  rows = [of_text(p) if isinstance(p, str) else _ids(p, i) for i, p in enumerate(prompts)]
  for i, row in enumerate(rows):
    _check(row, i, width, eos_ids, limit)
  return rows


def _ids(prompt: Any, index: int) -> list[int]:
  if prompt is None:
    return []
  try:
    row = np.asarray(prompt)
  except ValueError:  # Lists of several lengths.
    row = np.asarray("")
  if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
    raise InputError(index, f"has the prompt {prompt!r}; expected a text or a list of ids")
  return np.trim_zeros(row, "b").tolist()


def _check(ids: list[int], index: int, width: int, eos_ids: Sequence[int], limit: int) -> None:
  for i in ids:
    if not 0 <= i < width:
      raise InputError(index, f"has {i} in its prompt; expected ids from 0 to {width - 1}")
    if i in eos_ids:
      raise InputError(index, f"has the EOS id {i} in its prompt; a prompt is what the output "
                       "begins with, so leave the EOS out")
  if len(ids) >= limit:
    raise InputError(index, f"has a prompt of {len(ids)} tokens, which leaves none of "
                     f"max_decode_len {limit}; shorten it or raise max_decode_len")
