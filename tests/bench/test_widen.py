"""Widened pairs: what they say is the small models', what they cost the large ones'."""

import dataclasses

import jax
import numpy as np
import pytest

import specdec
from specdec.bench import widen as widen_lib
from specdec.drafters.copy import CopyDrafter
from specdec.engine import drafters
from specdec.engine.models import make_model
from specdec.engine.pairs import Pair
from specdec.errors import SpecdecError
from specdec.models.t5 import weights as weights_lib
from specdec.models.t5.scorer import T5Scorer
from specdec.testing import numpy_t5
from specdec.testing import tiny

SMALL = tiny.config()
LARGE = SMALL.replace(vocab_size=SMALL.vocab_size + 40, emb_dim=44, num_heads=3, head_dim=12,
                      mlp_dim=52, num_encoder_layers=2, num_decoder_layers=3)
DRAFTER = LARGE.replace(emb_dim=28, num_decoder_layers=2)
SOURCE, DECODER = [[5, 9, 14, 30, 1], [7, 1, 0, 0, 0]], [[0, 8, 21, 33], [0, 4, 2, 3]]
TEXTS = ("A small boat.", "The cat sleeps.")


@pytest.fixture(scope="module")
def pair():
  return widen_lib.widen(tiny.pair(), LARGE, DRAFTER)


def _model(config, scale=1.0):
  params = tiny.params(config) if not config.logits_via_embedding else _tied(config)
  params["token_embedder"]["embedding"] *= scale
  return make_model("small", config, params, tiny.vocabulary())


def _tied(config):
  rng = np.random.default_rng(0)
  draw = lambda path, leaf: (
      np.ones(leaf.shape, np.float32) if path[-1].key == "scale" else
      rng.standard_normal(leaf.shape).astype(np.float32) / leaf.shape[0] ** 0.5)
  return jax.tree_util.tree_map_with_path(draw, weights_lib.abstract(config))


def _oracle(params, config, row):
  """Logits in float64, of a row of `SOURCE` and `DECODER`; takes no compiling."""
  tree = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  return numpy_t5.logits(tree, config, [i for i in SOURCE[row] if i], DECODER[row])


@pytest.mark.parametrize("changes, scale", [
    ({}, 1.0),
    # So small a stream that the epsilon of the norms decides what comes out.
    ({}, 1e-3),
    ({"logits_via_embedding": True, "mlp_activations": ("relu",), "relpos_per_layer": True}, 1.0),
    ({"dtype": "bfloat16"}, 1.0),
], ids=["v1.1", "epsilon", "v1.0 with a bias per layer", "bfloat16"])
def test_weights_of_any_variant_say_what_they_said(changes, scale):
  small = _model(SMALL.replace(**changes), scale)
  large = widen_lib.widen_model(small, LARGE)
  before, after = (weights_lib.restore(m.weights, m.config) for m in (small, large))
  assert large.config.dtype == small.config.dtype
  for row in range(2):
    wanted, found = (_oracle(x, m.config, row) for x, m in ((before, small), (after, large)))
    np.testing.assert_allclose(found[:, :SMALL.vocab_size], wanted, atol=5e-6, rtol=0)
    # For a library without our mask: a tie with id 0, which comes first.
    np.testing.assert_array_equal(found[:, SMALL.vocab_size:], found[:, :1].repeat(40, 1))


def test_logits_are_those_of_the_small_model(pair):
  wanted, found = (p.target.logits(SOURCE, DECODER) for p in (tiny.pair(), pair))
  assert found.shape[-1] == LARGE.vocab_size
  np.testing.assert_allclose(found[..., :SMALL.vocab_size], wanted, atol=1e-4, rtol=0)
  assert (found[..., SMALL.vocab_size:] == -np.inf).all()


def test_every_array_has_the_large_shape(pair):
  for model, shape in ((pair.target, LARGE), (pair.drafter.model, DRAFTER)):
    assert model.widened and model.config.emb_dim == shape.emb_dim
    restored = weights_lib.restore(model.weights, model.config)
    assert weights_lib.mismatch(restored, shape) == ""
    bytes_per_call = weights_lib.bytes_per_call(model.weights, model.config)
    random = T5Scorer(shape).prepare(tiny.params(shape))
    assert bytes_per_call == weights_lib.bytes_per_call(random, shape)


def test_greedy_ids_are_unchanged_and_drafts_are_too(pair):
  wanted = specdec.generate(tiny.pair(), TEXTS, task="", gamma=2)
  found = specdec.generate(pair, TEXTS, task="", gamma=2)
  assert found.ids == wanted.ids and found.accepted == wanted.accepted
  np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-3)


def test_padding_is_never_drawn(pair):
  """At a temperature where every id that may be drawn is, drafted by whatever there is."""
  uniform = Pair("uniform", pair.target, drafters.without_weights(
      drafters_plan("uniform"), LARGE.vocab_size), max_decode_len=12)
  result = specdec.generate(uniform, TEXTS, temperature=1e4, num_decodes=16, gamma=2)
  ids = np.concatenate([r.output_ids for r in result.records])
  assert ids.max() < SMALL.vocab_size and len(set(ids)) > SMALL.vocab_size / 2
  assert np.isfinite([r.score for r in result.records]).all()


def drafters_plan(spec):
  from specdec.engine import drafter_specs

  return drafter_specs.plan(spec, drafter_specs.Known())[0]


def test_bfloat16_keeps_the_scales_in_float32():
  large = widen_lib.widen_model(_model(SMALL.replace(dtype="bfloat16")), LARGE)
  decoder = large.weights["decoder"]
  scale = decoder["decoder_norm"]["scale"]
  kernel, = decoder["layers_0"]["mlp"]["wo"].values()
  assert scale.dtype == np.float32 and kernel.dtype.name == "bfloat16"
  np.testing.assert_allclose(np.asarray(scale)[:SMALL.emb_dim],
                             (SMALL.emb_dim / LARGE.emb_dim) ** 0.5, rtol=1e-6)


def test_a_drafter_without_weights_gets_the_large_vocabulary():
  copy = dataclasses.replace(tiny.pair(), drafter=drafters.LoadedDrafter(
      "copy", CopyDrafter(SMALL.vocab_size), ()))
  drafter = widen_lib.widen(copy, LARGE).drafter
  assert drafter.drafter == CopyDrafter(LARGE.vocab_size) and drafter.name == "copy"


def test_what_does_not_fit_is_refused_in_one_line():
  pair = tiny.pair()
  for size, words in ((LARGE.replace(emb_dim=8, num_heads=1), "emb_dim 16 against 8, num_heads 2"),
                      ("huge", "there is no T5 size 'huge'")):
    with pytest.raises(SpecdecError, match=words):
      widen_lib.widen(pair, size, DRAFTER)
    with pytest.raises(SpecdecError, match=words):
      widen_lib.widen(pair, LARGE, size)
  tied = _model(SMALL.replace(logits_via_embedding=True, mlp_activations=("relu",)))
  with pytest.raises(SpecdecError, match="expected a T5 v1"):
    widen_lib.widen_model(tied, "tiny")
  cascade = dataclasses.replace(pair, drafter=drafters._cascade(
      drafters.LoadedDrafter("copy", CopyDrafter(SMALL.vocab_size), ()), 2, pair.drafter,
      pair.target))
  with pytest.raises(SpecdecError, match="cannot be widened"):
    widen_lib.widen(cascade, LARGE)
