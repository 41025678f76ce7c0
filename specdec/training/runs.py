"""A training run that survives: resumable, stopped by alpha, and told when it diverges.

    directory/run.json   settings; a run with others does not go on from it
    directory/latest/    the last checkpoint, to go on from
    directory/best/      the one with the highest alpha, which is the result
    directory/log.jsonl  a line per evaluation
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
import hashlib
import json
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from specdec.checkpoints import drafts
from specdec.errors import SpecdecError
from specdec.training.objectives import Arrays
from specdec.training.objectives import Objective
from specdec.training.trainer import TrainState

Array = jax.Array
Params = Any


@dataclasses.dataclass(frozen=True)
class Schedule:
  """How parameters are updated; static.

  Attributes:
    steps: updates; the learning rate falls to zero at the last.
    learning_rate: peak rate; for adafactor relative to the size of a parameter.
    warmup_steps: linear rise to the peak; a fifth of a short run.
    rule: "adafactor" or "adam".
  """

  steps: int
  learning_rate: float = 2e-2
  warmup_steps: int = 300
  rule: str = "adafactor"

  def optimizer(self) -> optax.GradientTransformation:
    """The rule with its learning rates."""
    rate = optax.warmup_cosine_decay_schedule(
        0.0, self.learning_rate, min(self.warmup_steps, self.steps // 5), self.steps)
    return optax.adafactor(rate) if self.rule == "adafactor" else optax.adam(rate)


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """A line of the log.

  Attributes:
    step: updates so far.
    loss: mean over the updates since the last evaluation.
    alpha: E[sum min(p, q)] on held-out text.
    best: the highest alpha so far.
  """

  step: int
  loss: float
  alpha: float
  best: float


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What became of a run.

  Attributes:
    params: those of the highest alpha; None when it diverged before any evaluation.
    alpha: theirs.
    step: the update after which they were had.
    ended: "done", "patience" or "diverged".
    last: the last step whose loss and alpha were finite.
  """

  params: Params | None
  alpha: float
  step: int
  ended: str
  last: int


@functools.partial(jax.jit, static_argnames=("objective", "schedule"), donate_argnames=("state",))
def update(objective: Objective, schedule: Schedule, state: TrainState, frozen: Params,
           batch: Arrays) -> tuple[TrainState, Array]:
  """One update; returns the new state and the loss before it."""
  loss, gradients = jax.value_and_grad(objective.loss)(state.params, frozen, batch)
  updates, opt_state = schedule.optimizer().update(gradients, state.opt_state, state.params)
  return TrainState(optax.apply_updates(state.params, updates), opt_state, state.step + 1), loss


_acceptance = jax.jit(
    lambda objective, params, frozen, batch: objective.acceptance(params, frozen, batch),
    static_argnums=0)


def alpha_of(objective: Objective, params: Params, frozen: Params,
             held_out: Sequence[Arrays]) -> float:
  """E[sum min(p, q)] over the tokens of held-out batches."""
  sums = np.array([jax.device_get(_acceptance(objective, params, frozen, batch))
                   for batch in held_out], np.float64)
  return float(sums[:, 0].sum() / sums[:, 1].sum())


def train(objective: Objective, schedule: Schedule, params: Params, frozen: Params,
          batch_at: Callable[[int, Params], Arrays], held_out: Sequence[Arrays],
          directory: pathlib.Path, settings: dict[str, Any], *, every: int = 100,
          patience: int = 0,
          report: Callable[[Evaluation], None] = lambda evaluation: None,
          tick: Callable[[int], None] = lambda step: None) -> Outcome:
  """Trains, or goes on where a run in the same folder stopped.

  Every number that decides something is in the checkpoint, so a run that is killed and
  started again ends with the parameters of an undisturbed one.

  Args:
    objective: what is minimised.
    schedule: how.
    params: initial ones, float32; not looked at when a run goes on.
    frozen: what the objective needs and does not change.
    batch_at: the batch of a step, given the parameters before it; the same on every call.
    held_out: batches on which alpha is measured.
    directory: for checkpoints and the log.
    settings: JSON-ready; what makes two runs different.
    every: steps between evaluations.
    patience: stop after so many evaluations without a higher alpha; 0 never does.
    report: called with each evaluation.
    tick: called with the number of updates done, after each.

  Returns:
    The best parameters and how the run ended.

  Raises:
    SpecdecError: the folder holds a run with other settings.
  """
  directory = pathlib.Path(directory).absolute()
  claim(directory, settings)
  latest, best = _Store(directory / "latest"), _Store(directory / "best")
  # Copies: an update takes its arguments over.
  state = TrainState(jax.tree.map(jnp.array, params), schedule.optimizer().init(params),
                     jnp.zeros((), jnp.int32))
  noted = {"best": -1.0, "best_step": 0, "waited": 0, "ended": ""}
  if latest.step is not None:
    state, noted = latest.load(state)
  done, losses, ended = int(state.step), [], noted["ended"]
  last = done
  while not ended and done < schedule.steps:
    state, loss = update(objective, schedule, state, frozen, batch_at(done, state.params))
    done += 1
    losses.append(loss)
    tick(done)
    if done % every and done < schedule.steps:
      continue
    mean = float(np.mean(jax.device_get(losses)))
    alpha = alpha_of(objective, state.params, frozen, held_out)
    if not math.isfinite(mean) or not math.isfinite(alpha):
      ended = "diverged"
      break
    losses, last = [], done
    if alpha > noted["best"]:
      noted.update(best=alpha, best_step=done, waited=0)
      best.save(done, state.params, {})
    else:
      noted["waited"] += 1
    if patience and noted["waited"] >= patience:
      ended = "patience"
    elif done == schedule.steps:
      ended = "done"
    noted["ended"] = ended
    evaluation = Evaluation(done, mean, alpha, noted["best"])
    # In this order: what a resumed run does again has not been logged.
    latest.save(done, state, noted)
    with open(directory / "log.jsonl", "a", encoding="utf-8") as f:
      f.write(json.dumps(dataclasses.asdict(evaluation)) + "\n")
    report(evaluation)
  if best.step is None:
    return Outcome(None, float("nan"), 0, ended, last)
  found, _ = best.load(state.params)
  return Outcome(found, noted["best"], noted["best_step"], ended, last)


def claim(directory: pathlib.Path, settings: dict[str, Any]) -> None:
  """Notes the settings of a new run in its folder; compares them with one that goes on.

  Raises:
    SpecdecError: the folder cannot be used, or holds a run with other settings.
  """
  file = directory / "run.json"
  begin_anew = "remove the folder, or name another --work_dir"
  try:
    directory.mkdir(parents=True, exist_ok=True)
    if not file.exists():
      if (directory / "latest").exists():
        raise SpecdecError(f"{directory} holds checkpoints, and no run.json that says of what run; "
                           f"{begin_anew}")
      drafts.write_whole(file, (json.dumps(settings, indent=2) + "\n").encode())
      return
    found = json.loads(file.read_text(encoding="utf-8"))
  except OSError as error:
    raise SpecdecError(f"cannot use the work folder {directory}: {error.strerror or error}"
                       ) from error
  except ValueError as error:
    raise SpecdecError(f"{file} is broken ({error}); {begin_anew}") from error
  settings = json.loads(json.dumps(settings))
  other = [name for name in {**found, **settings} if found.get(name) != settings.get(name)]
  if other:
    told = ", ".join(f"{name} {found.get(name)!r}, now {settings.get(name)!r}"
                     for name in other[:3])
    raise SpecdecError(f"{directory} holds a run with other settings ({told}); type those to go "
                       "on with it, name another --work_dir, or remove the folder")


def digest(value: Any) -> str:
  """A short name of something JSON-ready, to compare it by."""
  return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


class _Store:
  """One checkpoint, replaced by the next when that is complete."""

  def __init__(self, directory: pathlib.Path):
    import orbax.checkpoint as ocp  # pylint: disable=import-outside-toplevel

    self._ocp = ocp
    self._manager = ocp.CheckpointManager(
        directory, options=ocp.CheckpointManagerOptions(
            max_to_keep=1, enable_async_checkpointing=False))

  @property
  def step(self) -> int | None:
    return self._manager.latest_step()

  def save(self, step: int, tree: Any, notes: dict[str, Any]) -> None:
    if step in self._manager.all_steps():
      return  # By a run that was killed right after; the numbers are the same.
    args = self._ocp.args
    self._manager.save(step, args=args.Composite(
        tree=args.StandardSave(tree), notes=args.JsonSave(notes)))

  def load(self, like: Any) -> tuple[Any, dict[str, Any]]:
    args = self._ocp.args
    found = self._manager.restore(self.step, args=args.Composite(
        tree=args.StandardRestore(like), notes=args.JsonRestore()))
    return found["tree"], found["notes"]
