"""A progress bar on standard error, where somebody is there to see it."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from specdec.engine.result import Record

# Fewer inputs are done before a bar tells anything.
_LONG = 17


def wanted(count: int, output_elsewhere: bool) -> bool:
  """Whether to show a bar: a terminal, many inputs, and no other lines in its way."""
  quiet = output_elsewhere or not sys.stdout.isatty()
  return count >= _LONG and quiet and sys.stderr.isatty()


def track(records: Iterable["Record"], count: int) -> Iterator["Record"]:
  """Passes records on and shows how many there are, how fast, and alpha."""
  from rich.console import Console
  from rich.progress import BarColumn
  from rich.progress import MofNCompleteColumn
  from rich.progress import Progress
  from rich.progress import TextColumn
  from rich.progress import TimeRemainingColumn

  columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"),
             TimeRemainingColumn())
  with Progress(*columns, console=Console(stderr=True), transient=True,
                redirect_stdout=False) as bar:
    task = bar.add_task("decoding", total=count, speed="compiling")
    begin, tokens, tested, accepted = time.perf_counter(), 0, 0, 0
    for record in records:
      tokens += record.num_generated
      tested += record.tested
      accepted += record.accepted
      speed = f"{tokens / (time.perf_counter() - begin):.0f} tokens/s"
      if tested:
        speed += f", alpha {accepted / tested:.2f}"
      bar.update(task, advance=1, speed=speed)
      yield record


@contextlib.contextmanager
def status() -> Iterator[Callable[[str], None]]:
  """A line on a terminal that says what is going on: what to call with each message."""
  if not sys.stderr.isatty():
    yield lambda message: None
    return
  from rich.console import Console

  with Console(stderr=True).status("") as line:
    yield lambda message: line.update(message)
