"""The model and the train state inside of T5X: its own decoding is the reference."""

import functools

import flax.core
import jax
import numpy as np
import pytest
import scipy.stats

from specdec.errors import SpecdecError
from specdec.testing import tiny

# T5X is on no package index, so most environments lack it.
pytest.importorskip("t5x", reason="T5X is not installed; docs/t5x.md says how")

import seqio
from t5x import decoding
from t5x import models
from t5x import optimizers
from t5x import partitioning
from t5x import utils
from t5x.examples.t5 import network

from specdec.bench import hlo
from specdec.cli.main import run as specdec_command
from specdec.integrations import t5x as speculative
from specdec.integrations.t5x import drafter as drafter_lib

BATCH, SOURCE, WIDTH = 4, 7, 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tiny.save(tmp_path_factory.mktemp("t5x") / "pair")


def baseline(decode_fn=None, **options):
  config = tiny.config()
  fields = ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers",
            "num_decoder_layers", "mlp_activations", "logits_via_embedding")
  module = network.Transformer(network.T5Config(
      **{name: getattr(config, name) for name in fields}, dtype="float32", dropout_rate=0.0))
  vocabulary = seqio.PassThroughVocabulary(config.vocab_size, eos_id=1)
  return models.EncoderDecoderModel(
      module, vocabulary, vocabulary, optimizer_def=None,
      decode_fn=decode_fn or functools.partial(decoding.temperature_sample, temperature=0.0),
      **options)


def params(noise=None):
  target = tiny.params(tiny.config())
  if noise is None:
    return flax.core.freeze(target)
  return flax.core.freeze({**target, "drafter": tiny.perturbed(target, noise)})


def batch(rows=BATCH, width=WIDTH):
  rng = np.random.default_rng(0)
  inputs = rng.integers(2, 100, (rows, SOURCE)).astype(np.int32)
  inputs[::2, -2:] = 0
  targets = rng.integers(2, 100, (rows, width)).astype(np.int32)
  targets[:, 0], targets[0, 3:], targets[1, 2], targets[1, 3:] = 0, 0, 1, 0
  return {"encoder_input_tokens": inputs, "decoder_input_tokens": targets,
          "decoder_target_tokens": targets, "decoder_loss_weights": np.ones((rows, width))}


def predict(model, noise=None, rows=BATCH, key=None, data=None, **options):
  step = jax.jit(lambda p, b, k: model.predict_batch_with_aux(p, b, k, **options))
  out = step(params(noise), data or batch(rows), jax.random.PRNGKey(0) if key is None else key)
  return jax.tree.map(np.asarray, out)


@pytest.fixture(scope="module")
def model(folder):
  return functools.partial(speculative.SpeculativeModel, drafter_path=str(folder / "drafter"))


@pytest.mark.parametrize("options", [
    {}, {"prompt_with_targets": True},
    {"decoder_params": {"rescale_log_probs": False, "max_decode_steps": 4},
     "prompt_with_targets": True},
    {"num_decodes": 2, "return_all_decodes": True, "decoder_params": {"eos_id": 5}},
], ids=["plain", "prompt", "steps", "several"])
def test_greedy_decodes_and_scores_are_t5xs(model, options):
  whole = lambda: {k: dict(v) if isinstance(v, dict) else v for k, v in options.items()}
  expected, expected_aux = predict(baseline(), **whole())
  found, aux = predict(model(baseline(), report_counts=True), 0.1, **whole())
  np.testing.assert_array_equal(found, expected)
  np.testing.assert_allclose(aux["scores"], expected_aux["scores"], atol=1e-3)
  assert found.dtype == expected.dtype and aux["scores"].dtype == expected_aux["scores"].dtype
  assert aux["accepted"].shape == aux["scores"].shape and aux["accepted"].sum() > 0


def test_samples_are_spread_as_t5xs_are(model):
  settings = {"temperature": 0.8, "topk": 3}
  sampler = functools.partial(decoding.temperature_sample, **settings)
  rows, counts = 2048, []
  data = {name: np.repeat(value[:1], rows, 0) for name, value in batch(width=3).items()}
  for which, noise in ((baseline(sampler), None), (model(baseline(sampler), gamma=2), 0.3)):
    ids, aux = predict(which, noise, data=data, num_decodes=2, return_all_decodes=True,
                       key=jax.random.PRNGKey(1))
    assert (np.diff(aux["scores"], axis=1) >= 0).all()
    found, number = np.unique(ids.reshape(-1, 3), axis=0, return_counts=True)
    counts.append(dict(zip(map(tuple, found.tolist()), number.tolist())))
  table = np.array([[c.get(ids, 0) for ids in set(counts[0]) | set(counts[1])] for c in counts])
  table = table[:, table.sum(0) >= 20]
  assert table.shape[1] > 5
  assert scipy.stats.chi2_contingency(table).pvalue > 1e-4


def test_scores_and_losses_are_the_targets_own(model):
  expected = baseline().score_batch(params(), batch())
  found = model(baseline())
  np.testing.assert_array_equal(found.score_batch(params(0.1), batch()), expected)
  loss, _ = found.eval_fn(params(0.1), batch())
  np.testing.assert_array_equal(loss, baseline().eval_fn(params(), batch())[0])
  with pytest.raises(SpecdecError, match="is not trained"):
    found.loss_fn(params(0.1), batch(), jax.random.key(0))


def test_copy_needs_no_weights():
  found, _ = predict(speculative.SpeculativeModel(baseline(), "copy"))
  np.testing.assert_array_equal(found, predict(baseline())[0])


def test_weights_are_arguments_and_are_fused_ahead_of_the_loop(model):
  # Five rows and two drafted tokens: no activation is as large as one of these weights.
  found, config = model(baseline(), gamma=2), tiny.config()
  program = jax.jit(lambda p, b: found.predict_batch_with_aux(p, b))
  text = program.lower(params(0.1), batch(5)).compile().as_text()
  embedding = f"f32[{config.vocab_size},{config.emb_dim}]"
  lines = text.splitlines()
  assert any(embedding in line and " parameter(" in line for line in lines)
  assert not any(embedding in line and " constant(" in line for line in lines)
  qkv, wi = 3 * config.emb_dim * config.num_heads * config.head_dim, 2 * config.emb_dim * 32
  module = hlo.Module(text)
  fused = [i for c in module.computations.values() for i in c.values() if i.size == qkv]
  assert fused and module.loop_bodies()
  assert not module.moved({qkv, wi, config.vocab_size * config.emb_dim})


def test_beam_search_is_refused_with_what_to_bind(model):
  with pytest.raises(SpecdecError) as error:
    model(baseline(decoding.beam_search))
  said = str(error.value)
  assert "decodes with beam_search" in said and "\n" not in said
  assert "models.EncoderDecoderModel.decode_fn = @decoding.temperature_sample" in said


def test_other_mistakes_are_told_when_the_job_is_set_up(model, folder):
  for options, expected in (
      ({"gamma": -1}, "SpeculativeModel.gamma is -1"),
      ({"confidence": 2.0}, "SpeculativeModel.confidence is 2"),
      ({"verifier": "lenient"}, "verifier is 'lenient'; expected one of token, block, coupled"),
      ({"drafter_path": str(folder / "nowhere")}, "nowhere")):
    with pytest.raises(SpecdecError) as error:
      model(baseline(), **options)
    assert expected in str(error.value)
  with pytest.raises(SpecdecError, match="topk is 2 and topp"):
    model(baseline(functools.partial(decoding.temperature_sample, topk=2, topp=0.5)))
  with pytest.raises(SpecdecError, match="baseline is a str; expected a t5x"):
    model("baseline")

  class Other(models.EncoderDecoderModel):
    def predict_batch_with_aux(self, params, batch, rng=None):
      return None

  other = object.__new__(Other)
  with pytest.raises(SpecdecError, match="Other decodes in a way of its own"):
    model(other)


def test_mistakes_of_a_call_are_named(model):
  found = model(baseline())
  for options, expected in (
      ({"decoder_params": {"alpha": 0.6}}, "alpha belongs to beam search"),
      ({"decoder_params": {"decode_rng": jax.random.PRNGKey(1)}}, "there is a key in rng and"),
      ({"decoder_params": {"max_decode_steps": 10}}, "max_decode_steps is 10, and the targets")):
    with pytest.raises(SpecdecError) as error:
      predict(found, 0.1, **options)
    assert expected in str(error.value)
  with pytest.raises(SpecdecError, match="the train state lacks the drafter's weights"):
    predict(found)
  with pytest.raises(SpecdecError, match="the batch has encoder_segment_ids, as packed"):
    predict(found, 0.1, data={**batch(), "encoder_segment_ids": np.ones((BATCH, SOURCE))})


def test_logical_axes_are_those_that_t5xs_network_gives(folder):
  shapes = {name: x.shape for name, x in batch().items()}
  variables = jax.eval_shape(lambda: baseline().get_initial_variables(jax.random.key(0), shapes))
  names = flax.traverse_util.flatten_dict(variables["params_axes"], sep="/")
  expected = {name.removesuffix("_axes"): leaf.names for name, leaf in names.items()}
  assert drafter_lib.open_drafter(str(folder / "drafter")).axes() == expected


@pytest.fixture(scope="module")
def checkpoint(folder, tmp_path_factory):
  where = tmp_path_factory.mktemp("export") / "target"
  assert specdec_command(["convert", "--to=t5x", str(folder / "target"), str(where)]) == 0
  return str(where / "checkpoint_0")


def initializer(model, partitioner, **options):
  shapes = {name: x.shape for name, x in batch().items()}
  return speculative.TrainStateInitializer(
      options.get("optimizer_def"), model.get_initial_variables, shapes, partitioner)


@pytest.mark.parametrize("use_orbax", [True, False])
def test_a_train_state_is_restored_with_the_drafter_and_decodes(model, checkpoint, use_orbax):
  partitioner = partitioning.PjitPartitioner(
      num_partitions=1, logical_axis_rules=partitioning.standard_logical_axis_rules())
  found = model(baseline())
  init = initializer(found, partitioner)
  config = utils.RestoreCheckpointConfig(checkpoint, "specific", strict=False)
  state, _ = utils.create_checkpoint_manager_and_restore(
      init, partitioner, config, checkpoint, None, use_orbax=use_orbax)
  jax.tree.map(np.testing.assert_array_equal, flax.core.unfreeze(state.params),
               flax.core.unfreeze(params(0.1)))
  step = utils.get_infer_fn(found.predict_batch, BATCH, init.train_state_axes, partitioner)
  import tensorflow as tf

  data = tf.data.Dataset.from_tensor_slices(
      {k: v for k, v in batch().items() if k.endswith("tokens")}).enumerate()
  out = step(data, state, jax.random.PRNGKey(0))
  ids = np.stack([row for _, row in sorted(out[0] if isinstance(out, tuple) else out,
                                           key=lambda x: x[0])])
  np.testing.assert_array_equal(ids, predict(baseline())[0])


def test_the_initializer_refuses_other_models_and_training(model):
  partitioner = partitioning.PjitPartitioner(
      num_partitions=1, logical_axis_rules=partitioning.standard_logical_axis_rules())
  with pytest.raises(SpecdecError, match=r"model of this job is a EncoderDecoderModel; expected"):
    initializer(baseline(), partitioner)
  with pytest.raises(SpecdecError, match="is not trained"):
    initializer(model(baseline()), partitioner, optimizer_def=optimizers.sgd(0.1))
