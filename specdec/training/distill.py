"""Distillation: a drafter that learns to say what the target says.

`outputs` makes the examples, `objectives` says what is minimised, `runs` minimises it.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec.core import keys
from specdec.core import loop
from specdec.core import rules as rules_lib
from specdec.core.state import Exits
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.core.state import capacity_for
from specdec.engine.models import Model
from specdec.engine.precision import matmul_precision
from specdec.errors import SpecdecError
from specdec.models.t5 import weights as weights_lib
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import T5
from specdec.models.t5.scorer import T5Scorer
from specdec.training import precision
from specdec.training import runs
from specdec.training.batches import Batch
from specdec.training.batches import Buckets
from specdec.training.batches import Example
from specdec.training.batches import shifted
from specdec.training.objectives import Heads
from specdec.training.objectives import Objective
from specdec.training.objectives import SmallT5
from specdec.types import Rules
from specdec.types import Source

Params = Any

# One in so many examples is held out, and no more than are needed to tell alphas apart.
_HELD_OUT, _MOST_HELD_OUT = 20, 256


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Settings of one distillation.

  Attributes:
    steps: updates.
    loss: one of `losses.NAMES`.
    on_policy: share of the batches, 0 to 1, whose targets are sampled from the drafter
      itself, and judged by the target; the others are the target's outputs.
    batch_tokens: slots of a batch, source and target together.
    learning_rate: peak; relative to the size of a parameter.
    seed: of initial weights, order and samples.
    every: steps between evaluations.
    patience: evaluations without a higher alpha after which to stop; 0 never does.
  """

  steps: int
  loss: str = "forward_kl"
  on_policy: float = 0.0
  batch_tokens: int = 4096
  learning_rate: float = 5e-2
  seed: int = 0
  every: int = 100
  patience: int = 0


def split(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
  """Training and held-out examples; equal ones are on one side.

  Raises:
    SpecdecError: there are fewer than two.
  """
  unique = list(dict.fromkeys((tuple(s), tuple(t)) for s, t in examples))
  if len(unique) < 2:
    raise SpecdecError(f"there {'is' if len(unique) == 1 else 'are'} {len(unique) or 'no'} "
                       f"different output{'s' * (len(unique) != 1)} of the target to learn from; "
                       "expected two or more, one of them to measure alpha on")
  stride = max(_HELD_OUT, -(-len(unique) // _MOST_HELD_OUT))
  return [e for i, e in enumerate(unique) if i % stride], unique[::stride]


def teacher_of(model: Model) -> tuple[T5, Params]:
  """The target's network and weights for scoring whole batches."""
  dot_general = precision.dot_general()
  if dot_general is jax.lax.dot_general or model.config.dtype != "float32":
    # As they are: no copy.
    return T5(model.config, fused=True, out_in=model.scorer.out_in), model.weights
  return (T5(model.config, dot_general=dot_general),
          weights_lib.restore(model.weights, model.config))


def student_config(config: T5Config) -> T5Config:
  """A shape as it is trained: in float32, without dropout."""
  return config.replace(dtype="float32", dropout_rate=0.0)


def initial(config: T5Config, seed: int) -> Params:
  """Random parameters of a network."""
  ids = jnp.ones((1, 8), jnp.int32)
  make = jax.jit(lambda key: T5(config).init(key, ids, ids > 0, ids)["params"])
  return make(jax.random.key(seed))


def transformer(target: Model, examples: Sequence[Example], config: T5Config, recipe: Recipe,
                directory: pathlib.Path, params: Params | None = None,
                settings: dict[str, Any] | None = None, **callbacks: Callable) -> runs.Outcome:
  """Distils a small T5 from the target's outputs.

  Args:
    target: M_p.
    examples: pairs of source ids and the target's output ids.
    config: of the drafter, from `student_config`.
    recipe: settings.
    directory: for checkpoints; a run that was stopped goes on in it.
    params: initial ones, in T5X's layout; random when None.
    settings: what else must be the same for a run to go on, JSON-ready.
    **callbacks: `report` and `tick` of `runs.train`.

  Returns:
    The parameters of the highest alpha, and how the run ended.

  Raises:
    SpecdecError: there are too few outputs, or the folder holds another run.
  """
  network, frozen = teacher_of(target)
  objective = SmallT5(T5(config, dot_general=precision.dot_general()), network, recipe.loss)

  def own_samples(step: int, params: Params, batch: Batch) -> Batch:
    if np.random.default_rng((recipe.seed, 1, step)).random() >= recipe.on_policy:
      return batch
    return on_policy(config, params, batch, recipe.seed, step, target.vocabulary.eos_id)

  params = initial(config, recipe.seed) if params is None else params
  return _train(objective, runs.Schedule(recipe.steps, recipe.learning_rate), params, frozen,
                examples, recipe, directory, {**(settings or {}), "config": config.to_dict()},
                own_samples, callbacks)


def heads(target: Model, examples: Sequence[Example], num_heads: int, recipe: Recipe,
          directory: pathlib.Path, params: Params | None = None,
          settings: dict[str, Any] | None = None, **callbacks: Callable) -> runs.Outcome:
  """Trains heads on the target's hidden states; the target itself stays as it is.

  Args:
    target: M_p.
    examples: pairs of source ids and the target's output ids.
    num_heads: how many.
    recipe: settings; `on_policy` is not looked at.
    directory: for checkpoints.
    params: initial ones, see `drafters.heads.HeadsDrafter`; when None, heads that say
      again what the target has said.
    settings: see `transformer`.
    **callbacks: likewise.

  Raises:
    SpecdecError: see `transformer`.
  """
  network, frozen = teacher_of(target)
  size = target.config.emb_dim
  if params is None:
    params = {"kernel": np.zeros((num_heads, size, 2 * size), np.float32),
              "bias": np.zeros((num_heads, size), np.float32)}
  # Adafactor goes by the size of a parameter, and these begin at zero.
  schedule = runs.Schedule(recipe.steps, recipe.learning_rate, rule="adam")
  return _train(Heads(network, recipe.loss), schedule, params, frozen, examples, recipe,
                directory, {**(settings or {}), "heads": num_heads},
                lambda step, params, batch: batch, callbacks)


def _train(objective: Objective, schedule: runs.Schedule, params: Params, frozen: Params,
           examples: Sequence[Example], recipe: Recipe, directory: pathlib.Path,
           settings: dict[str, Any], change: Callable[[int, Params, Batch], Batch],
           callbacks: dict[str, Callable]) -> runs.Outcome:
  training, held_out = split(examples)
  buckets = Buckets(training, recipe.batch_tokens, recipe.seed)
  settings = {**settings, **dataclasses.asdict(recipe), "outputs": runs.digest(examples)}
  with matmul_precision("float32"):
    return runs.train(
        objective, schedule, params, frozen,
        lambda step, params: change(step, params, buckets.batch(step)).arrays(),
        [batch.arrays() for batch in Buckets(held_out, recipe.batch_tokens).once()],
        directory, settings, every=recipe.every, patience=recipe.patience, **callbacks)


_prepare = jax.jit(weights_lib.prepare, static_argnums=(1, 2))


def on_policy(config: T5Config, params: Params, batch: Batch, seed: int, step: int,
              eos_id: int) -> Batch:
  """A batch whose targets are what the drafter itself says, sampled at temperature 1.

  With them it learns to come back from where its own drafts lead, which the target's
  outputs never show.
  """
  rows, width = batch.target_ids.shape
  method = Method(T5Scorer(config, out_in=False))
  weights = Weights(_prepare(params, config, False))
  lengths = np.maximum((batch.encoder_ids > 0).sum(1), 1).astype(np.int32)
  state = loop.start(
      method, weights, Source(batch.encoder_ids, lengths),
      Source(np.zeros((rows, 1), np.int32), np.ones(rows, np.int32)),
      keys.row_keys(seed, np.arange(rows), step), (batch.encoder_ids > 0).any(1),
      capacity_for(width, 0))
  asked = Rules(rules_lib.sampling(rows, 1.0), rules_lib.limits(rows, width, (eos_id,)),
                rules_lib.controls(rows), rules_lib.speculation(rows))
  state = loop.run(method, weights, state, asked, Exits(np.int32(2**30), np.int32(2**30)))
  said = np.asarray(state.ids)[:, 1:width + 1]
  return dataclasses.replace(batch, decoder_ids=shifted(said), target_ids=said)
