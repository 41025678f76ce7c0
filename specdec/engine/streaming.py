"""Text while it is being decoded."""

from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
from typing import Any

import numpy as np

from specdec.engine import calibrate
from specdec.engine import generate
from specdec.engine.costs import Costs
from specdec.engine.job import Batch
from specdec.engine.job import Job
from specdec.engine.job import from_texts
from specdec.engine.job import plan
from specdec.engine.pairs import Pair
from specdec.engine.result import Record
from specdec.engine.run import Run
from specdec.errors import SpecdecError
from specdec.types import Status

# What a decoder puts where the bytes of a character are not complete yet.
_INCOMPLETE = "\ufffd"


@dataclasses.dataclass(frozen=True)
class Piece:
  """What was added to an output.

  Attributes:
    index: place of the input in the data, from 0.
    sample: which of its samples.
    text: the added text; all pieces of an output together are `record.output`.
    record: of the finished output, in its last piece; else None.
  """

  index: int
  sample: int
  text: str
  record: Record | None = None


def stream(pair: Pair, texts: str | Iterable[str], *, task: str | None = None,
           prompt: Any = None, logits_fn: Any = None, trace: bool = False,
           costs: Costs | None = None, **settings: Any) -> Iterator[Piece]:
  """Decodes as `generate` does and yields text after every iteration.

  Inputs are taken `batch_size` at a time in their order; the pieces of inputs that
  are decoded together come in turns. Ids, scores and counts are those of `generate`.

  Args:
    pair: from `load_pair`.
    texts: one text or several.
    task: see `generate`, and so are all the others.
    prompt: what every output begins with; it is part of the first piece.
    logits_fn: a hook.
    trace: keep each iteration.
    costs: for `gamma="auto"`.
    **settings: fields of `Settings`.

  Returns:
    An iterator of pieces; the last of each output carries its record.

  Raises:
    SpecdecError: at once, before anything is decoded.

  >>> import specdec
  >>> pair = specdec.load_pair("demo")
  >>> pieces = list(specdec.stream(pair, "A dog runs across the grass."))
  >>> "".join(piece.text for piece in pieces) == pieces[-1].record.output
  True
  """
  job = calibrate.ready(from_texts(pair, texts, task, settings, prompt, logits_fn=logits_fn,
                                   trace=trace, costs=costs))
  if job.settings.refills:
    raise SpecdecError("batching is 'refill', and streaming takes batch_size inputs at a time; "
                       "expected sorted or arrival, which are the same to it")
  batches = [batch for window in plan(job, in_order=True) for batch in window]
  return (piece for batch in batches for piece in _batch(job, batch))


def _batch(job: Job, batch: Batch) -> Iterator[Piece]:
  run, copies = Run(job, batch), job.settings.num_decodes
  said = [""] * run.rows_used
  open_rows = set(range(run.rows_used))
  while open_rows:
    run.advance(1)
    now = run.tokens()
    ended = {row for row in open_rows if now["status"][row] != Status.RUNNING}
    for row in sorted(open_rows - ended):
      text = _settled(job, now["ids"][row, 1:now["length"][row]], said[row])
      if text:
        said[row] += text
        yield Piece(batch.example_ids[row // copies], row % copies, text)
    if ended:
      records = generate.make_records(job, batch, run.fetch())
      for row in sorted(ended):
        index, sample = batch.example_ids[row // copies], row % copies
        record = next(r for r in records[index] if r.sample == sample)
        yield Piece(index, sample, record.output[len(said[row]):], record)
    open_rows -= ended


def _settled(job: Job, ids: np.ndarray, said: str) -> str:
  """What can be said beyond `said` and will not be taken back by later tokens."""
  text = generate.text_of(job, ids.tolist(), Status.RUNNING)
  # A character whose bytes are pieces of their own is not there before the last of them.
  text = text.rstrip(_INCOMPLETE)
  return text[len(said):] if text.startswith(said) else ""
