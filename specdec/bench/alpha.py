"""`specdec alpha`: E[min(p, q)] on what a target generated, and whether runs keep to it.

Section 4.2 of the paper: alpha is the mean of `beta = sum_x min(p(x), q(x))` over positions of
outputs of the target itself, without speculating. The target's distributions are computed once
per batch, in one call over whole outputs, and serve all drafters and leniences.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import flax.struct
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from specdec.analysis import estimates
from specdec.analysis.estimates import Calibration
from specdec.bench import records
from specdec.bench import timing
from specdec.core import keys
from specdec.core import probs
from specdec.core import rules as rules_lib
from specdec.core.contracts import Context
from specdec.core.contracts import Drafter
from specdec.core.contracts import Scorer
from specdec.core.state import Trace
from specdec.drafters import align
from specdec.drafters.cascade import CascadeDrafter
from specdec.drafters.transformer import TransformerDrafter
from specdec.engine import job as job_lib
from specdec.engine import models
from specdec.engine.batches import run_batch
from specdec.engine.job import Batch
from specdec.engine.job import Job
from specdec.engine.pairs import Pair
from specdec.errors import SpecdecError
from specdec.types import Rules
from specdec.types import Sampling
from specdec.types import Source

Array = jax.Array
PyTree = Any


@flax.struct.dataclass
class Outputs:
  """Outputs of a target, and what it said of each position of them.

  Attributes:
    ids: int32 [B, T + 1], the start id, the tokens, then anything.
    length: int32 [B], tokens of each, without the start id.
    sampling: with which p and q are made of logits.
    probs: float32 [B, T, V], p of the position of each token.
    logits: float32 [B, T, V].
    hidden: [B, T, D], the target's hidden states that these came of.
  """

  ids: Array
  length: Array
  sampling: Sampling
  probs: Array
  logits: Array
  hidden: Array


@functools.partial(jax.jit, static_argnums=0)
def score(scorer: Scorer, weights: PyTree, source: Source, ids: Array, length: Array,
          sampling: Sampling) -> Outputs:
  """What a target says of outputs, in one call; arguments are those of `Outputs`."""
  logits, hidden = _teacher_forced(scorer, weights, source, ids)
  return Outputs(ids, length, sampling, probs.distribution(logits, sampling), logits, hidden)


def betas(drafter: Drafter, params: PyTree, source: Source, outputs: Outputs, leniences: Array,
          depth: int = 1) -> Array:
  """Acceptance rates of a drafter on outputs.

  Entry [b, t, i, k] is the probability that the i-th token of a draft that begins at position t
  is accepted at lenience k, when the tokens before it are those of the output.
  For most drafters that goes by the tokens before it alone, whereever the draft began, and
  i = 0 says everything. It does not for those that draft a piece as a whole (they are the ones
  that abstain): of these it is asked for up to `depth` tokens.

  Args:
    drafter: of any kind; a cascade drafts from its middle model's distribution.
    params: of the drafter.
    source: of the outputs.
    outputs: from `score`.
    leniences: float32 [K].
    depth: at least 1.

  Returns:
    float32 [B, T, I, K]; NaN where nothing is drafted, and behind the outputs.
  """
  if isinstance(drafter, CascadeDrafter):
    params = params.scorer
  if isinstance(drafter, CascadeDrafter | TransformerDrafter):
    return _of_model(drafter.scorer, params, source, outputs, leniences)
  depth = min(depth, getattr(drafter, "max_gamma", depth)) if drafter.abstains else 1
  return _of_proposals(drafter, depth, params, source, outputs, leniences)


@functools.partial(jax.jit, static_argnums=0)
def _of_model(scorer: Scorer, params: PyTree, source: Source, outputs: Outputs,
              leniences: Array) -> Array:
  """In one call: q is a function of the tokens before."""
  logits, _ = _teacher_forced(scorer, params, source, outputs.ids)
  q = probs.distribution(align.align(logits, outputs.probs.shape[-1]), outputs.sampling)
  beta = _accepted(q, outputs.probs, outputs.logits, outputs.sampling, leniences)
  inside = jnp.arange(q.shape[1]) < outputs.length[:, None]
  return jnp.where(inside[..., None], beta, jnp.nan)[:, :, None]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _of_proposals(drafter: Drafter, depth: int, params: PyTree, source: Source, outputs: Outputs,
                  leniences: Array) -> Array:
  """By asking for a draft at every position, as if the one before had been refused."""
  ids, (batch, size) = outputs.ids, outputs.probs.shape[:2]
  place = jnp.arange(depth)
  behind = lambda x: jnp.pad(x, ((0, 0), (0, depth)) + ((0, 0),) * (x.ndim - 2))
  p, logits, hidden, tokens = map(
      behind, (outputs.probs, outputs.logits, outputs.hidden, ids[:, 1:]))
  none = jnp.zeros((batch,), jnp.int32)
  rules = Rules(outputs.sampling, rules_lib.limits(batch, 2**30, ()), rules_lib.controls(batch),
                rules_lib.speculation(batch))
  row_keys = keys.row_keys(0, jnp.arange(batch))

  def at(state: PyTree, begin: Array) -> tuple[PyTree, Array]:
    following = lambda x, count: lax.dynamic_slice_in_dim(x, begin, count, 1)
    context = Context(
        ids=jnp.where(jnp.arange(ids.shape[1]) <= begin, ids, 0), length=none + begin + 1,
        row_keys=row_keys, rules=rules, wanted=none + depth)
    proposal, state = drafter.propose(params, state, context, depth)
    drafted = (place < proposal.num_drafted[:, None]) & (
        begin + place < outputs.length[:, None])
    q = proposal.probs
    if q is None:
      q = jax.nn.one_hot(proposal.tokens, p.shape[-1])
      # What it drafts next is for the case that the token before was right.
      same = jnp.cumprod(proposal.tokens == following(tokens, depth), 1)
      drafted &= jnp.pad(same[:, :-1], ((0, 0), (1, 0)), constant_values=1) > 0
    beta = _accepted(q, following(p, depth), following(logits, depth), outputs.sampling, leniences)
    state = drafter.commit(params, state, context, none, following(hidden, depth + 1))
    return state, jnp.where(drafted[..., None], beta, jnp.nan)

  _, found = lax.scan(at, drafter.init(params, source, ids.shape[1] + depth), jnp.arange(size))
  return found.swapaxes(0, 1)


def _teacher_forced(scorer: Scorer, weights: PyTree, source: Source,
                    ids: Array) -> tuple[Array, Array]:
  fed = ids[:, :-1]
  logits, hidden, _ = scorer.score(weights, fed, scorer.init(weights, source, fed.shape[1]))
  return logits.astype(jnp.float32), hidden


def _accepted(q: Array, p: Array, logits: Array, sampling: Sampling, leniences: Array) -> Array:
  """`sum_x min(q, p / l)`, or of a greedy row the q of what is likely enough: [B, N, K].

  See `core.verify.LenientVerifier`. Without lenience a greedy p is one-hot, and no tie is
  accepted.
  """
  greedy = probs.is_greedy(sampling)[:, None]

  def one(lenience: Array) -> Array:
    usual = jnp.minimum(q, p / lenience).sum(-1)
    close = logits - logits.max(-1, keepdims=True) >= jnp.log(lenience)
    return jnp.where(greedy & (lenience < 1), jnp.where(close, q, 0.0).sum(-1), usual)

  return jnp.moveaxis(lax.map(one, leniences), 0, -1)


@dataclasses.dataclass(frozen=True)
class Measured:
  """A drafter's acceptance rates.

  Attributes:
    drafter: as asked for.
    betas: float32 [n, I, K] per output, of n tokens each; see `betas`.
  """

  drafter: str
  betas: list[np.ndarray]

  def row(self, lenience: float, index: int, seed: int) -> dict[str, Any]:
    """What a record says of one lenience, the `index`-th: alpha is that of first tokens."""
    first = [b[:, 0, index] for b in self.betas]
    found = estimates.mean(first, seed=seed)
    tokens = sum(map(len, first))
    count = sum(int(np.count_nonzero(~np.isnan(b))) for b in first)
    out: dict[str, Any] = {"lenience": lenience}
    if found is not None:
      out |= {"alpha": timing.rounded(found.value),
              "alpha_interval": timing.rounded([found.low, found.high])}
    depth = self.betas[0].shape[1] if self.betas else 1
    out["details"] = timing.rounded({
        "interval": "95 %, bootstrap over outputs", "outputs": len(first), "tokens": tokens,
        "drafted": count, "by_position": estimates.profile(first)})
    if depth > 1:
      by_index = (estimates.mean([b[:, i, index] for b in self.betas], seed=seed)
                  for i in range(depth))
      out["details"]["by_place_in_draft"] = timing.rounded(
          [None if m is None else {"mean": m.value, "interval": [m.low, m.high]}
           for m in by_index])
    return out


def measure(pair: Pair, texts: Sequence[str], specs: Sequence[str] = (), *,
            leniences: Sequence[float] = (1.0,), task: str | None = None, gamma: int = 4,
            check: bool = False, progress: Callable[[str], None] = lambda message: None,
            **settings: Any) -> dict[str, Any]:
  """Measures alpha of drafters on what the target makes of texts.

  Args:
    pair: with a target; the drafter that it came with is the "own" one.
    texts: one or more.
    specs: drafters, see `engine.drafter_specs`; the pair's own by default.
    leniences: the paper's l, in (0, 1].
    task: see `generate`.
    gamma: how far into a draft the profile of a drafter goes that drafts pieces as a whole;
      tokens per target call of the check.
    check: decode with each drafter too, and compare how many tokens stood with what their
      distributions say.
    progress: told what goes on.
    **settings: temperature, top_k, top_p, max_decode_len, max_source_len, batch_size, seed.

  Returns:
    A record, see `analysis.records`.

  Raises:
    SpecdecError: there is no text, a setting is out of range, or a drafter is not for this
      target.
  """
  if not texts:
    raise SpecdecError("there is nothing to measure; expected one text or more")
  leniences = tuple(dict.fromkeys(map(float, leniences)))
  if not leniences or not all(0 < x <= 1 for x in leniences):
    raise SpecdecError(f"leniences are {list(leniences)}; expected numbers above 0, up to 1")
  job = job_lib.from_texts(pair, texts, task, {**settings, "mode": "plain", "num_decodes": 1})
  if not isinstance(job.settings.temperature, int | float):
    raise SpecdecError("temperature has a value per input; expected one number for all")
  specs = list(dict.fromkeys(specs)) or [pair.drafter.name]
  drafting = {s: pair if s == pair.drafter.name else pair.with_drafter(s) for s in specs}
  found: dict[str, dict[int, np.ndarray]] = {spec: {} for spec in specs}
  windows = job_lib.plan(job, in_order=job.settings.refills)
  batches = [batch for window in windows for batch in window]
  for number, batch in enumerate(batches, 1):
    progress(f"batch {number} of {len(batches)}: the target's outputs")
    fetched = run_batch(job, batch)
    scored = _Scored(job, batch, fetched)
    for spec, with_it in drafting.items():
      progress(f"batch {number} of {len(batches)}: {spec}")
      for example, values in scored.betas(with_it, leniences, gamma).items():
        found[spec][example] = values
  rows, checks = [], []
  named = task or (next(iter(pair.tasks), "text") if task is None else "text")
  for spec in specs:
    measured = Measured(spec, [found[spec][i] for i in sorted(found[spec])])
    for index, lenience in enumerate(leniences):
      rows.append({"task": named, "drafter": spec, "temperature": job.settings.temperature,
                   **measured.row(lenience, index, job.settings.seed)})
    for lenience in leniences if check else ():
      progress(f"{spec}: decoding with it")
      done = calibrate(drafting[spec], texts, lenience=lenience, task=task, gamma=gamma, **settings)
      checks.append({"drafter": spec, "lenience": lenience, "gamma": gamma,
                     **timing.rounded(done.to_dict())})
  environment, config = records.environment(), pair.target.config
  return {
      "kind": "measurements", "version": 1, **environment, "device": records.device(environment),
      "target": records.model_name(pair.target.name),
      "weights": "widened" if pair.target.widened else "trained",
      "dtype": config.dtype, "batch_size": job.settings.batch_size, "settings": dict(settings),
      "rows": rows, "calibration": checks}


def calibrate(pair: Pair, texts: Sequence[str], *, lenience: float = 1.0, task: str | None = None,
              gamma: int = 4, **settings: Any) -> Calibration:
  """Decodes speculatively, scores the outputs afresh, and compares.

  A drafted token that was tested stood behind tokens of the output alone, so that what p
  and q were there follows from the output, without the loop, its caches and its verifier.

  Args:
    pair: target and drafter.
    texts: one or more.
    lenience: below 1 the verifier is the lenient one.
    task: see `generate`.
    gamma: at least 1.
    **settings: as in `measure`.
  """
  kind = {} if lenience == 1 else {"verifier": "lenient", "lenience": lenience}
  job = job_lib.from_texts(pair, texts, task, {
      **settings, **kind, "gamma": gamma, "num_decodes": 1}, trace=True)
  accepted, rates = [], []
  for window in job_lib.plan(job, in_order=job.settings.refills):
    for batch in window:
      fetched = run_batch(job, batch)
      scored = _Scored(job, batch, fetched).betas(pair, (lenience,), gamma)
      for row, example in enumerate(batch.example_ids):
        stood, beta = tested(fetched["trace"], row, int(fetched["target_calls"][row]),
                             scored[example][:, :, 0])
        accepted.append(stood)
        rates.append(beta)
  return Calibration.of(np.concatenate(accepted), np.concatenate(rates))


def tested(trace: Trace, row: int, calls: int, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Which tested tokens of a row stood, and their acceptance rates.

  Args:
    trace: of a batch, as NumPy arrays.
    row: in it.
    calls: target calls of the row.
    rates: [n, I], from `betas` of the row's output, at one lenience.

  Returns:
    bool [N] and float [N].
  """
  stood, found, begin = [], [], 0
  for i in range(calls):
    accepted, drafted = int(trace.num_accepted[row, i]), int(trace.num_drafted[row, i])
    for place in range(min(accepted + 1, drafted)):
      stood.append(place < accepted)
      # A rate that goes by the tokens before it is the same wherever the draft began.
      at = (begin, place) if rates.shape[1] > 1 else (begin + place, 0)
      found.append(rates[at] if at[0] < rates.shape[0] else np.nan)
    begin += int(trace.num_committed[row, i])
  return np.array(stood, bool), np.array(found, np.float64)


class _Scored:
  """A decoded batch with the target's distributions, in use for any number of drafters.

  Args:
    job: the batch's.
    batch: of inputs.
    fetched: from `run_batch`.
  """

  def __init__(self, job: Job, batch: Batch, fetched: dict[str, Any]):
    self._batch, self._scope = batch, job.pair.target.scope
    encoded = [job.encoded[i] for i in batch.example_ids]
    self._source = models.make_source(
        [e.ids for e in encoded], width=job_lib.source_width(encoded), rows=batch.size,
        begin=[e.begin for e in encoded])
    length = np.maximum(fetched["length"] - 1, 0)
    size = job_lib.power_of_two(max(int(length.max()), 1), 8)
    ids = np.zeros((batch.size, size + 1), np.int32)
    kept = min(size + 1, fetched["ids"].shape[1])
    ids[:, :kept] = fetched["ids"][:, :kept]
    settings, count = job.settings, len(job.encoded)
    # Rows that only fill the batch are decoded at 0, and then left out.
    column = lambda name: np.pad(settings.per_row(name, count)[batch.example_ids],
                                 (0, batch.size - len(batch.example_ids)))
    target, sampling = job.pair.target, rules_lib.sampling(
        batch.size, *map(column, ("temperature", "top_k", "top_p")))
    with self._scope():
      self._outputs = score(target.scorer, target.weights, self._source, ids, length, sampling)

  def betas(self, pair: Pair, leniences: Sequence[float],
            depth: int) -> dict[int, np.ndarray]:
    """float32 [n, I, K] by the input's place in the data."""
    with self._scope():
      found = np.asarray(betas(pair.drafter.drafter, pair.drafter.params, self._source,
                               self._outputs, jnp.asarray(leniences, jnp.float32), depth))
    length = np.asarray(self._outputs.length)
    return {example: found[row, :length[row]]
            for row, example in enumerate(self._batch.example_ids)}
