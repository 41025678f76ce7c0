"""The target's outputs that a drafter learns from: read from a file, or made and kept."""

from collections.abc import Callable
from collections.abc import Sequence
import json
import pathlib
from typing import Any

import numpy as np

from specdec.checkpoints import drafts
from specdec.data.base import BaseVocabulary
from specdec.engine import generate
from specdec.engine.models import Model
from specdec.engine.pairs import Pair
from specdec.errors import SpecdecError
from specdec.training.batches import Example

# Inputs per part of a file that is being made; parts are written whole.
_PART = 512


def read(path: str | pathlib.Path, vocabulary: BaseVocabulary, prefix: str, max_source_len: int,
         width: int) -> list[Example]:
  """Reads outputs.

  Args:
    path: JSON lines, each `[source ids, output ids]`, or an object with `output_ids` and
      either `source_ids` or the text `input`, as `specdec generate --output_file` writes.
    vocabulary: of the target.
    prefix: put before each text.
    max_source_len: longer sources are cut, as `generate` cuts them.
    width: of the target's logits.

  Returns:
    Pairs of ids. Outputs that came of unsound logits, and empty ones, are left out.

  Raises:
    SpecdecError: the file cannot be read, or a line is none of these.
  """
  try:
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
  except (OSError, ValueError) as error:
    reason = getattr(error, "strerror", None) or error
    raise SpecdecError(f"cannot read --outputs_file {path}: {reason}") from error
  examples = []
  for i, line in enumerate(lines):
    if line.strip():
      source, output = _parse(line, vocabulary, prefix, f"line {i + 1} of {path}")
      if len(source) > max_source_len:
        source = [*source[:max_source_len - 1], vocabulary.eos_id]
      if max(max(source), max(output, default=0)) >= width:
        raise SpecdecError(f"line {i + 1} of {path} holds ids beyond the {width} logits of the "
                           "target; expected outputs of this target")
      if output:
        examples.append((source, output))
  return examples


def _parse(line: str, vocabulary: BaseVocabulary, prefix: str,
           where: str) -> tuple[list[int], list[int]]:
  """Source and output ids of a line; no output where the target's logits were unsound."""
  try:
    fields = json.loads(line)
  except (ValueError, RecursionError):
    fields = None
  if isinstance(fields, list) and len(fields) == 2:
    fields = {"source_ids": fields[0], "output_ids": fields[1]}
  if isinstance(fields, dict):
    source, output = fields.get("source_ids"), fields.get("output_ids")
    if source is None and isinstance(fields.get("input"), str):
      source = vocabulary.encode(prefix + fields["input"])
    if _ids(source) and source and _ids(output):
      return source, [] if fields.get("status") in ("nan", "forbidden") else output
  raise SpecdecError(f"{where} is not an output; expected [source ids, output ids], or an object "
                     "with input and output_ids as specdec generate --output_file writes")


def _ids(value: Any) -> bool:
  return isinstance(value, list) and all(type(i) is int and i >= 0 for i in value)


def make(target: Model, sources: Sequence[Sequence[int]], path: pathlib.Path, *, seed: int,
         report: Callable[[int], None] = lambda done: None, **settings: Any) -> list[Example]:
  """Decodes sources with the target and keeps what it says in a file.

  A file of a run that was stopped is gone on with; what it holds already is not made
  again. Either way it holds the same in the end.

  Args:
    target: M_p.
    sources: ids, no longer than the target takes.
    path: of the file.
    seed: of the draws, where the temperature is above 0.
    report: called with how many outputs there are.
    **settings: of `engine.generate`.

  Returns:
    Pairs of ids, see `read`.
  """
  pair = Pair(target.name, target, target)
  # What stands behind the last newline is a line that was not written to its end.
  lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
  # A part that was not written whole is made again, as its draws go by its number.
  whole = len(lines) if len(lines) == len(sources) else len(lines) // _PART * _PART
  if path.exists():
    drafts.write_whole(path, "".join(line + "\n" for line in lines[:whole]).encode())
  report(whole)
  for begin in range(whole, len(sources), _PART):
    part = list(sources[begin:begin + _PART])
    result = generate.generate_ids(
        pair, part, mode="plain", seed=(seed + begin // _PART) % 2**32,
        max_source_len=max(map(len, part)) + 1, **settings)
    with open(path, "a", encoding="utf-8") as f:
      f.writelines(json.dumps({"source_ids": np.asarray(source).tolist(),
                               "output_ids": record.output_ids, "status": record.status}) + "\n"
                   for source, record in zip(part, result.records, strict=True))
    report(begin + len(part))
  longest = max(map(len, sources))
  return read(path, target.vocabulary, "", longest, target.config.vocab_size)
