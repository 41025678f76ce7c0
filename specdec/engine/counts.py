"""Running counts of what was decoded, so that records need not be kept."""

import dataclasses

from specdec.engine.result import Record
from specdec.types import Status


@dataclasses.dataclass
class Counts:
  """What became of inputs.

  Attributes:
    inputs: decoded.
    failed: inputs that could not be.
    outputs: `num_decodes` per decoded input.
    tokens: generated.
    target_calls: of all rows.
    tested: drafted tokens that the verifier looked at.
    accepted: those that stand.
    truncated: inputs that were cut.
    at_limit: outputs that ended at the limit.
    nan: outputs that ended at logits that are no numbers.
    forbidden: outputs that ended where nothing was allowed.
  """

  inputs: int = 0
  failed: int = 0
  outputs: int = 0
  tokens: int = 0
  target_calls: int = 0
  tested: int = 0
  accepted: int = 0
  truncated: int = 0
  at_limit: int = 0
  nan: int = 0
  forbidden: int = 0

  def add(self, record: Record) -> None:
    """Counts an output."""
    self.outputs += 1
    self.tokens += record.num_generated
    self.target_calls += record.target_calls
    self.tested += record.tested
    self.accepted += record.accepted
    # Samples are in the order of their scores; one of them is the first.
    self.inputs += record.sample == 0
    self.truncated += record.truncated and record.sample == 0
    self.at_limit += record.status == Status.LENGTH.label
    self.nan += record.status == Status.NAN.label
    self.forbidden += record.status == Status.FORBIDDEN.label
