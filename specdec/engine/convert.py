"""From one layout to another, array by array, and verified before it gets its name."""

from collections.abc import Callable
import dataclasses
import functools
import pathlib
import time

import numpy as np

from specdec.checkpoints import bundle
from specdec.checkpoints import detect
from specdec.checkpoints import drafts
from specdec.checkpoints import hf_write
from specdec.checkpoints import t5x_write
from specdec.checkpoints import vocabularies
from specdec.checkpoints.checkpoint import ArrayRef
from specdec.checkpoints.checkpoint import Checkpoint
from specdec.checkpoints.checkpoint import VocabularyFile
from specdec.checkpoints.checkpoint import nested
from specdec.checkpoints.streaming import Reading
from specdec.checkpoints.streaming import checksum
from specdec.checkpoints.streaming import in_file_order
from specdec.engine import forward
from specdec.engine.models import config_of
from specdec.engine.models import finite
from specdec.engine.models import vocabulary_of
from specdec.errors import SpecdecError
from specdec.models.t5.config import T5Config

FORMATS = ("bundle", "t5x", "hf")
DTYPES = ("keep", "float32", "bfloat16")
NO_VOCABULARY = "none"

# Called with what is being done, the array that is done, and its bytes.
Progress = Callable[[str, str, int], None]

_WRITERS = {"t5x": t5x_write.write, "hf": hf_write.write}


@dataclasses.dataclass(frozen=True)
class Report:
  """What a conversion did.

  Attributes:
    source: layout it came from.
    target: layout it went to.
    arrays: number of arrays written.
    parameters: numbers in them.
    nbytes: their bytes.
    dtype: of the matrices written.
    pieces: of the vocabulary; 0 when there is none.
    seconds: it took, verification included.
  """

  source: str
  target: str
  arrays: int
  parameters: int
  nbytes: int
  dtype: str
  pieces: int
  seconds: float


def convert(source: str | pathlib.Path, target: str | pathlib.Path, *, layout: str = "auto",
            to: str = "bundle", dtype: str = "keep", vocabulary: str | None = None,
            progress: Progress | None = None) -> Report:
  """Converts a checkpoint, and verifies what was written.

  Every array is read once, written, and forgotten; then all of them are read back through
  the reader of the new layout, compared by checksum, and put through one forward pass a
  layer at a time. Only then does the folder get its name. The memory it takes is that of
  a few arrays, whatever the size of the model; only T5X's stacked layout takes a model's.

  Args:
    source: what `load_model` reads.
    target: the new folder.
    layout: of the source, one of `detect.LAYOUTS`.
    to: one of `FORMATS`.
    dtype: of the matrices, one of `DTYPES`; norm scales and biases are float32 in a
      bundle, and in the other layouts follow the matrices.
    vocabulary: in place of the source's; see `load_model`. "none" makes a model that
      takes ids and no text.
    progress: called as arrays are done.

  Raises:
    SpecdecError: the source cannot be read, the target exists or cannot be written, or
      the target's layout has no such model. Nothing is left behind.
  """
  begin = time.perf_counter()
  for name, value, known in (("to", to, FORMATS), ("dtype", dtype, DTYPES)):
    if value not in known:
      raise SpecdecError(f"{name} is {value!r}; expected one of {', '.join(known)}")
  with drafts.whole_folder(target) as draft:
    found = finite(detect.open_checkpoint(source, layout))
    config = config_of(found)
    file, fingerprint, pieces = _vocabulary(found, config, vocabulary)
    if to == "bundle":
      fields = {**config.to_dict(), "dtype": "float32"}
      about = bundle.Bundle(fields, nested(found.arrays), file, fingerprint,
                            found.source or found.layout)
      sums = bundle.write(draft, about, None if dtype == "keep" else dtype,
                          _stage(progress, "writing"))
    else:
      reading = Reading(_stage(progress, "writing"))
      arrays = found.arrays if dtype == "keep" else {
          name: array.cast(dtype) for name, array in found.arrays.items()}
      _WRITERS[to](draft, config.to_dict(), arrays, file, reading)
      sums = reading.checksums
    written = detect.open_checkpoint(draft, to, verify=False)
    verify(written, sums, _stage(progress, "verifying"))
    sizes = [array.nbytes for array in written.arrays.values()]
    report = Report(
        found.layout, written.layout, len(sizes),
        sum(array.size for array in written.arrays.values()), sum(sizes), written.dtypes[0],
        pieces, time.perf_counter() - begin)
  return report


def _stage(progress: Progress | None, stage: str) -> Callable[[str, int], None] | None:
  return functools.partial(progress, stage) if progress else None


def _vocabulary(found: Checkpoint, config: T5Config, named: str | None
                ) -> tuple[VocabularyFile | None, str, int]:
  """The file to write, its fingerprint and its number of pieces."""
  if named == NO_VOCABULARY:
    return None, "", 0
  file = found.vocabulary if named is None else vocabularies.given(named, config.vocab_size)
  if file is None:
    raise SpecdecError(
        f"{found.path} carries no vocabulary; name it: --vocab=spiece.model (or tokenizer.json, "
        "a folder with one, the word bytes, or none for a model that takes ids and no text)")
  vocabulary = vocabulary_of(found, named)
  if len(vocabulary) > config.vocab_size:
    raise SpecdecError(f"{named or found.path} has a vocabulary of {len(vocabulary)} pieces for "
                       f"{config.vocab_size} logits; expected at most as many")
  return file, vocabulary.fingerprint, len(vocabulary)


def verify(written: Checkpoint, sums: dict[str, int],
           progress: Callable[[str, int], None] | None = None) -> None:
  """Reads a checkpoint back, compares checksums, and runs one forward pass.

  Args:
    written: what to verify.
    sums: checksums by name, as the writers return them; arrays without one are only
      read.
    progress: called with each array that is done and its bytes.

  Raises:
    SpecdecError: an array is not what was written, or the model does not compute.
  """
  config = config_of(written)
  stacked = len({array.source for array in written.arrays.values()}) < len(written.arrays)
  held: dict[str, np.ndarray] = {}
  seen: set[str] = set()

  def read(name: str) -> np.ndarray:
    array = written.arrays[name]
    values = held.pop(name) if name in held else _checked(name, array, sums)
    if progress and name not in seen:
      progress(name, array.nbytes)
    seen.add(name)
    return values

  if stacked:
    held.update((name, _checked(name, array, sums))
                for name, array in in_file_order(written.arrays))
  ids = np.asarray([[config.vocab_size // 2, config.vocab_size - 1, 3, 1]]) % config.vocab_size
  forward.logits(config, read, ids, np.asarray([[0, 1 % config.vocab_size]]))


def _checked(name: str, array: ArrayRef, sums: dict[str, int]) -> np.ndarray:
  values = array.read()
  if name in sums and checksum(values) != sums[name]:
    raise SpecdecError(f"{array.where} does not read back as it was written; expected a disk "
                       "that keeps what it is given: nothing was kept")
  return values
