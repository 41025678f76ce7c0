"""What `specdec figure` and `specdec report` share: their flags and what they read."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses

from specdec.analysis import gallery
from specdec.analysis import records as records_lib
from specdec.analysis import traces as traces_lib
from specdec.analysis.records import Record
from specdec.analysis.traces import Trace
from specdec.cli import pairs
from specdec.cli.flags import Flags
from specdec.errors import SpecdecError


@dataclasses.dataclass(frozen=True)
class Sources:
  """What figures are drawn from.

  Attributes:
    records: measurements.
    traces: runs that the user named.
    example: the run of figure 1.
    pieces: ids -> pieces; reads the vocabulary when it is first called.
  """

  records: list[Record]
  traces: list[Trace]
  example: Trace
  pieces: Callable[[Sequence[int]], Sequence[str]]

  def draw(self, name: str):
    """A figure and its caption."""
    return gallery.draw(name, self.records, self.traces, self.example, self.pieces)


def add_flags(flags: Flags) -> None:
  """Adds flags to the help page."""
  flags.group("Measurements")
  flags.texts("record", "FILE", "a record of measurements, such as specdec bench --json writes; "
              "may be given several times")
  flags.texts("trace_file", "FILE", "what specdec generate --trace --output_file wrote, for "
              "figures 1 and 5; likewise [a run of the demo pair, for figure 1]")
  flags.whole("example", 1, "which output of the first --trace_file figure 1 shows, from 1")
  pairs.add_flags(flags)


def read(flags: Flags) -> Sources:
  """Reads records and traces.

  Raises:
    SpecdecError: a file is wrong, or flags do not go together.
  """
  records = records_lib.read_all(flags.record)
  files = [traces_lib.read(path) for path in dict.fromkeys(flags.trace_file)]
  for name in ("example", "pair", "target", "drafter", "vocab"):
    if not files and flags.given(name):
      raise SpecdecError(f"--{name} belongs to --trace_file; add it or drop --{name}")
  shown = files[0] if files else traces_lib.shipped()
  if not 1 <= flags.example <= len(shown):
    raise SpecdecError(f"--example is {flags.example}; expected an integer from 1 to {len(shown)}")

  def pieces(ids: Sequence[int]) -> Sequence[str]:
    nonlocal vocabulary
    if vocabulary is None:
      vocabulary = pairs.vocabulary(flags)
    return vocabulary.pieces(ids)

  vocabulary = None
  return Sources(records, [t for f in files for t in f], shown[flags.example - 1], pieces)
