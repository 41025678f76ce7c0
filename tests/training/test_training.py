"""Corruption, batches, and a training run that learns and resumes."""

import random

import jax
from jax import lax
import numpy as np
import pytest

from specdec.models.t5.config import T5Config
from specdec.models.t5.network import T5
from specdec.training import batches
from specdec.training import corrupt
from specdec.training import precision
from specdec.training import trainer

CONFIG = T5Config(vocab_size=16, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=16,
                  num_encoder_layers=1, num_decoder_layers=1, dropout_rate=0.1)
TEXT = "Three cooks in white hats are standing behind a long counter full of bread."


def examples(count=256, seed=0):
  """Copy two symbols: learned within some dozen steps."""
  rng = np.random.default_rng(seed)
  return [(ids := [*rng.integers(3, 16, 2).tolist(), 1], ids) for _ in range(count)]


def epochs(number):
  return batches.bucketed(examples(), 128, np.random.default_rng(number), (4, 8))


def validation():
  return list(batches.bucketed(examples(64, 1), 128, np.random.default_rng(0), (4,)))


def test_corruption_is_reproducible_and_leaves_some_text_alone():
  outputs = [corrupt.corrupt(TEXT, random.Random(seed)) for seed in range(200)]
  assert outputs == [corrupt.corrupt(TEXT, random.Random(seed)) for seed in range(200)]
  same = sum(text == TEXT for text in outputs)
  assert 5 < same < 80
  assert len(set(outputs)) > 100
  assert all(text for text in outputs)
  assert corrupt.corrupt("", random.Random(0)) == ""


def test_corruption_rate_counts_words():
  assert corrupt.corrupt(TEXT, random.Random(0), rate=0.0) == TEXT
  assert all(corrupt.corrupt(TEXT, random.Random(s), rate=1.0) != TEXT for s in range(20))


def test_batches_have_few_shapes_and_hold_each_example_once():
  data = [([3] * n + [1], [4] * m + [1]) for n in range(1, 12) for m in range(1, 12)]
  made = list(batches.bucketed(data, 64, np.random.default_rng(0), (4, 8, 12)))
  assert {b.encoder_ids.shape[1] for b in made} <= {4, 8, 12}
  assert len({b.encoder_ids.shape for b in made}) <= 3
  seen = [((e > 0).sum(), (t > 0).sum()) for b in made
          for e, t in zip(b.encoder_ids, b.target_ids)]
  assert len(seen) == len(set(seen)) <= len(data)
  for batch in made:
    np.testing.assert_array_equal(batch.decoder_ids[:, 1:], batch.target_ids[:, :-1])
    assert (batch.decoder_ids[:, 0] == 0).all()


def test_mixed_precision_product_and_gradients_are_near_float32():
  a = jax.random.normal(jax.random.key(0), (24, 32))
  b = jax.random.normal(jax.random.key(1), (32, 16))
  dims = (((1,), (0,)), ((), ()))
  total = lambda dot: lambda a, b: (dot(a, b, dims) ** 2).sum()
  full = jax.value_and_grad(total(lax.dot_general), (0, 1))(a, b)
  mixed = jax.value_and_grad(total(precision.mixed_dot_general), (0, 1))(a, b)
  for x, y in zip(jax.tree.leaves(full), jax.tree.leaves(mixed)):
    assert np.abs(x - y).max() < 0.02 * np.abs(x).max()
  with pytest.raises(ValueError, match="takes"):
    precision.mixed_dot_general(a, b.T, (((1,), (1,)), ((), ())))


def test_label_smoothing_is_gone_before_the_end():
  recipe = trainer.Recipe(steps=100, label_smoothing=0.1)
  values = [float(trainer.smoothing_at(recipe, np.float32(s))) for s in (0, 50, 65, 80, 99)]
  np.testing.assert_allclose(values, [0.1, 0.1, 0.05, 0.0, 0.0], atol=1e-6)


def test_a_run_learns_and_a_stopped_run_goes_on_as_if_nothing_had_happened(tmp_path):
  model, said = T5(CONFIG), []
  recipe = trainer.Recipe(steps=60, learning_rate=5e-2)
  whole = trainer.train(model, recipe, epochs, tmp_path / "whole", validation(), every=20,
                        log=said.append)
  before = trainer.evaluate(model, trainer.init_state(model, recipe).params, validation())
  assert trainer.evaluate(model, whole, validation()) < before - 0.5
  assert len(said) == 3 and "step 60" in said[-1]

  class Stop(Exception):
    pass

  def stopped(line):
    if "step 40" in line:
      raise Stop

  with pytest.raises(Stop):
    trainer.train(model, recipe, epochs, tmp_path / "parts", validation(), every=20, log=stopped)
  said.clear()
  parts = trainer.train(model, recipe, epochs, tmp_path / "parts", validation(), every=20,
                        log=said.append)
  assert said[0] == "continuing from step 40"
  for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts)):
    np.testing.assert_array_equal(a, b)


def test_distillation_moves_towards_the_teacher(tmp_path):
  teacher = T5(CONFIG.replace(dropout_rate=0.0))
  sharp = trainer.train(T5(CONFIG), trainer.Recipe(steps=60, learning_rate=5e-2), epochs,
                        tmp_path / "teacher", validation(), every=60, log=lambda line: None)
  student = T5(CONFIG.replace(emb_dim=8, dropout_rate=0.0))
  recipe = trainer.Recipe(steps=40, learning_rate=5e-2, label_smoothing=0.0, distill_weight=1.0)
  params = trainer.train(student, recipe, epochs, tmp_path / "student", validation(),
                         teacher=(teacher, sharp), every=40, log=lambda line: None)

  def distance(params):
    batch = validation()[0]
    mask = batch.encoder_ids > 0
    q = student.apply({"params": params}, batch.encoder_ids, mask, batch.decoder_ids)
    p = teacher.apply({"params": sharp}, batch.encoder_ids, mask, batch.decoder_ids)
    p = jax.nn.softmax(p)
    kl = (p * (jax.nn.log_softmax(jax.numpy.log(p)) - jax.nn.log_softmax(q))).sum(-1)
    return float(kl[batch.target_ids > 0].mean())

  assert distance(params) < 0.8 * distance(trainer.init_state(student, recipe).params)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
  recipe = trainer.Recipe(steps=20, learning_rate=float("nan"))
  with pytest.raises(FloatingPointError, match="lower the learning rate"):
    trainer.train(T5(CONFIG), recipe, epochs, tmp_path / "diverging", validation(), every=10,
                  log=lambda line: None)
