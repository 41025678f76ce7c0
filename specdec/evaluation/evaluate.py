"""Metrics of a pair on a task, by seqio's Evaluator, and what decoding took."""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
import contextlib
import dataclasses
import hashlib
import json
from typing import Any

import numpy as np

from specdec.engine import calibrate
from specdec.engine import fingerprint
from specdec.engine import hosts
from specdec.engine.costs import Costs
from specdec.engine.job import Job
from specdec.engine.job import from_ids
from specdec.engine.pairs import Pair
from specdec.engine.result import Record
from specdec.engine.result import Result
from specdec.errors import SpecdecError
from specdec.evaluation.decoding import Clock
from specdec.evaluation.decoding import in_turns
from specdec.evaluation.examples import Examples

Watch = Callable[[Iterable[Record], Clock], Iterable[Record]]

TIMED = ("encoding and decoding of all examples, batch by batch, from handing ids to the device "
         "until the outputs are back; without compiling, tokenising and metrics")


@dataclasses.dataclass(frozen=True)
class Prediction:
  """What became of one example.

  Attributes:
    index: its place in the split.
    input: text, the task's prefix included.
    target: the reference.
    prediction: what the metrics are computed of, before any postprocessing of the task's.
    record: ids, score, status and counts.
    baseline_prediction: what plain decoding said; None where it did not run.
  """

  index: int
  input: str
  target: str
  prediction: str
  record: Record
  baseline_prediction: str | None = None

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready: a line of the predictions file."""
    kept = {name: getattr(self.record, name) for name in (
        "output_ids", "score", "status", "target_calls", "drafted", "tested", "accepted",
        "truncated", "seed", "lossless")}
    out = {"index": self.index, "input": self.input, "target": self.target,
           "prediction": self.prediction}
    if self.baseline_prediction is not None:
      out["baseline_prediction"] = self.baseline_prediction
    return out | kept


@dataclasses.dataclass(frozen=True)
class Side:
  """One way of decoding a split.

  Attributes:
    result: its records.
    metrics: by name.
    clock: what it took.
  """

  result: Result
  metrics: dict[str, float]
  clock: Clock

  @property
  def tokens_per_s(self) -> float:
    """Generated tokens a second, of all samples."""
    return self.result.tokens / self.clock.seconds if self.clock.seconds else 0.0

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready."""
    r = self.result
    return {
        "metrics": self.metrics, "alpha": r.alpha, "tokens": r.tokens,
        "target_calls": r.target_calls, "tokens_per_call": r.tokens_per_call,
        "drafted": r.drafted, "tested": r.tested, "accepted": r.accepted,
        "lossless": r.lossless, "seconds": self.clock.seconds,
        "tokens_per_s": self.tokens_per_s, "warm_up_s": self.clock.warm_up_s}


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """What an evaluation found.

  Attributes:
    task: its name.
    split: which of its splits.
    examples: how many.
    pair: names of pair, target and drafter.
    dtype: of the target's weights.
    side: as asked for.
    baseline: plain decoding of the same inputs; None where it was not asked for.
    processes: that shared the examples; times are those of the slowest.
  """

  task: str
  split: str
  examples: int
  pair: dict[str, str]
  dtype: str
  side: Side
  baseline: Side | None = None
  processes: int = 1

  @property
  def time_ratio(self) -> float | None:
    """How many times faster than plain decoding it was; None without a baseline."""
    if self.baseline is None or not self.side.clock.seconds:
      return None
    return self.baseline.clock.seconds / self.side.clock.seconds

  @property
  def identical(self) -> int | None:
    """Examples with the very ids of plain decoding; None without a baseline."""
    if self.baseline is None:
      return None
    return sum(a == b for a, b in zip(self.side.result.ids, self.baseline.result.ids))

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready: the results file."""
    out: dict[str, Any] = {
        "task": self.task, "split": self.split, "examples": self.examples, **self.pair,
        "dtype": self.dtype, **self.side.to_dict(), "processes": self.processes, "timed": TIMED}
    if self.baseline is not None:
      out["baseline"] = self.baseline.to_dict()
      out["time_ratio"] = self.time_ratio
      out["identical_outputs"] = self.identical
    out["settings"] = dataclasses.asdict(self.side.result.settings)
    return out


def evaluate(pair: Pair, examples: Examples, *, baseline: bool = False, prompt: Any = None,
             logits_fn: Any = None, costs: Costs | None = None,
             watch: Watch = lambda records, clock: records,
             on_prediction: Callable[[Prediction], None] | None = None,
             group: hosts.Alone | hosts.Group | None = None,
             **settings: Any) -> Evaluation | None:
  """Decodes a split of a task, and measures what came out.

  Args:
    pair: target and drafter.
    examples: from `examples.read`, with the pair's vocabulary.
    baseline: decode plainly as well, in turns with what is asked for.
    prompt: what every output begins with.
    logits_fn: see `engine.generate.generate`.
    costs: for `gamma="auto"`.
    watch: what records pass through while they are decoded, such as a progress bar, with the
      clock of what is asked for.
    on_prediction: called with each prediction as soon as it is there, in order.
    group: of the processes that share the examples; None for this one alone.
    **settings: fields of `Settings`; limits of lengths are the task's otherwise.

  Returns:
    What was found; None in all processes but the first, which has the others' records too.

  Raises:
    SpecdecError: a setting is out of range, or the processes are not started alike.
  """
  group = group or hosts.Alone()
  settings = examples.limits() | settings
  ways = {"main": settings}
  if baseline:
    ways["plain"] = settings | {"mode": "plain"}
  _agree(group, pair, examples, ways)
  predictor = _Predictor(pair, examples, ways, {
      "prompt": prompt, "logits_fn": logits_fn, "costs": costs}, watch, on_prediction, group)
  if group.process_id:
    predictor.help()
    return None
  sides = {way: predictor.side(way) for way in ways}
  about = {"pair": pair.name, "target": pair.target.name, "drafter": pair.drafter.name}
  return Evaluation(examples.task.name, examples.split, len(examples), about,
                    str(pair.target.config.dtype), sides["main"], sides.get("plain"),
                    group.num_processes)


def _agree(group: hosts.Alone | hosts.Group, pair: Pair, examples: Examples,
           ways: dict[str, dict[str, Any]]) -> None:
  """Refuses processes that would not decode the same."""
  if group.num_processes == 1:
    return
  inputs = hashlib.sha256(json.dumps(examples.inputs).encode()).hexdigest()
  ours = {"settings": {way: json.dumps(settings, sort_keys=True, default=str)
                       for way, settings in ways.items()},
          "examples": inputs, "models": fingerprint.fingerprint(pair)}
  if not group.process_id:
    group.publish("evaluation", ours)
  theirs = group.wait("evaluation")
  differing = [name for name in ours if ours[name] != theirs[name]]
  if differing:
    raise SpecdecError(f"this process and process 0 have different {' and '.join(differing)}; "
                       "start all with the same flags, models and data")


class _Helped(Exception):
  """A process has decoded its share; seqio has nothing more to do there."""


class _Predictor:
  """Decodes once, in several ways, when seqio's Evaluator asks for the first of them.

  With other processes, each decodes its share of the batches, and the first takes all in.
  """

  def __init__(self, pair: Pair, examples: Examples, ways: dict[str, dict[str, Any]],
               options: dict[str, Any], watch: Watch,
               on_prediction: Callable[[Prediction], None] | None,
               group: hosts.Alone | hosts.Group):
    self._group = group
    self._pair, self._examples, self._ways, self._options = pair, examples, ways, options
    self._watch, self._on_prediction = watch, on_prediction
    self._clocks = {way: Clock() for way in ways}
    self._records: dict[str, list[Record]] = {way: [] for way in ways}
    self._jobs: dict[str, Job] = {}

  def side(self, way: str) -> Side:
    """Metrics of one way."""
    def predict_fn(dataset: Any, model_feature_shapes: Any = None) -> list[tuple[int, list[int]]]:
      del model_feature_shapes
      if not self._jobs:
        self._decode(dataset)
      rows = [self._row(record) for record in self._best(way)]
      width = max(map(len, rows))
      # NumPy wants rows of one length; what follows an EOS is not decoded.
      return [(i, row + [0] * (width - len(row))) for i, row in zip(self._indices, rows)]

    found, _ = self._examples.evaluator.evaluate(compute_metrics=True, predict_fn=predict_fn)
    metrics = found.result()[self._examples.task.name]
    job = self._jobs[way]
    return Side(Result(tuple(self._records[way]), job.settings, job.costs),
                {name: float(getattr(value, "value", value)) for name, value in metrics.items()},
                self._clocks[way])

  def _decode(self, dataset: Any) -> None:
    """Decodes a dataset of seqio's: places of examples, and features of the model."""
    rows = [(int(i), np.trim_zeros(features["encoder_input_tokens"], "b").tolist())
            for i, features in dataset.as_numpy_iterator()]
    self._indices = [i for i, _ in rows]
    ids = [row for _, row in rows]
    self._jobs = {
        way: self._ready(way, from_ids(self._pair, ids, settings, **self._options))
        for way, settings in self._ways.items()}
    for _ in self._watch(self._decoded(), self._clocks["main"]):
      pass

  def help(self) -> None:
    """Decodes this process's share for the first one, which computes the metrics."""
    def predict_fn(dataset: Any, model_feature_shapes: Any = None) -> None:
      del model_feature_shapes
      self._decode(dataset)
      raise _Helped

    with contextlib.suppress(_Helped):
      self._examples.evaluator.evaluate(compute_metrics=False, predict_fn=predict_fn)

  def _ready(self, way: str, job: Job) -> Job:
    """The job with the costs that automatic gamma goes by, the same in all processes."""
    name = f"costs of {way}"
    if not self._group.process_id:
      job = calibrate.ready(job)
      self._group.publish(name, job.costs and dataclasses.asdict(job.costs))
      return job
    costs = self._group.wait(name)
    return dataclasses.replace(job, costs=costs and Costs(**costs))

  def _decoded(self) -> Iterable[Record]:
    """The records of the main way, once those of every way are kept."""
    rows = in_turns(self._jobs, self._clocks, self._group.process_id, self._group.num_processes)
    for records in rows if self._group.num_processes == 1 else self._gathered(rows):
      for way, of_way in records.items():
        self._records[way] += of_way
      if self._on_prediction:
        self._on_prediction(self._prediction({way: r[-1] for way, r in records.items()}))
      yield from records["main"]

  def _gathered(self, rows: Iterable[dict[str, list[Record]]]) -> Iterable[dict[str, list[Record]]]:
    """The rows of all processes in order, in the first of them; none in the others."""
    found = [{way: [record.to_dict() for record in of_way] for way, of_way in row.items()}
             for row in rows]
    clocks = {way: dataclasses.asdict(clock) for way, clock in self._clocks.items()}
    shares = self._group.gather("records", {"rows": found, "clocks": clocks})
    if shares is None:
      return
    for way, clock in self._clocks.items():
      # They ran at the same time: what it took is what the slowest took.
      clock.seconds = max(share["clocks"][way]["seconds"] for share in shares)
      clock.warm_up_s = max(share["clocks"][way]["warm_up_s"] for share in shares)
    every = [row for share in shares for row in share["rows"]]
    for row in sorted(every, key=lambda row: row["main"][0]["index"]):
      yield {way: [Record(**fields) for fields in of_way] for way, of_way in row.items()}

  def _prediction(self, records: dict[str, Record]) -> Prediction:
    main = records["main"]
    at = self._indices[main.index]
    plain = records.get("plain")
    return Prediction(at, self._examples.inputs[at], self._examples.targets[at],
                      self._text(main), main, plain and self._text(plain))

  def _text(self, record: Record) -> str:
    return self._examples.vocabulary.decode(self._row(record))

  def _best(self, way: str) -> Sequence[Record]:
    copies = self._jobs[way].settings.num_decodes
    return self._records[way][copies - 1::copies]

  def _row(self, record: Record) -> list[int]:
    """Ids up to whatever ended the row, and the vocabulary's EOS: text is what comes before."""
    ids = record.output_ids[:-1] if record.status == "eos" else record.output_ids
    return [*ids, self._pair.vocabulary.eos_id]
