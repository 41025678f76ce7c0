"""How counts of what was decoded are told on standard error."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from specdec.engine.counts import Counts
  from specdec.engine.settings import Settings


def line(totals: "Counts", settings: "Settings") -> str:
  """The summary."""
  from specdec.engine.result import summary

  text = summary(totals.outputs, totals.tokens, totals.target_calls, totals.tested,
                 totals.accepted, settings.lossless)
  if totals.at_limit:
    text += f"; {totals.at_limit} stopped at max_decode_len {settings.max_decode_len}"
  return text


def report(totals: "Counts", settings: "Settings", written_to: str | None = None) -> None:
  """Prints a summary, and warnings of what a user can change."""
  from specdec.types import Status

  print(line(totals, settings) + (f"; written to {written_to}" if written_to else ""),
        file=sys.stderr)
  if totals.truncated:
    print(f"warning: {totals.truncated} of {totals.inputs} inputs had more than "
          f"{settings.max_source_len} tokens and were cut; --strict_length refuses them",
          file=sys.stderr)
  for count, status in ((totals.nan, Status.NAN), (totals.forbidden, Status.FORBIDDEN)):
    if count:
      print(f"warning: {count} of {totals.outputs} outputs: {status.text}", file=sys.stderr)
