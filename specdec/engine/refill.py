"""A batch whose rows are given to new inputs as they end (continuous batching).

The loop comes back when as many rows have ended as a prefill has, a prefill of that fixed size
encodes the next inputs, and an insert that writes the donated caches in place puts them where
the others were. Nothing is compiled for it but one prefill and one insert for each width of
source, and one loop for the widest. An input's random streams go by its place in the data, so
that its result is that of any other batching.
"""

import collections
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from specdec.core import loop
from specdec.core.state import Exits
from specdec.engine.job import Batch
from specdec.engine.job import Job
from specdec.engine.job import power_of_two
from specdec.engine.job import source_width
from specdec.engine.pace import Counts
from specdec.engine.pace import Fixed
from specdec.engine.run import Programs
from specdec.engine.run import fetch
from specdec.engine.run import make_pace
from specdec.engine.run import make_rules
from specdec.engine.run import told
from specdec.engine.settings import PER_ROW
from specdec.types import Status

_ALWAYS = 2**30
# Prefills that fill a batch. Few and large ones leave rows idle until enough of them have
# ended, many and small ones stop the loop all the time.
_PARTS = 4
_NOBODY = -1


def groups(batch: Batch) -> list[list[int]]:
  """The inputs of a batch as they come in, those of one prefill together."""
  size = _prefill_size(batch)
  ids = batch.example_ids
  return [ids[i:i + size] for i in range(0, len(ids), size)]


def _prefill_size(batch: Batch) -> int:
  """Inputs of a prefill."""
  return -(-batch.size // _PARTS)


def sample(job: Job, batch: Batch) -> Batch:
  """A few inputs of a batch that need all the programs it needs."""
  width = lambda group: source_width([job.encoded[i] for i in group])
  kinds: dict[Any, list[int]] = {}
  for group in groups(batch):
    prompt = power_of_two(1 + max(len(job.encoded[i].prompt) for i in group), 1)
    kinds.setdefault((width(group), prompt), group)
  # One that is not full would shift those behind it.
  chosen = sorted(kinds.values(), key=len, reverse=True)
  return Batch([i for group in chosen for i in group], batch.size)


class Refill(Programs):
  """A queue of inputs, decoded in a batch of fixed size.

  Args:
    job: what is decoded, and how; with a gamma that is a number.
    batch: its inputs, more of them than its size as a rule.

  Attributes:
    found: what `engine.run.fetch` gives of every input's rows, filled in as they end: row
      `i * num_decodes + k` is sample k of the batch's input i.
  """

  @told
  def __init__(self, job: Job, batch: Batch):
    self._copies = job.settings.num_decodes
    rows = batch.size * self._copies
    super().__init__(job, make_pace(job, rows))
    self._batch = batch
    self._queue = collections.deque(groups(batch))
    self._queued = 0
    # Row of `found` that a row of the batch is for, and its input.
    self._tenant = np.full(rows, _NOBODY)
    self._example = np.full(rows, batch.example_ids[0])
    self._left = np.full(len(batch.example_ids), self._copies)
    self._varied = any(np.ndim(getattr(job.settings, name)) for name in PER_ROW)
    self._rules = make_rules(job, self._example, rows)
    width = source_width([job.encoded[i] for i in batch.example_ids])
    with self._scope():
      self._state = loop.empty(self._method(self._gamma), self._weights, rows, width,
                               self._capacity)
    self.found: dict[str, Any] = {}

  def ended(self) -> Iterator[int]:
    """Decodes, and yields the place in the batch of every input whose samples have ended."""
    while True:
      self._fill()
      if (self._tenant == _NOBODY).all():
        return
      self._go()
      yield from self._collect()

  @told
  def _fill(self) -> None:
    """Prefills and inserts as many inputs as there are rows for."""
    copies, size = self._copies, _prefill_size(self._batch)
    while self._queue:
      used = len(self._queue[0]) * copies
      free = np.flatnonzero(self._tenant == _NOBODY)[:used]
      if len(free) < used:
        break
      group = self._queue.popleft()
      rows = np.pad(free, (0, size * copies - used), constant_values=len(self._tenant))
      other, _ = self._start(group, size)
      with self._scope():
        self._state = loop.insert(self._method(self._gamma), self._state,
                                  rows.astype(np.int32), other)
      self._tenant[free] = self._queued * copies + np.arange(used)
      self._example[free] = np.repeat(group, copies)
      self._queued += len(group)
      if self._varied:
        self._rules = make_rules(self.job, self._example, len(self._tenant))

  @told
  def _go(self) -> None:
    """Runs until there are rows for the next inputs, or to the end when there are none."""
    enough = _ALWAYS
    if self._queue:
      enough = len(self._queue[0]) * self._copies - (self._tenant == _NOBODY).sum()
    segment = self._pace.next()
    rules = self._rules.replace(
        speculation=self._rules.speculation.replace(gamma=segment.gamma))
    with self._scope():
      self._state = loop.run(self._method(segment.size), self._weights, self._state, rules,
                             Exits(np.int32(segment.iterations), np.int32(enough)))

  def _collect(self) -> Iterator[int]:
    """Keeps what rows have come to that have ended; yields the inputs that are complete."""
    now = self._fetched()
    running = now["status"] == Status.RUNNING
    if not isinstance(self._pace, Fixed):
      self._pace.observe(Counts(running, now["tested"], now["accepted"],
                                int(self._state.iterations), bool(self._state.drafting)))
    rows = np.flatnonzero((self._tenant != _NOBODY) & ~running)
    places = self._tenant[rows]
    if not self.found:
      total = len(self._batch.example_ids) * self._copies
      self.found = jax.tree.map(lambda x: np.zeros((total, *x.shape[1:]), x.dtype), now)
    jax.tree.map(lambda kept, x: kept.__setitem__(places, x[rows]), self.found, now)
    self._tenant[rows] = _NOBODY
    for place in (places // self._copies).tolist():
      self._left[place] -= 1
      if not self._left[place]:
        yield place

  @told
  def _fetched(self) -> dict[str, Any]:
    return fetch(self._state)
