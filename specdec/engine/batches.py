"""A batch decoded to its end, in the way that the settings ask for."""

from typing import Any

from specdec.engine import refill
from specdec.engine.job import Batch
from specdec.engine.job import Job
from specdec.engine.run import Run


def run_batch(job: Job, batch: Batch) -> dict[str, Any]:
  """Decodes the inputs of a batch; see `engine.run.fetch`.

  Returns:
    Arrays whose row `i * num_decodes + k` is sample k of the batch's input i.
  """
  if job.settings.refills:
    run = refill.Refill(job, batch)
    for _ in run.ended():
      pass
    return run.found
  whole = Run(job, batch)
  whole.advance()
  return whole.fetch()
