"""Distillation: losses against NumPy, runs that survive, drafters that come to agree."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import rules
from specdec.drafters.heads import HeadsState
from specdec.engine import heads as heads_lib
from specdec.errors import SpecdecError
from specdec.models.t5.network import T5
from specdec.testing import contract
from specdec.testing import tiny
from specdec.training import batches
from specdec.training import distill
from specdec.training import losses
from specdec.training import objectives
from specdec.training import runs
from specdec.types import Source

RNG = np.random.default_rng(0)
Q_LOGITS, P_LOGITS = (RNG.normal(0, 2, (2, 3, 7)) for _ in range(2))
IDS = RNG.integers(0, 7, (2, 3))


def softmax(x):
  x = np.exp(x - x.max(-1, keepdims=True))
  return x / x.sum(-1, keepdims=True)


def in_numpy(name, q_logits):
  p, q = softmax(P_LOGITS), softmax(q_logits)
  if name == "ce":
    return -np.log(np.take_along_axis(q, IDS[..., None], -1)[..., 0])
  if name == "forward_kl":
    return (p * np.log(p / q)).sum(-1)
  if name == "reverse_kl":
    return (q * np.log(q / p)).sum(-1)
  return 1 - np.minimum(p, q).sum(-1)


def per_token(name, q_logits):
  return losses.per_token(name, jnp.asarray(q_logits, jnp.float32),
                          jnp.asarray(P_LOGITS, jnp.float32), IDS)


@pytest.mark.parametrize("name", losses.NAMES)
def test_loss_and_gradient_are_those_of_numpy(name):
  np.testing.assert_allclose(per_token(name, Q_LOGITS), in_numpy(name, Q_LOGITS), atol=1e-5)
  gradient = jax.grad(lambda x: per_token(name, x).sum())(jnp.asarray(Q_LOGITS, jnp.float32))
  step = 1e-6
  for place in np.ndindex(Q_LOGITS.shape):
    moved = Q_LOGITS.copy()
    moved[place] += step
    slope = (in_numpy(name, moved).sum() - in_numpy(name, Q_LOGITS).sum()) / step
    np.testing.assert_allclose(gradient[place], slope, atol=1e-4)


def test_where_nothing_overlaps_only_the_divergences_say_where_to_go():
  """Why total variation is for drafters that have learned something."""
  logits = jnp.asarray(Q_LOGITS - 4 * P_LOGITS, jnp.float32)
  steep = {name: float(jnp.abs(jax.grad(lambda x, n=name: per_token(n, x).sum())(logits)).max())
           for name in ("forward_kl", "tv")}
  assert steep["forward_kl"] > 5 * steep["tv"]


def test_total_variation_is_one_minus_the_acceptance():
  beta = losses.acceptance(jnp.asarray(Q_LOGITS), jnp.asarray(P_LOGITS))
  p, q = softmax(P_LOGITS), softmax(Q_LOGITS)
  np.testing.assert_allclose(beta, np.minimum(p, q).sum(-1), atol=1e-5)
  np.testing.assert_allclose(1 - beta, np.abs(p - q).sum(-1) / 2, atol=1e-5)


def test_logits_of_other_widths_are_compared_where_both_have_some():
  wide = np.concatenate([Q_LOGITS, np.full((2, 3, 2), 9.0)], -1)
  np.testing.assert_allclose(per_token("forward_kl", wide), per_token("forward_kl", Q_LOGITS))
  with pytest.raises(SpecdecError, match="there is no loss 'hinge'; expected one of forward_kl"):
    losses.per_token("hinge", Q_LOGITS, P_LOGITS, IDS)


def test_buckets_hold_every_example_and_depend_on_the_step_alone():
  rng = np.random.default_rng(0)
  data = [((3 + i,) * rng.integers(1, 60), (3 + i,) * rng.integers(1, 40)) for i in range(101)]
  buckets, again = (batches.Buckets(data, 256, seed=1) for _ in range(2))
  assert len({buckets.batch(i).encoder_ids.shape for i in range(buckets.per_epoch)}) <= 5
  tokens_of = lambda batch: [row[0] for row in batch.encoder_ids if row[0]]
  epochs = [[t for i in range(buckets.per_epoch) for t in tokens_of(buckets.batch(e + i))]
            for e in (0, buckets.per_epoch)]
  for seen in epochs:
    assert set(seen) == set(range(3, 104))
  assert epochs[0] != epochs[1]
  once = [t for batch in buckets.once() for t in tokens_of(batch)]
  assert sorted(once) == list(range(3, 104))
  for step in (buckets.per_epoch + 3, 2, buckets.per_epoch):
    for a, b in zip(buckets.batch(step).arrays(), again.batch(step).arrays()):
      np.testing.assert_array_equal(a, b)


@dataclasses.dataclass(frozen=True)
class Parabola:
  """One number that goes to 3; alpha is how near it is. No network to compile."""

  falls: bool = True

  def loss(self, params, frozen, batch):
    return (params["x"] - 3.0) ** 2 + batch[0] * params["x"]

  def acceptance(self, params, frozen, batch):
    distance = jnp.abs(params["x"] - 3.0)
    return (1 / (1 + distance) if self.falls else distance), 1.0


SCHEDULE = runs.Schedule(40, 0.2, 4, rule="adam")


def parabola(directory, objective=Parabola(), schedule=SCHEDULE, batch=0.0, **options):
  at = batch if callable(batch) else lambda step, params: (jnp.float32(batch),)
  return runs.train(objective, schedule, {"x": jnp.zeros(())}, None, at, [(jnp.zeros(()),)],
                    directory, {"name": "parabola"}, every=5, **options)


class Killed(Exception):
  pass


def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path):
  noisy = lambda step, params: (jnp.float32(np.sin(step)) * params["x"],)
  whole = parabola(tmp_path / "whole", batch=noisy)
  assert whole.ended == "done" and whole.alpha > 0.9

  def kill(step):
    if step in (13, 27):
      raise Killed

  said = []
  for _ in range(2):
    with pytest.raises(Killed):
      parabola(tmp_path / "parts", batch=noisy, tick=kill, report=said.append)
  parts = parabola(tmp_path / "parts", batch=noisy, report=said.append)
  # Two of the kills are behind an evaluation: nothing was evaluated twice.
  assert [e.step for e in said] == list(range(5, 41, 5))
  assert parts.alpha == whole.alpha and parts.step == whole.step
  np.testing.assert_array_equal(parts.params["x"], whole.params["x"])
  # A run that is done is not run again.
  again = parabola(tmp_path / "parts", batch=lambda *_: pytest.fail("trained"))
  assert again.step == whole.step and again.ended == "done"


def test_a_run_killed_between_its_two_checkpoints_goes_on(tmp_path, monkeypatch):
  whole = parabola(tmp_path / "whole")
  save, count = runs._Store.save, [0]

  def save_some(self, *args):
    count[0] += 1
    if count[0] == 4:  # The best and the latest in turns: the second latest.
      raise Killed
    save(self, *args)

  monkeypatch.setattr(runs._Store, "save", save_some)
  with pytest.raises(Killed):
    parabola(tmp_path / "parts")
  monkeypatch.undo()
  parts = parabola(tmp_path / "parts")
  np.testing.assert_array_equal(parts.params["x"], whole.params["x"])


def test_another_run_in_the_same_folder_is_refused(tmp_path):
  parabola(tmp_path)
  with pytest.raises(SpecdecError, match=r"holds a run with other settings \(name 'parabola', now"):
    runs.train(Parabola(), SCHEDULE, {"x": jnp.zeros(())}, None, None, [], tmp_path,
               {"name": "other"})


def test_patience_ends_a_run_and_keeps_the_best(tmp_path):
  outcome = parabola(tmp_path, Parabola(falls=False), patience=3)
  assert outcome.ended == "patience"
  assert outcome.step == 5 and outcome.last == 20
  assert parabola(tmp_path, Parabola(falls=False), patience=3).ended == "patience"


@pytest.mark.parametrize("from_step, last", [(12, 10), (0, 0)])
def test_divergence_ends_a_run_and_keeps_the_last_good(tmp_path, from_step, last):
  spoiled = lambda step, params: (jnp.float32(np.nan if step >= from_step else 0),)
  outcome = parabola(tmp_path, batch=spoiled)
  assert outcome.ended == "diverged" and outcome.last == last
  if last:
    assert outcome.step == 10 and np.isfinite(outcome.params["x"])
  else:
    assert outcome.params is None


# The tiny T5: its own outputs are sums of its logits, so any sequences will do to learn from.
def examples(count: int = 60):
  rng = np.random.default_rng(0)
  draw = lambda: [*rng.integers(3, 100, rng.integers(3, 8)).tolist(), 1]
  return [(draw(), draw()) for _ in range(count)]


def recipe(**changes):
  fields = {"steps": 8, "batch_tokens": 256, "every": 4, "learning_rate": 5e-2}
  return distill.Recipe(**{**fields, **changes})


def near_target():
  """A drafter that has not far to go, as few steps are all there are."""
  return tiny.perturbed(tiny.params(tiny.config()), 0.3)


def loss_of(name, params, batch):
  network, frozen = distill.teacher_of(tiny.pair().target)
  student = T5(distill.student_config(tiny.config()))
  logits = student.apply({"params": params}, batch[0], batch[0] > 0, batch[1])
  reference = network.apply({"params": frozen}, batch[0], batch[0] > 0, batch[1])
  found = losses.per_token(name, logits, reference, batch[2])
  return float(found[batch[2] > 0].mean())


@pytest.mark.parametrize("name", losses.NAMES)
def test_each_loss_falls(name):
  logits = jnp.asarray(Q_LOGITS, jnp.float32)
  before = float(per_token(name, logits).sum())
  slope = jax.jit(jax.grad(lambda x: per_token(name, x).sum()))
  for _ in range(200):
    logits -= slope(logits)
  assert float(per_token(name, logits).sum()) < 0.8 * before


@pytest.mark.parametrize("name", ["forward_kl", "tv"])
def test_a_t5_comes_to_agree(name, tmp_path):
  config, start = distill.student_config(tiny.config()), near_target()
  outcome = distill.transformer(tiny.pair().target, examples(), config, recipe(loss=name),
                                tmp_path, start)
  assert outcome.ended == "done"
  batch = next(batches.Buckets(examples(), 512).once()).arrays()
  assert loss_of(name, outcome.params, batch) < 0.97 * loss_of(name, start, batch)


def test_a_distillation_on_its_own_samples_goes_on_where_it_was_killed(tmp_path):
  target, config = tiny.pair().target, distill.student_config(tiny.config())

  def train(name, **options):
    return distill.transformer(target, examples(), config, recipe(on_policy=0.6),
                               tmp_path / name, near_target(), **options)

  def kill(step):
    if step == 6:
      raise Killed

  whole = train("whole")
  with pytest.raises(Killed):
    train("parts", tick=kill)
  parts = train("parts")
  assert parts.alpha == whole.alpha
  for a, b in zip(jax.tree.leaves(whole.params), jax.tree.leaves(parts.params)):
    np.testing.assert_array_equal(a, b)


def test_own_samples_are_the_drafters_and_change_with_the_step():
  config = distill.student_config(tiny.config())
  batch = next(batches.Buckets(examples(), 512).once())
  own = [distill.on_policy(config, near_target(), batch, 0, step, 1) for step in (0, 0, 1)]
  np.testing.assert_array_equal(own[0].target_ids, own[1].target_ids)
  assert (own[0].target_ids != own[2].target_ids).any()
  np.testing.assert_array_equal(own[0].decoder_ids[:, 1:], own[0].target_ids[:, :-1])
  for row in own[0].target_ids:
    ends = np.flatnonzero(row == 1)
    assert not len(ends) or not row[ends[0] + 1:].any()


def test_heads_learn_and_their_objective_is_what_the_drafter_does(tmp_path):
  """Its alpha is that of the drafts that the drafter makes at every position."""
  target, data = tiny.pair().target, examples()
  outcome = distill.heads(target, data, 2, recipe(steps=30, every=10, learning_rate=1e-2), tmp_path)
  network, frozen = distill.teacher_of(target)
  objective, zeros = objectives.Heads(network), jax.tree.map(jnp.zeros_like, outcome.params)
  held_out = [b.arrays() for b in batches.Buckets(distill.split(data)[1], 256).once()]
  assert runs.alpha_of(objective, zeros, frozen, held_out) < outcome.alpha - 0.01
  drafter, params = heads_lib.of_params(target, outcome.params)
  propose = jax.jit(drafter.propose, static_argnums=3)
  apply = lambda *args, method: network.apply({"params": frozen}, *args, method=method)

  @jax.jit
  def teach(encoder_ids, decoder_ids):
    hidden = apply(encoder_ids, encoder_ids > 0, decoder_ids, method="hidden")
    return hidden, apply(hidden, method="logits_of")

  known = contract.Subject(drafter, params, target.config.vocab_size, Source)
  total = []
  for source, output in distill.split(data)[1]:
    ids = [0, *output]
    hidden, logits = teach(batches.pad([source], 16), batches.pad([ids], 16))
    p = softmax(np.asarray(logits, np.float64)[0])
    for t in range(len(output)):
      at = contract.context(known, [ids[:t + 2]], rules.sampling(1, 1.0))
      state = HeadsState(hidden[0, t:t + 1], jnp.array([t + 2]))
      q = np.asarray(propose(params, state, at, 2)[0].probs)[0]
      total += [np.minimum(p[t + 1 + i], q[i]).sum() for i in range(2)
                if t + 1 + i < len(output)]
  np.testing.assert_allclose(np.mean(total), outcome.alpha, atol=1e-4)


def test_too_few_outputs_are_refused():
  with pytest.raises(SpecdecError, match="there are no different outputs of the target"):
    distill.split([])
  with pytest.raises(SpecdecError, match="there is 1 different output of"):
    distill.split([([3, 1], [4, 1])] * 5)
