"""Supervised training and distillation of a T5, resumable."""

from collections.abc import Callable
from collections.abc import Iterator
import dataclasses
import json
import pathlib
import time
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from specdec.models.t5.network import T5
from specdec.training.batches import Batch

Array = jax.Array
Params = Any


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Settings of one training run.

  Attributes:
    steps: number of updates.
    learning_rate: peak rate, relative to the size of a parameter (Adafactor).
    warmup_steps: linear rise to the peak, before a cosine down to zero; a fifth of
      a short run.
    label_smoothing: mass spread evenly over the vocabulary. It is held for the
      first half of the run and gone after four fifths, so that the finished
      model is calibrated: a smoothed one gives each token a one in ten chance
      of being noise when it samples at temperature 1.
    distill_weight: share of the teacher's distribution in the loss, 0 to 1.
    seed: initial weights and dropout.
  """

  steps: int
  learning_rate: float = 2e-2
  warmup_steps: int = 300
  label_smoothing: float = 0.1
  distill_weight: float = 0.0
  seed: int = 0


class TrainState(flax.struct.PyTreeNode):
  """Parameters, optimizer state and step counter (int32 scalar)."""

  params: Params
  opt_state: Any
  step: Array


def optimizer(recipe: Recipe) -> optax.GradientTransformation:
  """Adafactor with the rate scaled by parameter size, as T5 was trained."""
  warmup = min(recipe.warmup_steps, recipe.steps // 5)
  schedule = optax.warmup_cosine_decay_schedule(
      0.0, recipe.learning_rate, warmup, recipe.steps)
  return optax.adafactor(schedule)


def smoothing_at(recipe: Recipe, step: Array) -> Array:
  """Label smoothing of a step: held for half of the run, zero from 0.8 on."""
  left = (0.8 - step / recipe.steps) / 0.3
  return recipe.label_smoothing * jnp.clip(left, 0.0, 1.0)


def token_losses(logits: Array, target_ids: Array, smoothing: Array) -> Array:
  """Cross entropy in nats of every position, [B, T], with smoothed labels."""
  log_probs = jax.nn.log_softmax(logits)
  # A comparison, not a gather: the gradient of a gather is a scatter, which costs
  # a CPU more than the rest of the loss.
  hit = target_ids[..., None] == jnp.arange(logits.shape[-1])
  picked = jnp.where(hit, log_probs, 0.0).sum(-1)
  return -(1 - smoothing) * picked - smoothing * log_probs.mean(-1)


def make_step(model: T5, recipe: Recipe, teacher: T5 | None = None) -> Callable:
  """Returns the jitted update `(state, batch, teacher_params) -> (state, loss)`.

  With a teacher the loss mixes cross entropy on the given tokens with the
  forward KL from the teacher's distribution, position by position.
  """
  update_rule = optimizer(recipe)

  def loss_fn(params, batch, step, teacher_params):
    encoder_ids, decoder_ids, target_ids = batch
    mask = encoder_ids > 0
    key = jax.random.fold_in(jax.random.key(recipe.seed), step)
    logits = model.apply({"params": params}, encoder_ids, mask, decoder_ids,
                         deterministic=False, rngs={"dropout": key})
    losses = token_losses(logits, target_ids, smoothing_at(recipe, step))
    if teacher is not None:
      reference = teacher.apply({"params": teacher_params}, encoder_ids, mask, decoder_ids)
      reference = jax.nn.softmax(reference)
      forward = -(reference * jax.nn.log_softmax(logits)).sum(-1)
      losses = (1 - recipe.distill_weight) * losses + recipe.distill_weight * forward
    weights = target_ids > 0
    return (losses * weights).sum() / weights.sum()

  @jax.jit
  def step_fn(state: TrainState, batch, teacher_params=None):
    loss, grads = jax.value_and_grad(loss_fn)(
        state.params, batch, state.step, teacher_params)
    updates, opt_state = update_rule.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return TrainState(params, opt_state, state.step + 1), loss

  return step_fn


def init_state(model: T5, recipe: Recipe) -> TrainState:
  """Random parameters and fresh optimizer state."""
  ids = jnp.ones((1, 8), jnp.int32)
  params = jax.jit(model.init)(jax.random.key(recipe.seed), ids, ids > 0, ids)["params"]
  return TrainState(params, optimizer(recipe).init(params), jnp.zeros((), jnp.int32))


def evaluate(model: T5, params: Params, batches: list[Batch]) -> float:
  """Mean cross entropy per token in nats, without smoothing or dropout.

  NaN when there are no batches.
  """
  if not batches:
    return float("nan")

  @jax.jit
  def sums(params, encoder_ids, decoder_ids, target_ids):
    logits = model.apply({"params": params}, encoder_ids, encoder_ids > 0, decoder_ids)
    weights = target_ids > 0
    return (token_losses(logits, target_ids, 0.0) * weights).sum(), weights.sum()

  total = np.array([[float(x) for x in sums(params, *b.arrays())] for b in batches])
  return float(total[:, 0].sum() / total[:, 1].sum())


def train(
    model: T5,
    recipe: Recipe,
    epochs: Callable[[int], Iterator[Batch]],
    directory: pathlib.Path,
    validation: list[Batch],
    teacher: tuple[T5, Params] | None = None,
    every: int = 200,
    log: Callable[[str], None] = print,
) -> Params:
  """Trains to `recipe.steps`, saving and reporting every `every` steps.

  A run that is stopped and started again continues from its last save, on the
  batches that an undisturbed run would have seen.

  Args:
    model: the network in T5X layout.
    recipe: settings.
    epochs: the batches of epoch `n`, the same on every call.
    directory: where checkpoints and `log.jsonl` go.
    validation: batches on which the loss is reported.
    teacher: a network and its parameters to distil from.
    every: steps between saves.
    log: receives one line per report.

  Returns:
    The trained parameters, float32.

  Raises:
    FloatingPointError: the loss is no longer finite; the last save stands.
  """
  import orbax.checkpoint as ocp  # pylint: disable=import-outside-toplevel

  directory = pathlib.Path(directory).absolute()
  step_fn = make_step(model, recipe, teacher[0] if teacher else None)
  teacher_params = teacher[1] if teacher else None
  state = init_state(model, recipe)
  manager = ocp.CheckpointManager(
      directory / "checkpoints", options=ocp.CheckpointManagerOptions(max_to_keep=2))
  if manager.latest_step() is not None:
    state = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(state))
    log(f"continuing from step {int(state.step)}")

  start, done, losses, began = int(state.step), 0, [], time.monotonic()
  epoch = 0
  while done < recipe.steps:
    for batch in epochs(epoch):
      if done == recipe.steps:
        break
      done += 1
      if done <= start:
        continue
      state, loss = step_fn(state, batch.arrays(), teacher_params)
      losses.append(loss)
      if done % every == 0 or done == recipe.steps:
        mean = float(np.mean(jax.device_get(losses)))
        if not np.isfinite(mean):
          raise FloatingPointError(
              f"the loss is {mean} at step {done}; the last good checkpoint is step "
              f"{manager.latest_step()} in {directory}; lower the learning rate")
        record = {"step": done, "loss": round(mean, 4),
                  "validation": round(evaluate(model, state.params, validation), 4),
                  "s_per_step": round((time.monotonic() - began) / len(losses), 3)}
        manager.save(done, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
        with open(directory / "log.jsonl", "a", encoding="utf-8") as f:
          f.write(json.dumps(record) + "\n")
        log(" ".join(f"{k} {v}" for k, v in record.items()))
        losses, began = [], time.monotonic()
    epoch += 1
  return state.params
