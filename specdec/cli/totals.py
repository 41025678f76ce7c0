"""Counts of what was decoded, and how they are told on standard error."""

import dataclasses
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from specdec.engine.result import Record
  from specdec.engine.settings import Settings


@dataclasses.dataclass
class Totals:
  """Running counts, so that records need not be kept."""

  inputs: int = 0
  outputs: int = 0
  tokens: int = 0
  target_calls: int = 0
  tested: int = 0
  accepted: int = 0
  truncated: int = 0
  at_limit: int = 0
  nan: int = 0
  forbidden: int = 0

  def add(self, record: "Record") -> None:
    self.outputs += 1
    self.tokens += record.num_generated
    self.target_calls += record.target_calls
    self.tested += record.tested
    self.accepted += record.accepted
    self.inputs += record.sample == 0
    self.truncated += record.truncated and record.sample == 0
    self.at_limit += record.status == "length"
    self.nan += record.status == "nan"
    self.forbidden += record.status == "forbidden"


def report(totals: Totals, settings: "Settings", written_to: str | None = None) -> None:
  """Prints a summary, and warnings of what a user can change."""
  from specdec.engine.result import summary
  from specdec.types import Status

  line = summary(totals.outputs, totals.tokens, totals.target_calls, totals.tested,
                 totals.accepted, settings.lossless)
  if totals.at_limit:
    line += f"; {totals.at_limit} stopped at max_decode_len {settings.max_decode_len}"
  if written_to:
    line += f"; written to {written_to}"
  print(line, file=sys.stderr)
  if totals.truncated:
    print(f"warning: {totals.truncated} of {totals.inputs} inputs had more than "
          f"{settings.max_source_len} tokens and were cut; --strict_length refuses them",
          file=sys.stderr)
  for count, status in ((totals.nan, Status.NAN), (totals.forbidden, Status.FORBIDDEN)):
    if count:
      print(f"warning: {count} of {totals.outputs} outputs: {status.text}", file=sys.stderr)
