"""What of the T5X integration needs no T5X: parameters, bindings, target and drafter."""

import dataclasses
import functools
import types

import jax
import numpy as np
import pytest

import gin
from specdec.checkpoints.checkpoint import flat
from specdec.checkpoints.checkpoint import nested
from specdec.errors import SpecdecError
from specdec.integrations.t5x import bindings
from specdec.integrations.t5x import drafter as drafter_lib
from specdec.integrations.t5x import knobs
from specdec.integrations.t5x import target
from specdec.models.t5.scorer import T5Scorer
from specdec.testing import tiny


@pytest.mark.parametrize("given, expected", [
    ({"alpha": 0.6}, "decoder parameter alpha belongs to beam search"),
    ({"max_decode_len": 9}, "max_decode_len belongs to beam search: bound the output by max_dec"),
    ({"state_callback_fn": print}, "state_callback_fn is called with T5X's state"),
    ({"logit_callback_fn": print}, "bind SpeculativeModel.logits_fn"),
    ({"initial_index": 3}, "initial_index goes with a cache"),
    ({"beam": 3}, "beam is not a parameter of t5x.decoding.temperature_sample; expected some of"),
    ({"topk": 3, "topp": 0.9}, "topk is 3 and topp is 0.9; expected one of them to be 0"),
    ({"topp": 0.9}, "whose default topk is 1: add topk = 0"),
    ({"max_decode_steps": 0}, "max_decode_steps is 0; expected at least 1"),
])
def test_what_is_not_supported_is_refused_by_name(given, expected):
  with pytest.raises(SpecdecError) as error:
    knobs.read(given)
  assert expected in str(error.value) and "\n" not in str(error.value)


def test_parameters_that_are_off_are_not_refused():
  assert knobs.read({"logit_callback_fn": None, "state_callback_fn": None}) == knobs.Knobs()


def test_more_steps_than_columns_and_other_shapes_are_refused():
  with pytest.raises(SpecdecError, match="max_decode_steps is 9, and the targets"):
    knobs.read({"max_decode_steps": 9}).limit(8, np.zeros(2, np.int32))
  limited = knobs.read({"max_decode_steps": 9, "max_decode_steps_hard_limit": 3})
  np.testing.assert_array_equal(limited.limit(8, np.array([0, 7])), [3, 8])
  free = knobs.read({"max_decode_steps_hard_limit": 3})
  np.testing.assert_array_equal(free.limit(8, np.array([0, 7])), [8, 8])
  with pytest.raises(SpecdecError, match=r"topp has the shape \(3,\); expected a number, or one"):
    knobs.per_row("topp", np.zeros(3), 2, 1)


def _sampler(temperature=1.0, topk=1):
  return temperature, topk


@functools.wraps(_sampler)
def _decorated(*args, **kwargs):
  return _sampler(*args, **kwargs)


@pytest.fixture
def by_gin():
  """The sampler as gin refers to it, and a way to bind."""
  try:
    gin.external_configurable(_sampler, "sampler", module="tests")
  except ValueError:
    pass  # Registered by an earlier test.
  gin.clear_config()
  yield gin.get_configurable("tests.sampler"), gin.parse_config
  gin.clear_config()


def test_bindings_of_gin_and_of_partials_are_told(by_gin):
  sampler, bind = by_gin
  assert bindings.of(sampler, "decode_fn") == {} == bindings.of(_sampler, "decode_fn")
  bind("TEMPERATURE = 0.5\ntests.sampler.temperature = %TEMPERATURE\ntests.sampler.topk = 3")
  assert bindings.of(sampler, "decode_fn") == {"temperature": 0.5, "topk": 3}
  partial = functools.partial(sampler, topk=7)
  assert bindings.of(partial, "decode_fn") == {"temperature": 0.5, "topk": 7}
  assert bindings.bare(partial) is _sampler


def test_bindings_that_cannot_be_told_are_refused(by_gin):
  scoped = gin.get_configurable("eval/tests.sampler")
  for hidden in (scoped, _decorated, functools.partial(_sampler, 0.5)):
    with pytest.raises(SpecdecError, match="decode_fn is"):
      bindings.of(hidden, "decode_fn")


def _module(config, **changes):
  fields = {name: getattr(config, name) for name in target._CHECKED}
  return types.SimpleNamespace(config=types.SimpleNamespace(
      **{**fields, "dtype": config.dtype, "dropout_rate": 0.1, **changes}))


def _stacked(params, config):
  """The layout of T5X's scanned models: layers along axis 1."""
  flatly = flat(params)
  out = {}
  for stack, count in (("encoder", config.num_encoder_layers),
                       ("decoder", config.num_decoder_layers)):
    for name in [n for n in flatly if n.startswith(f"{stack}/layers_0/")]:
      layers = [flatly.pop(name.replace("layers_0", f"layers_{i}")) for i in range(count)]
      out[name.replace("/layers_0/", f"/{stack}/")] = np.stack(layers, 1)
  return nested({**flatly, **out})


@pytest.mark.parametrize("scanned", [False, True], ids=["layers", "scanned"])
def test_the_target_is_what_the_train_state_holds(scanned):
  config = tiny.config(num_encoder_layers=2, num_decoder_layers=2, relpos_per_layer=scanned)
  params = tiny.params(config)
  scorer, expected = T5Scorer(config), T5Scorer(config).prepare(params)
  state = _stacked(params, config) if scanned else params
  module = _module(config, scan_layers=scanned)

  def program(params):
    found, weights = target.of(params, module)
    assert found == scorer
    return weights

  found = jax.jit(program)({**state, "drafter": {"token_embedder": np.ones(3)}})
  jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_module_that_contradicts_its_parameters_is_refused():
  config = tiny.config()
  params = tiny.params(config)
  with pytest.raises(SpecdecError, match="says emb_dim 8, but the arrays of this"):
    target.of(params, _module(config, emb_dim=8))
  with pytest.raises(SpecdecError, match="param_scan_axis is 0; expected 1"):
    target.of(params, _module(config, scan_layers=True, param_scan_axis=0))
  with pytest.raises(SpecdecError, match=r"T5Config\.dtype is float16; expected"):
    target.of(params, _module(config, dtype="float16"))
  with pytest.raises(SpecdecError, match="object has no config; expected T5X's T5"):
    target.of(params, object())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tiny.save(tmp_path_factory.mktemp("t5x") / "pair")


@dataclasses.dataclass
class SentencePieceVocabulary:
  """Named as seqio's; the attributes of it that are looked at."""

  sp_model: bytes
  extra_ids: int = 0


def test_a_drafter_is_looked_at_without_reading_it_and_checked_for_its_pieces(folder):
  opened = drafter_lib.open_drafter(str(folder / "drafter"))
  assert opened.config == tiny.config() and opened.part.kind == "t5"
  opened.check("xxl", SentencePieceVocabulary(tiny.vocabulary().model))
  opened.check("xxl", "no vocabulary that is known")
  other = SentencePieceVocabulary(tiny.train_vocabulary(tiny.SENTENCES[:6], 60))
  with pytest.raises(SpecdecError, match=r"target xxl and drafter .* have different vocabularies"):
    opened.check("xxl", other)


def test_every_parameter_has_as_many_logical_axes_as_dimensions(folder):
  opened = drafter_lib.open_drafter(str(folder / "drafter"))
  axes = opened.axes()
  shapes = flat(opened.shapes())
  assert axes.keys() == shapes.keys()
  assert all(len(axes[name]) == len(leaf.shape) for name, leaf in shapes.items())
  assert axes["decoder/layers_0/self_attention/out/kernel"] == ("joined_kv", "embed")
  assert axes["decoder/logits_dense/kernel"] == ("embed", "vocab")


@pytest.mark.parametrize("spec, expected", [
    ("nowhere", "there is no drafter 'nowhere'"),
    ("copy+uniform", "uniform is the uniform drafter and cannot be drafted for"),
    ("copy:max_match=0", "option max_match of copy is 0"),
])
def test_drafters_that_are_none_are_refused(spec, expected):
  with pytest.raises(SpecdecError) as error:
    drafter_lib.open_drafter(spec)
  assert expected in str(error.value)


def test_kinds_that_do_not_run_in_t5x_are_refused(folder):
  with pytest.raises(SpecdecError, match="is a cascade, which T5X's train state has no place for"):
    drafter_lib.open_drafter(f"copy+{folder / 'drafter'}")


def test_a_drafter_without_weights_brings_none():
  opened = drafter_lib.open_drafter("copy:max_match=2")
  drafter, params = opened.ready(None, 40, "float32")
  assert (drafter.vocab_size, drafter.max_match, params) == (40, 2, ())
  assert not opened.arrays and not opened.axes()
