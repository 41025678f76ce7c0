"""The compiled programs of a workload, each ready to be timed."""

from collections.abc import Callable
from collections.abc import Iterator
import time
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from specdec.bench.workload import Part
from specdec.bench.workload import Workload
from specdec.core import keys
from specdec.core import loop
from specdec.core.contracts import Context
from specdec.core.state import DecodeState
from specdec.core.state import Exits
from specdec.core.state import capacity_for
from specdec.engine import precision
from specdec.types import Source

Array = jax.Array

_ALWAYS = 2**30


class Decode:
  """Decodes a workload, again and again, with the programs that users run.

  Args:
    workload: what is decoded.
    gamma: 0 is plain decoding.
    trace: keep what happened in each iteration.

  Attributes:
    compile_s: seconds that tracing and compiling took.
    program: the compiled loop.
    state: of the last batch.
    ids: generated in the last pass over the batches, by row.
    iterations: of the loop, in that pass.
  """

  def __init__(self, workload: Workload, gamma: int, trace: bool = False):
    method, b = workload.method(gamma, trace), workload.batch_size
    self._weights, self._rules = workload.weights(gamma), workload.rules()
    self._exits = Exits(jnp.int32(_ALWAYS), jnp.int32(_ALWAYS))
    prompt = Source(np.zeros((b, 1), np.int32), np.ones((b,), np.int32))
    # Random streams go by the place in the data, as they do for users.
    self._batches = [
        jax.device_put((source, prompt, keys.row_keys(0, jnp.arange(i * b, (i + 1) * b)),
                        np.ones((b,), np.bool_))) for i, source in enumerate(workload.sources)]
    args = self._batches[0]
    # As long for plain decoding: attention then reads as many slots on both sides.
    capacity = capacity_for(workload.max_decode_len, workload.gamma)
    begin = time.perf_counter()
    with precision.matmul_precision(workload.dtype):
      self._start = loop.start.lower(method, self._weights, *args, capacity).compile()
      state = jax.eval_shape(
          lambda *args: loop.start(method, *args, capacity), self._weights, *args)
      self.program = loop.run.lower(
          method, self._weights, state, self._rules, self._exits).compile()
    self.compile_s = time.perf_counter() - begin
    self.state: DecodeState | None = None
    self.ids: list[list[int]] = []
    self.iterations = 0

  def start(self, batch: int = 0) -> DecodeState:
    """A fresh state, computed."""
    return jax.block_until_ready(self._start(self._weights, *self._batches[batch]))

  def run(self, state: DecodeState) -> DecodeState:
    """Runs the loop on a state and waits; the state is used up."""
    return jax.block_until_ready(self.program(self._weights, state, self._rules, self._exits))

  def per_iteration(self) -> float:
    """Seconds of one loop iteration: a sample for `timing.interleave`."""
    seconds = 0.0
    for _ in self.states():
      seconds += self._last_s
    return seconds / self.iterations

  def states(self) -> Iterator[DecodeState]:
    """Decodes batch by batch and gives the state of each."""
    self.ids, self.iterations = [], 0
    for batch in range(len(self._batches)):
      state = self.start(batch)
      begin = time.perf_counter()
      self.state = self.run(state)
      self._last_s = time.perf_counter() - begin
      self._keep()
      yield self.state

  def whole(self) -> float:
    """Seconds of encoding and decoding everything; likewise."""
    self.ids, self.iterations = [], 0
    begin = time.perf_counter()
    for args in self._batches:
      self.state = self.run(self._start(self._weights, *args))
      self._keep()
    return time.perf_counter() - begin

  def on(self, source: Source) -> list[list[int]]:
    """Ids from another source of the same shape."""
    _, *others = self._batches[0]
    self.ids, self.iterations = [], 0
    self.state = self.run(self._start(self._weights, jax.device_put(source), *others))
    self._keep()
    return self.ids

  def _keep(self) -> None:
    ids, length = np.asarray(self.state.ids), np.asarray(self.state.length)
    self.ids += [row[1:n].tolist() for row, n in zip(ids, length, strict=True)]
    self.iterations += int(self.state.iterations)

  @property
  def tokens(self) -> int:
    """Of the last pass."""
    return sum(map(len, self.ids))

  @property
  def tokens_per_iteration(self) -> float:
    """Tokens of all rows in the last pass, over its iterations."""
    return self.tokens / self.iterations


def score(workload: Workload, part: Part, tokens: int) -> Callable[[int], object]:
  """Calls of one model alone: `tokens` tokens in the middle of a decode.

  As in decoding they follow each other within one program: called from the host one by one,
  they would take up to a quarter longer than the same calls take in a loop.

  Returns:
    What runs so many calls in a row and waits. The cache is donated and goes round.
  """
  scorer, b, length = part.scorer, workload.batch_size, _middle(workload)

  def calls(weights: Any, at: Array, cache: Any, count: Array) -> tuple[Array, Any]:
    def one(_: Array, carried: tuple[Array, Any]) -> tuple[Array, Any]:
      ids, cache = carried
      logits, _, cache = scorer.score(weights, ids, scorer.rollback(cache, at))
      # A call needs what the one before it found, as in a decode.
      return (logits[..., 0] > 0).astype(jnp.int32) + 1, cache

    return lax.fori_loop(0, count, one, (jnp.ones((b, tokens), jnp.int32), cache))

  at, cache = jnp.full((b,), length, jnp.int32), _cache(workload, part)
  with precision.matmul_precision(workload.dtype):
    program = jax.jit(calls, donate_argnums=2).lower(
        part.weights, at, cache, np.int32(1)).compile()

  def several(count: int) -> None:
    nonlocal cache
    ids, cache = program(part.weights, at, cache, np.int32(count))
    jax.block_until_ready(ids)

  return several


def propose(workload: Workload) -> Callable[[int], object]:
  """The drafter's whole proposal of gamma tokens, in the middle of a decode.

  And being told, of one token before, that none stood: it then has what it has in a loop.

  Returns:
    What runs so many proposals in a row, within one program, and waits.
  """
  method, b = workload.method(workload.gamma), workload.batch_size
  drafter, gamma = method.drafter, workload.gamma
  capacity = capacity_for(workload.max_decode_len, gamma)
  context = Context(
      ids=jnp.ones((b, capacity), jnp.int32), length=jnp.full((b,), _middle(workload)),
      row_keys=keys.row_keys(0, jnp.arange(b)), rules=workload.rules(),
      wanted=jnp.full((b,), gamma))
  none, hidden = jnp.zeros((b,), jnp.int32), _hidden(workload, gamma)
  params = workload.drafter.params

  def told(params: Any, context: Context, state: Any, hidden: Array) -> Any:
    before = context.replace(length=context.length - 1)
    return drafter.commit(params, state, before, none, hidden)

  def calls(params: Any, context: Context, state: Any, hidden: Array,
            count: Array) -> tuple[Any, Any]:
    def one(_: Array, carried: tuple[Array, Any]) -> tuple[Array, Any]:
      last, state = carried
      # A proposal needs what the one before it found, as in a decode.
      ids = context.ids.at[:, 0].set(jnp.minimum(last, 1))
      proposal, state = drafter.propose(params, state, context.replace(ids=ids), gamma)
      return proposal.tokens[:, -1], told(params, context, state, hidden)

    return lax.fori_loop(0, count, one, (jnp.zeros((b,), jnp.int32), state))

  def begin(params: Any, context: Context, source: Source, hidden: Array) -> Any:
    return told(params, context, drafter.init(params, source, capacity), hidden)

  with precision.matmul_precision(workload.dtype):
    state = jax.jit(begin)(params, context, workload.source, hidden)
    program = jax.jit(calls, donate_argnums=2).lower(
        params, context, state, hidden, np.int32(1)).compile()

  def several(count: int) -> None:
    nonlocal state
    tokens, state = program(params, context, state, hidden, np.int32(count))
    jax.block_until_ready(tokens)

  return several


def _middle(workload: Workload) -> int:
  return 1 + workload.max_decode_len // 2


def _hidden(workload: Workload, gamma: int) -> Array:
  """What the target would tell a drafter, in shape."""
  target, capacity = workload.target, capacity_for(workload.max_decode_len, workload.gamma)

  def verify(weights: Any, source: Source, tokens: Array) -> Array:
    return target.scorer.score(weights, tokens, target.scorer.init(weights, source, capacity))[1]

  tokens = jnp.zeros((workload.batch_size, gamma + 1), jnp.int32)
  like = jax.eval_shape(verify, target.weights, workload.source, tokens)
  return jnp.zeros(like.shape, like.dtype)


def _cache(workload: Workload, part: Part) -> Any:
  capacity = capacity_for(workload.max_decode_len, workload.gamma)
  init = jax.jit(part.scorer.init, static_argnums=2)
  with precision.matmul_precision(workload.dtype):
    return init(part.weights, workload.source, capacity)


def accepted_lengths(workload: Workload) -> tuple[list[int], dict[str, Any]]:
  """How many drafted tokens stood, iteration by iteration, and the totals.

  Returns:
    How often 0, 1, ... gamma tokens stood, over the iterations of all rows; and `tokens`,
    `target_calls`, `tested`, `accepted`, `alpha`, `tokens_per_call`, `iterations` and
    the ids.
  """
  decode = Decode(workload, workload.gamma, trace=True)
  counts, totals = np.zeros(workload.gamma + 1, int), np.zeros(3, int)
  for state in decode.states():
    stats, trace = jax.device_get((state.stats, state.trace))
    used = np.arange(trace.num_accepted.shape[1]) < stats.target_calls[:, None]
    counts += np.bincount(trace.num_accepted[used], minlength=workload.gamma + 1)
    totals += [x.sum() for x in (stats.target_calls, stats.tested, stats.accepted)]
  calls, tested, accepted = map(int, totals)
  return counts.tolist(), {
      "ids": decode.ids, "tokens": decode.tokens, "target_calls": calls, "tested": tested,
      "accepted": accepted, "alpha": accepted / tested if tested else None,
      "tokens_per_call": decode.tokens / calls, "iterations": decode.iterations}
