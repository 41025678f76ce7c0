"""A progress bar on standard error, where somebody is there to see it."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import contextlib
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from rich.progress import Progress

  from specdec.engine.result import Record
  from specdec.training.runs import Evaluation

# Fewer inputs are done before a bar tells anything.
_LONG = 17


def wanted(count: int, output_elsewhere: bool) -> bool:
  """Whether to show a bar: a terminal, many inputs, and no other lines in its way."""
  quiet = output_elsewhere or not sys.stdout.isatty()
  return count >= _LONG and quiet and sys.stderr.isatty()


class Bar:
  """How many outputs there are, how fast they come, and alpha."""

  def __init__(self, bar: "Progress", count: int, seconds: Callable[[], float] | None = None):
    self._bar = bar
    self._task = bar.add_task("decoding", total=count, speed="compiling")
    begin = time.perf_counter()
    self._seconds = seconds or (lambda: time.perf_counter() - begin)
    self._tokens = self._tested = self._accepted = 0

  def add(self, tokens: int, tested: int, accepted: int, outputs: int = 1) -> None:
    """Counts outputs, with generated, tested and accepted tokens."""
    self._tokens += tokens
    self._tested += tested
    self._accepted += accepted
    speed = f"{self._tokens / max(self._seconds(), 1e-9):.0f} tokens/s"
    if self._tested:
      speed += f", alpha {self._accepted / self._tested:.2f}"
    self._bar.update(self._task, advance=outputs, speed=speed)


@contextlib.contextmanager
def bar(count: int, seconds: Callable[[], float] | None = None) -> Iterator[Bar]:
  """A bar for so many outputs.

  Args:
    count: how many there will be.
    seconds: what decoding has taken so far; by default all time since the bar is there.
  """
  from rich.console import Console
  from rich.progress import BarColumn
  from rich.progress import MofNCompleteColumn
  from rich.progress import Progress
  from rich.progress import TextColumn
  from rich.progress import TimeRemainingColumn

  columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"),
             TimeRemainingColumn())
  with Progress(*columns, console=Console(stderr=True), transient=True,
                redirect_stdout=False) as shown:
    yield Bar(shown, count, seconds)


def track(records: Iterable["Record"], count: int,
          seconds: Callable[[], float] | None = None) -> Iterator["Record"]:
  """Passes records on and shows how many there are, how fast, and alpha; see `bar`."""
  with bar(count, seconds) as shown:
    for record in records:
      shown.add(record.num_generated, record.tested, record.accepted)
      yield record


class Steps:
  """A bar for work of several stages on standard error; plain lines where nobody watches."""

  def __init__(self, bar: "Progress | None"):
    self._bar, self._task = bar, None

  def begin(self, stage: str, total: int) -> None:
    """Begins a stage; the one before is done."""
    if self._bar is not None:
      if self._task is not None:
        self._bar.remove_task(self._task)
      self._task = self._bar.add_task(stage, total=total)

  def advance_to(self, done: int) -> None:
    """Says how much of the stage is done."""
    if self._bar is not None and self._task is not None:
      self._bar.update(self._task, completed=done)

  def say_evaluation(self, evaluation: "Evaluation") -> None:
    """Prints what a training run measured."""
    line = (f"step {evaluation.step}: loss {evaluation.loss:.4f}, alpha {evaluation.alpha:.4f}, "
            f"best {evaluation.best:.4f}")
    if self._bar is not None:
      self._bar.console.print(line, highlight=False)
    else:
      print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def steps() -> Iterator[Steps]:
  """A bar on a terminal, lines alone elsewhere."""
  if not sys.stderr.isatty():
    yield Steps(None)
    return
  from rich.console import Console
  from rich.progress import BarColumn
  from rich.progress import MofNCompleteColumn
  from rich.progress import Progress
  from rich.progress import TextColumn
  from rich.progress import TimeRemainingColumn

  columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
             TimeRemainingColumn())
  with Progress(*columns, console=Console(stderr=True), transient=True,
                redirect_stdout=False) as bar:
    yield Steps(bar)


@contextlib.contextmanager
def status() -> Iterator[Callable[[str], None]]:
  """A line on a terminal that says what is going on: what to call with each message."""
  if not sys.stderr.isatty():
    yield lambda message: None
    return
  from rich.console import Console

  with Console(stderr=True).status("") as line:
    yield lambda message: line.update(message)
