"""Long runs: a file of records decoded shard by shard, killed and resumed at will.

What a record becomes follows from the settings and its place in the file. Batches are formed
within a shard, so an open shard that is decoded again comes out the same, byte for byte.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import json
from typing import Any

from specdec.data.lines import Line
from specdec.data.lines import LineFile
from specdec.engine import calibrate
from specdec.engine import generate
from specdec.engine import job as job_lib
from specdec.engine.costs import Costs
from specdec.engine.counts import Counts
from specdec.engine.pairs import Pair
from specdec.engine.result import Record
from specdec.engine.run_folder import RunFolder
from specdec.errors import InputError
from specdec.errors import SpecdecError

# No more than that is read into memory to measure costs.
_MEASURED = 256


class Inference:
  """The records of a file, to be decoded into a folder.

  Args:
    pair: target and drafter.
    lines: the file.
    shard_size: records per shard, at least 1.
    settings: fields of `Settings`, one value for all inputs.
    task: see `generate`.
    prompt: likewise, one for all inputs.
    logits_fn: likewise.
    costs: for automatic gamma; measured at the start of a run when None.

  Raises:
    SpecdecError: a setting is out of range, or the task is unknown.
  """

  def __init__(self, pair: Pair, lines: LineFile, shard_size: int, settings: dict[str, Any], *,
               task: str | None = None, prompt: Any = None, logits_fn: Any = None,
               costs: Costs | None = None):
    self.pair, self.lines, self.shard_size = pair, lines, shard_size
    self._given, self._task = settings, task
    self._options = {"prompt": prompt, "logits_fn": logits_fn}
    self.costs = costs
    # One input stands for all: what is wrong with the settings shows before a folder is made.
    self.settings = self._job([""], [0]).settings

  @property
  def shards(self) -> int:
    """How many there are."""
    return -(-self.lines.count // self.shard_size)

  def _places(self, shard: int) -> range:
    """Which records a shard has."""
    begin = shard * self.shard_size
    return range(begin, min(begin + self.shard_size, self.lines.count))

  def _job(self, texts: list[str], places: list[int]) -> job_lib.Job:
    return job_lib.from_texts(self.pair, texts, self._task, self._given, places=places,
                              costs=self.costs, **self._options)

  def pin(self, folder: RunFolder) -> None:
    """Settles what automatic gamma goes by, for this run and for when it goes on.

    Raises:
      SpecdecError: no record of the beginning can be decoded.
    """
    if not self.settings.paced:
      return
    if "costs" in folder.pinned:
      try:
        pinned = Costs(**folder.pinned["costs"])
      except TypeError as error:
        raise SpecdecError(f"the costs in {folder.path}'s run.json are broken ({error}); add "
                           "--overwrite to begin anew, or give another folder") from error
      if self.costs not in (None, pinned):
        raise SpecdecError(f"{folder.path} holds shards of another run (with other costs for "
                           "automatic gamma); add --overwrite to replace them, or give another "
                           "folder")
      self.costs = pinned
      return
    if self.costs is None:
      lines = self.lines.read(0, min(_MEASURED, self.lines.count))
      good = [(line.text, i) for i, line in enumerate(lines) if self._error(line) is None]
      if not good:
        raise SpecdecError(f"none of the first {len(lines)} records of {self.lines.name} can be "
                           f"decoded; the first {lines[0].error or self._error(lines[0])}")
      texts, places = map(list, zip(*good))
      self.costs = calibrate.measure(self._job(texts, places))
    folder.pin(costs=dataclasses.asdict(self.costs))

  def _error(self, line: Line) -> str | None:
    """What is wrong with a record, if anything."""
    if line.error is not None or not self.settings.strict_length:
      return line.error
    try:
      self._job([line.text], [0])
    except InputError as error:
      return error.problem
    return None

  def records(self, shard: int) -> Iterator[dict[str, Any]]:
    """Lines of a shard, in the order of its records; `num_decodes` for each."""
    begin, end = self._places(shard).start, self._places(shard).stop
    lines = self.lines.read(begin, end)
    errors = [self._error(line) for line in lines]
    good = [i for i, error in enumerate(errors) if error is None]
    decoded: Iterator[Record] = iter(())
    if good:
      decoded = generate.decode(self._job([lines[i].text for i in good],
                                          [begin + i for i in good]))
    for i, (line, error) in enumerate(zip(lines, errors)):
      if error is not None:
        yield {"index": begin + i, "line": line.number, "error": error}
        continue
      for _ in range(self.settings.num_decodes):
        yield next(decoded).to_dict()

  def run(self, folder: RunFolder, to_line: Callable[[dict[str, Any]], str],
          progress: Callable[[dict[str, Any]], None] = lambda record: None,
          stop: Callable[[], bool] = lambda: False, shards: Iterable[int] | None = None) -> bool:
    """Decodes the shards that are not there yet.

    Args:
      folder: of this run.
      to_line: writes a record.
      progress: called with every record as it is decoded.
      stop: asked after every shard.
      shards: only these, such as the share of one process; all of them when None.

    Returns:
      Whether all of them are there now.

    Raises:
      SpecdecError: the disk is full, or the like.
    """
    for shard in range(self.shards) if shards is None else shards:
      if folder.is_done(shard):
        continue
      if stop():
        return False
      folder.write_shard(shard, self._lines(shard, to_line, progress))
    return True

  def _lines(self, shard: int, to_line: Callable[[dict[str, Any]], str],
             progress: Callable[[dict[str, Any]], None]) -> Iterator[str]:
    for record in self.records(shard):
      yield to_line(record)
      progress(record)

  def counts(self, folder: RunFolder) -> Counts:
    """What became of the inputs, read from the shards that are there.

    Raises:
      SpecdecError: a shard cannot be read.
    """
    counts = Counts()
    for shard in filter(folder.is_done, range(self.shards)):
      path, before = folder.shard_path(shard), counts.inputs + counts.failed
      try:
        with open(path, encoding="utf-8") as f:
          for line in f:
            fields = json.loads(line)
            if "error" in fields:
              counts.failed += 1
            else:
              counts.add(Record(**fields))
        found, wanted = counts.inputs + counts.failed - before, len(self._places(shard))
        if found != wanted:
          raise ValueError(f"{found} of {wanted} inputs")
      except (OSError, ValueError, TypeError, RecursionError) as error:
        raise SpecdecError(f"{path} is broken ({error}); remove it, and the same command makes "
                           "it again") from error
    return counts
