"""What is measured: a target and a drafter, what they decode from, and how much."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
import numpy as np

from specdec.core import rules as rules_lib
from specdec.core.contracts import Drafter
from specdec.core.probs import MIN_TEMPERATURE
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.drafters.transformer import TransformerDrafter
from specdec.engine import drafter_specs
from specdec.engine import drafters
from specdec.engine import job as job_lib
from specdec.engine import models
from specdec.engine import pairs
from specdec.engine import precision
from specdec.errors import SpecdecError
from specdec.models.t5 import sizes
from specdec.models.t5 import weights as weights_lib
from specdec.models.t5.config import T5Config
from specdec.models.t5.scorer import T5Scorer
from specdec.types import Rules
from specdec.types import Source


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
  """A T5 of the workload.

  Attributes:
    name: size or path.
    scorer: static settings.
    weights: decode weights.
  """

  name: str
  scorer: T5Scorer
  weights: Any

  @property
  def bytes_per_call(self) -> int:
    """Bytes of weights that a call of one token reads."""
    return weights_lib.bytes_per_call(self.weights, self.scorer.config)


@dataclasses.dataclass(frozen=True, eq=False)
class Drafting:
  """What drafts.

  Attributes:
    name: size, or as in `engine.drafter_specs`.
    drafter: static settings.
    params: what it takes.
    part: the T5 that it consists of, whose calls can be measured alone; None for all else.
  """

  name: str
  drafter: Drafter
  params: Any
  part: Part | None = None

  @property
  def bytes_per_call(self) -> int | None:
    """Those of its T5; None without one."""
    return self.part and self.part.bytes_per_call


@dataclasses.dataclass(frozen=True, eq=False)
class Workload:
  """Attributes:
    target: the model whose outputs are wanted.
    drafter: the approximation model; a `Part` that is given is wrapped.
    source: encoder inputs of `B` rows.
    eos_ids: ids that end a row; none for random weights, whose outputs end nowhere.
    gamma: tokens drafted per iteration.
    max_decode_len: tokens per row.
    random: the weights are random, so that acceptance says nothing.
    widened: a trained pair at the cost of larger models, see `bench.widen`.
    temperature: of all rows; 1e-4 and below is greedy.
    task: of the inputs, None for none in particular.
    more: further batches of the shape of `source`, decoded after it.
  """

  target: Part
  drafter: Drafting
  source: Source
  eos_ids: tuple[int, ...]
  gamma: int
  max_decode_len: int
  random: bool
  widened: bool = False
  temperature: float = 0.0
  task: str | None = None
  more: tuple[Source, ...] = ()

  def __post_init__(self):
    if isinstance(self.drafter, Part):
      part = self.drafter
      drafter = TransformerDrafter(part.scorer, self.target.scorer.vocab_size)
      object.__setattr__(self, "drafter", Drafting(part.name, drafter, part.weights, part))

  @property
  def sources(self) -> tuple[Source, ...]:
    """All batches, in the order in which they are decoded."""
    return (self.source, *self.more)

  @property
  def greedy(self) -> bool:
    """Whether its temperature is one that stands for the likeliest token."""
    return self.temperature <= MIN_TEMPERATURE

  @property
  def weights_are(self) -> str:
    """What a record calls them."""
    return "random" if self.random else "widened" if self.widened else "trained"

  @property
  def batch_size(self) -> int:
    """Rows of a batch."""
    return self.source.ids.shape[0]

  @property
  def dtype(self) -> str:
    """That the target computes in."""
    return self.target.scorer.config.dtype

  def method(self, gamma: int, trace: bool = False) -> Method:
    """The decoding method at a gamma; 0 is plain decoding."""
    return Method(self.target.scorer, self.drafter.drafter if gamma else None, gamma, trace=trace)

  def weights(self, gamma: int) -> Weights:
    """What the method at a gamma takes."""
    return Weights(self.target.weights, self.drafter.params if gamma else None)

  def rules(self) -> Rules:
    """Without controls."""
    b = self.batch_size
    return Rules(rules_lib.sampling(b, self.temperature),
                 rules_lib.limits(b, self.max_decode_len, self.eos_ids),
                 rules_lib.controls(b), rules_lib.speculation(b))

  def rows(self, begin: int, end: int) -> "Workload":
    """The same with some of the rows only."""
    part = jax.tree.map(lambda x: x[begin:end], self.source)
    return dataclasses.replace(self, source=part, more=())


def from_sizes(target: str, drafter: str, *, gamma: int, batch_size: int, source_len: int,
               max_decode_len: int, dtype: str | None = None, seed: int = 0) -> Workload:
  """Random weights at the shapes of public T5 sizes, on random inputs.

  Args:
    target: a size.
    drafter: a size, or a drafter that needs no weights: copy or uniform, with options.
    gamma: tokens drafted per iteration.
    batch_size: rows.
    source_len: tokens of each.
    max_decode_len: tokens per row.
    dtype: by default what suits the device.
    seed: of weights and inputs.

  Raises:
    SpecdecError: there is no such size or drafter.
  """
  dtype = dtype or precision.default_dtype()
  wordy = drafter.partition(":")[0] in drafter_specs.WORDS
  small = None if wordy else sizes.load(drafter)
  large = sizes.load(target)
  source = random_source(batch_size, source_len, large.vocab_size, seed)
  # What is misspelt is found before any weights are drawn.
  drafting = None if small else _without_weights(drafter, large.vocab_size)

  def part(name: str, config: T5Config, seed: int) -> Part:
    scorer = T5Scorer(config.replace(dtype=dtype))
    weights = scorer.prepare(random_params(scorer.config, seed))
    return Part(name, scorer, jax.block_until_ready(weights))

  first = part(target, large, seed)
  return Workload(first, drafting or part(drafter, small, seed + 1), source, (), gamma,
                  max_decode_len, random=True)


def _without_weights(spec: str, vocab_size: int) -> Drafting:
  parts = drafter_specs.plan(drafter_specs.parse(spec), drafter_specs.Known())
  if len(parts) > 1:
    raise SpecdecError(f"--drafter_size is {spec!r}; expected a single drafter: a cascade needs a "
                       "pair of models (--pair, --drafter)")
  loaded = drafters.without_weights(parts[0], vocab_size)
  return Drafting(loaded.name, loaded.drafter, loaded.params)


def from_pair(pair: pairs.Pair, texts: Sequence[str] = (), *, gamma: int, batch_size: int,
              source_len: int, max_decode_len: int, task: str | None = None,
              temperature: float = 0.0, seed: int = 0) -> Workload:
  """A pair on given texts, or on random ids when there are none.

  Args:
    pair: target and drafter.
    texts: decoded `batch_size` at a time, one batch after the other; those of the first are
      taken in turn until the last batch is full.
    gamma: tokens drafted per iteration.
    batch_size: rows.
    source_len: of random ids; texts are cut to the pair's own limit.
    max_decode_len: tokens per row; with random ids nothing ends before.
    task: whose prefix goes before each text.
    temperature: of all rows.
    seed: of the random ids.

  Raises:
    SpecdecError: the task is unknown, or the drafter drafts fewer tokens than gamma.
  """
  target, drafter = _part(pair.target), pair.drafter
  drafting = Drafting(drafter.name, drafter.drafter, drafter.params,
                      drafter.model and _part(drafter.model))
  job_lib.make_settings(pair, {"gamma": gamma})
  eos: tuple[int, ...] = ()
  if texts:
    encoded = job_lib.from_texts(
        pair, list(texts), task, {"max_decode_len": max_decode_len}).encoded
    width, batches = max(len(row.ids) for row in encoded), -(-len(texts) // batch_size)
    rows = [encoded[i % len(encoded)] for i in range(batches * batch_size)]
    sources = [_source(rows[i:i + batch_size], width) for i in range(0, len(rows), batch_size)]
    eos = (pair.vocabulary.eos_id,)
    task = task or next(iter(pair.tasks), None) if task != "" else None
  else:
    sources = [random_source(batch_size, source_len, len(pair.vocabulary), seed)]
    task = None
  return Workload(target, drafting, sources[0], eos, gamma, max_decode_len, random=False,
                  widened=pair.target.widened, temperature=temperature, task=task,
                  more=tuple(sources[1:]))


def _source(rows: Sequence[job_lib.Encoded], width: int) -> Source:
  return models.make_source([row.ids for row in rows], width=width,
                            begin=[row.begin for row in rows])


def _part(model: models.Model) -> Part:
  return Part(model.name, model.scorer, model.weights)


def random_source(batch_size: int, source_len: int, vocab_size: int, seed: int) -> Source:
  """Rows of `source_len` random ids, none of them padding or EOS."""
  rng = np.random.default_rng(seed)
  ids = rng.integers(min(2, vocab_size - 1), vocab_size, (batch_size, source_len))
  return Source(ids.astype(np.int32), np.full((batch_size,), source_len, np.int32))


def random_params(config: T5Config, seed: int = 0) -> dict:
  """Parameters in T5X's layout, drawn with the variances that T5 starts from."""
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    name = path[-1].key
    if name == "scale":
      return np.ones(leaf.shape, np.float32)
    variance = 1.0
    if name == "kernel":
      variance = 1 / leaf.shape[0]
      # T5 has no 1/sqrt(head size) in its attention; its query weights are smaller.
      if path[-2].key == "query":
        variance /= config.head_dim
    return np.float32(variance ** 0.5) * rng.standard_normal(leaf.shape, np.float32)

  return jax.tree_util.tree_map_with_path(draw, weights_lib.abstract(config))
