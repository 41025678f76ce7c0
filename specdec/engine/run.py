"""A batch on the device: started, run on, fetched."""

from typing import Any

import jax
import numpy as np

from specdec.core import keys
from specdec.core import loop
from specdec.core import rules as rules_lib
from specdec.core import state as state_lib
from specdec.core.state import Exits
from specdec.engine import precision
from specdec.engine.job import Batch
from specdec.engine.job import Job
from specdec.engine.job import power_of_two
from specdec.engine.models import make_source
from specdec.types import Rules
from specdec.types import Source

_ALWAYS = 2**30
# Ids that end rows and forbidden ids are padded to multiples of this, so that their
# number seldom asks for another program.
_LISTED = 8


class Run:
  """One batch of a job. Row `i * num_decodes + k` is sample k of its input i.

  Args:
    job: what is decoded, and how.
    batch: which of its inputs.
  """

  def __init__(self, job: Job, batch: Batch):
    self.job, self.batch = job, batch
    settings, pair = job.settings, job.pair
    gamma, copies = settings.effective_gamma, settings.num_decodes
    rows, used = batch.size * copies, len(batch.example_ids)
    self.rows_used = used * copies
    self._method = pair.method(gamma, trace=job.trace)
    self._weights = pair.weights(gamma > 0)
    self._rules = self._make_rules(rows)
    encoded = [job.encoded[i] for i in batch.example_ids]
    width = power_of_two(max(len(e.ids) for e in encoded), 16)
    source = make_source([e.ids for e in encoded], width=width, rows=batch.size)
    capacity = state_lib.capacity_for(settings.max_decode_len, gamma)
    examples = np.repeat(np.pad(batch.example_ids, (0, batch.size - used)), copies)
    with self._precision():
      row_keys = _row_keys(np.uint32(settings.seed), examples.astype(np.uint32),
                           np.tile(np.arange(copies, dtype=np.uint32), batch.size))
      self._state = loop.start(
          self._method, self._weights, source,
          _prompt([e.prompt for e in encoded], batch.size, copies, capacity), row_keys,
          np.arange(rows) < self.rows_used, capacity, copies)

  def _make_rules(self, rows: int) -> Rules:
    settings, count = self.job.settings, len(self.job.encoded)

    def column(name: str) -> np.ndarray:
      values = settings.per_row(name, count)[self.batch.example_ids]
      values = np.repeat(values, settings.num_decodes)
      return np.pad(values, (0, rows - len(values)))

    # A row that only fills the batch asks for nothing: a penalty of 1, not 0.
    penalty = np.where(np.arange(rows) < self.rows_used, column("repetition_penalty"), 1.0)
    return Rules(
        rules_lib.sampling(rows, column("temperature"), column("top_k"), column("top_p")),
        rules_lib.limits(rows, settings.max_decode_len, self.job.eos_ids,
                         column("min_decode_len"), size=_LISTED),
        rules_lib.controls(rows, penalty, column("no_repeat_ngram_size"), settings.forbidden,
                           self.job.logits_fn, size=_LISTED),
        rules_lib.speculation(rows))

  def _precision(self):
    return precision.matmul_precision(self.job.pair.target.config.dtype)

  def advance(self, max_iterations: int = _ALWAYS) -> None:
    """Goes on until every row has ended, or for so many iterations. Does not wait."""
    with self._precision():
      self._state = loop.run(self._method, self._weights, self._state, self._rules,
                             Exits(np.int32(max_iterations), np.int32(_ALWAYS)))

  def tokens(self) -> dict[str, np.ndarray]:
    """`ids` [B, T], `length` and `status` [B] so far, in one copy."""
    s = self._state
    return jax.device_get({"ids": s.ids, "length": s.length, "status": s.status})

  def fetch(self) -> dict[str, Any]:
    """Everything about the rows, in one copy: `tokens`, scores, counts and the trace."""
    s = self._state
    return jax.device_get({
        "ids": s.ids, "length": s.length, "status": s.status, "log_prob": s.log_prob,
        "adjusted_log_prob": s.adjusted_log_prob, "target_calls": s.stats.target_calls,
        "drafted": s.stats.drafted, "tested": s.stats.tested, "accepted": s.stats.accepted,
        "trace": s.trace})


def run_batch(job: Job, batch: Batch) -> dict[str, Any]:
  """Decodes one batch to its end; see `Run.fetch`."""
  run = Run(job, batch)
  run.advance()
  return run.fetch()


def _prompt(prompts: list[list[int]], size: int, copies: int, capacity: int) -> Source:
  """Start id and prompts, a row per sample, of a width that few prompts share."""
  longest = 1 + max(map(len, prompts))
  # A width of its own for no prompts at all: nothing has to be read in then.
  width = min(power_of_two(longest, 1), capacity)
  ids = np.zeros((size, width), np.int32)
  length = np.ones((size,), np.int32)
  for i, prompt in enumerate(prompts):
    ids[i, 1:1 + len(prompt)] = prompt
    length[i] = 1 + len(prompt)
  return Source(ids=np.repeat(ids, copies, 0), length=np.repeat(length, copies, 0))


_row_keys = jax.jit(keys.row_keys)
