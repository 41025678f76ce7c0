"""A batch on the device: started, run on, fetched."""

from collections.abc import Callable
import functools
from typing import Any

import jax
import numpy as np

from specdec.core import keys
from specdec.core import loop
from specdec.core import rules as rules_lib
from specdec.core import state as state_lib
from specdec.core.contracts import Drafter
from specdec.core.state import DecodeState
from specdec.core.state import Exits
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.engine import exhausted
from specdec.engine import mesh as mesh_lib
from specdec.engine import shapes
from specdec.engine.job import Batch
from specdec.engine.job import Job
from specdec.engine.job import power_of_two
from specdec.engine.job import prompt_width
from specdec.engine.job import source_width
from specdec.engine.models import make_source
from specdec.engine.pace import Auto
from specdec.engine.pace import Counts
from specdec.engine.pace import Fixed
from specdec.engine.pace import Pace
from specdec.engine.pace import Segment
from specdec.engine.pace import Watched
from specdec.types import Rules
from specdec.types import Source
from specdec.types import Status

_ALWAYS = 2**30
# Ids that end rows and forbidden ids are padded to multiples of this, so that their
# number seldom asks for another program.
_LISTED = 8
# The least width of a call that brings a drafter level: few of them are compiled.
_CATCH_UP = 8


def make_pace(job: Job, rows: int) -> Pace:
  """The pace that a job asks for; see `engine.pace`."""
  settings = job.settings
  pace: Pace = Auto(job.costs, rows) if settings.paced else Fixed(settings.effective_gamma, rows)
  if not pace.next().size:
    # All rows begin with one belief, and one that has drafted nothing has no reason to change
    # it: plain decoding to the end, by its own program.
    return Fixed(0, rows)
  return Watched(pace) if job.pair.drafter.drafter.abstains else pace


def told(method: Callable[..., Any]) -> Callable[..., Any]:
  """Has a method of `Programs` say which settings to lower when memory does not suffice."""
  @functools.wraps(method)
  def call(self: "Programs", *args: Any, **kwargs: Any) -> Any:
    with exhausted.told(lambda: exhausted.while_decoding(
        self.job.settings, self.job.pair.target.config.dtype)):
      return method(self, *args, **kwargs)

  return call


class Programs:
  """The compiled programs of a job, and what they take besides a state.

  Args:
    job: what is decoded, and how.
    pace: decides how many tokens to draft.
  """

  def __init__(self, job: Job, pace: Pace):
    self.job, self._pace = job, pace
    plain = isinstance(pace, Fixed) and not pace.gamma
    # Several sizes share the shapes of the largest.
    self._gamma = largest = 0 if plain else job.largest_gamma
    self._abstains = largest > 0 and job.pair.drafter.drafter.abstains
    self._drafting = largest > 0
    self._capacity = state_lib.capacity_for(job.settings.max_decode_len, largest)
    self._rules: Any = None

  def _enter_shape(self, gamma: int, source: Source, prompt: int) -> None:
    """Notes what the programs of this run are compiled for; see `engine.shapes`."""
    leaves, structure = jax.tree.flatten(self._rules)
    shapes.enter((self._method(gamma), source.ids.shape, prompt, self.job.settings.num_decodes,
                  self._capacity, structure, tuple(map(np.shape, leaves))))

  def _method(self, gamma: int) -> Method:
    """The program of one size."""
    return self.job.pair.method(
        gamma, trace=self.job.trace, verifier=self.job.settings.verifier,
        watch=self._abstains and not isinstance(self._pace, Fixed),
        with_drafter=self._drafting)

  @property
  def _weights(self) -> Weights:
    return self.job.pair.weights(with_drafter=self._drafting)

  def _scope(self):
    return self.job.pair.target.scope()

  def _placed(self, tree: Any, rows: int) -> Any:
    return mesh_lib.place_rows(tree, self.job.pair.target.mesh, rows)

  def _start(self, examples: list[int], size: int, capacity: int | None = None
             ) -> tuple[DecodeState, np.ndarray]:
    """A state with rows for some inputs of the job, padded to `size` inputs.

    Args:
      examples: inputs; row `i * num_decodes + k` is sample k of the i-th.
      size: inputs of the compiled program.
      capacity: slots per row; just what the prompts need when None.

    Returns:
      The state, and the rows' lengths, prompts included.
    """
    job, copies = self.job, self.job.settings.num_decodes
    encoded = [job.encoded[i] for i in examples]
    source = make_source([e.ids for e in encoded], width=source_width(encoded), rows=size,
                         begin=[e.begin for e in encoded])
    places = np.pad([job.place(i) for i in examples], (0, size - len(examples)))
    self._enter_shape(self._gamma, source, prompt_width(encoded))
    with self._scope():
      row_keys = _row_keys(np.uint32(job.settings.seed),
                           np.repeat(places, copies).astype(np.uint32),
                           np.tile(np.arange(copies, dtype=np.uint32), size))
      prompt = _prompt([e.prompt for e in encoded], prompt_width(encoded), size, copies,
                       self._capacity)
      placed = self._placed((prompt, row_keys, np.arange(size * copies) < len(examples) * copies),
                            size * copies)
      state = loop.start(
          self._method(self._gamma), self._weights, self._placed(source, size), *placed,
          prompt.ids.shape[1] if capacity is None else capacity, copies)
    return state, np.asarray(prompt.length)


class Run(Programs):
  """One batch of a job. Row `i * num_decodes + k` is sample k of its input i.

  Args:
    job: what is decoded, and how.
    batch: which of its inputs.
    pace: decides how many tokens to draft; by default what the job's settings ask for.
  """

  @told
  def __init__(self, job: Job, batch: Batch, pace: Pace | None = None):
    copies = job.settings.num_decodes
    rows = batch.size * copies
    super().__init__(job, pace or make_pace(job, rows))
    self.batch, self.rows_used = batch, len(batch.example_ids) * copies
    self._rules = self._placed(make_rules(job, np.repeat(batch.example_ids, copies), rows), rows)
    self._state, self._level = self._start(batch.example_ids, batch.size, self._capacity)
    # The state of a drafter that was left out.
    self._aside: Any = None
    self._iterations = 0

  @told
  def advance(self, max_iterations: int = _ALWAYS) -> None:
    """Goes on until every row has ended, or for so many iterations.

    Does not wait where a single segment will do, as one gamma from beginning to end is.
    """
    if isinstance(self._pace, Fixed):
      self._go(self._pace.next(), max_iterations)
      return
    end = self._iterations + max_iterations
    while True:
      segment = self._pace.next()
      # As the host counts: asking the device would make it wait for the last program.
      self._go(segment, min(segment.iterations, end - self._iterations))
      # Most runs of short outputs end here, and there is nothing left to decide on.
      if not (np.asarray(self._state.status) == Status.RUNNING).any():
        return
      counts = self._counts()
      self._iterations = counts.iterations
      self._pace.observe(counts)
      if counts.iterations >= end:
        return

  @told
  def compile(self) -> None:
    """Gets every program ready that the run may come to need: each goes no iteration."""
    sizes = {self._gamma}
    if not isinstance(self._pace, Fixed):
      sizes |= set(self.job.costs.sizes) if self.job.settings.paced else set()
      sizes |= {0} if self._abstains else set()
    for size in sorted(sizes, reverse=True):
      self._go(Segment(size, np.full(self._level.shape, size, np.int32), 0), 0)
    if self._aside is not None:
      for width in self._widths():
        self._bring_in(width)
        self._leave_out()
    self.wait()

  def _widths(self) -> list[int]:
    """Every width that a drafter may be brought in with."""
    widths = [_CATCH_UP]
    while widths[-1] < self._capacity:
      widths.append(2 * widths[-1])
    return [*widths[:-1], min(widths[-1], self._capacity)]

  def _go(self, segment: Segment, iterations: int) -> None:
    """Runs the program of a segment's size."""
    rules = self._rules.replace(
        speculation=self._rules.speculation.replace(
            gamma=self._placed(segment.gamma, len(segment.gamma))))
    exits = Exits(np.int32(iterations), np.int32(_ALWAYS))
    with self._scope():
      if segment.size and not self._drafting:
        self._bring_in(self._missed())
      elif not segment.size and self._drafting and not self._abstains:
        self._leave_out()
      self._state = loop.run(self._method(segment.size), self._weights, self._state, rules, exits)

  def _leave_out(self) -> None:
    """Goes on without the drafter, in the very program of plain decoding."""
    self._aside, self._drafting = self._state.draft_state, False
    self._state = self._state.replace(draft_state=None)

  def _missed(self) -> int:
    """A width that holds what the target said without the drafter."""
    length = np.asarray(self._state.length)
    # What it had not been fed when it was left out comes on top: see `Context.lag`.
    missed = int((length - self._level).max()) + _lag(self.job.pair.drafter.drafter)
    return min(power_of_two(missed, _CATCH_UP), self._capacity)

  def _bring_in(self, width: int) -> None:
    """Brings the drafter level with what the target said without it, at most so much."""
    self._drafting = True
    state = self._state.replace(draft_state=self._aside)
    # Compiled for the precision of the others, whoever asks.
    with self._scope():
      self._state = loop.catch_up(self._method(self._gamma), self._weights, state, width)
    self._aside = None

  def _counts(self) -> Counts:
    s = self._state
    found = jax.device_get({
        "status": s.status, "tested": s.stats.tested, "accepted": s.stats.accepted,
        "iterations": s.iterations, "drafting": s.drafting, "length": s.length})
    if self._drafting:
      self._level = found["length"]
    return Counts(found["status"] == Status.RUNNING, found["tested"], found["accepted"],
                  int(found["iterations"]), bool(found["drafting"]))

  @told
  def wait(self) -> None:
    """Until what was asked for is done."""
    jax.block_until_ready(self._state)

  @told
  def tokens(self) -> dict[str, np.ndarray]:
    """`ids` [B, T], `length` and `status` [B] so far, in one copy."""
    s = self._state
    return jax.device_get({"ids": s.ids, "length": s.length, "status": s.status})

  @told
  def fetch(self) -> dict[str, Any]:
    """Everything about the rows, in one copy: `tokens`, scores, counts and the trace."""
    return fetch(self._state)


def fetch(state: DecodeState) -> dict[str, Any]:
  """Everything about the rows of a state, in one copy."""
  s = state
  return jax.device_get({
      "ids": s.ids, "length": s.length, "status": s.status, "log_prob": s.log_prob,
      "adjusted_log_prob": s.adjusted_log_prob, "target_calls": s.stats.target_calls,
      "drafted": s.stats.drafted, "tested": s.stats.tested, "accepted": s.stats.accepted,
      "trace": s.trace})


def make_rules(job: Job, examples: np.ndarray, rows: int) -> Rules:
  """Rules of rows that hold inputs of a job.

  Args:
    job: with the settings.
    examples: int, the input of each of the first rows.
    rows: of the batch.
  """
  settings, count = job.settings, len(job.encoded)

  def column(name: str) -> np.ndarray:
    values = settings.per_row(name, count)[examples]
    return np.pad(values, (0, rows - len(values)))

  # A row that only fills the batch asks for nothing: a penalty of 1, not 0.
  filled = lambda name: np.where(np.arange(rows) < len(examples), column(name), 1.0)
  return Rules(
      rules_lib.sampling(rows, column("temperature"), column("top_k"), column("top_p")),
      rules_lib.limits(rows, settings.max_decode_len, job.eos_ids,
                       column("min_decode_len"), size=_LISTED),
      rules_lib.controls(rows, filled("repetition_penalty"), column("no_repeat_ngram_size"),
                         settings.forbidden, job.logits_fn, size=_LISTED),
      rules_lib.speculation(rows, confidence=column("confidence"),
                            lenience=filled("lenience")))


def _prompt(prompts: list[list[int]], width: int, size: int, copies: int,
            capacity: int) -> Source:
  """Start id and prompts, a row per sample, of a width that few prompts share."""
  # A width of its own for no prompts at all: nothing has to be read in then.
  width = min(width, capacity)
  ids = np.zeros((size, width), np.int32)
  length = np.ones((size,), np.int32)
  for i, prompt in enumerate(prompts):
    ids[i, 1:1 + len(prompt)] = prompt
    length[i] = 1 + len(prompt)
  return Source(ids=np.repeat(ids, copies, 0), length=np.repeat(length, copies, 0))


def _lag(drafter: Drafter) -> int:
  """Most tokens that a drafter had not been fed: two, and one more for each level of a cascade."""
  inner = getattr(drafter, "drafter", None)
  return 2 if inner is None else _lag(inner) + 1


_row_keys = shapes.bounded(jax.jit(keys.row_keys))
for _program in (loop.start, loop.run, loop.catch_up):
  shapes.bounded(_program)
