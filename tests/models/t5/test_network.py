"""The T5 network against a NumPy one, against T5X's own numbers, and its cache."""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.models.t5 import relpos
from specdec.models.t5 import weights as weights_lib
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import T5
from specdec.models.t5.scorer import T5Scorer
from specdec.testing import numpy_t5
from specdec.types import Source

V1_1 = T5Config(vocab_size=50, emb_dim=24, num_heads=3, head_dim=8, mlp_dim=20,
                num_encoder_layers=2, num_decoder_layers=2)
V1_0 = V1_1.replace(mlp_activations=("relu",), logits_via_embedding=True)
CAPACITY = 192


def make_params(config: T5Config, seed: int = 0):
  """Random parameters, none of them at a special value such as a scale of 1."""
  ids = jnp.ones((1, 4), jnp.int32)
  params = T5(config).init(jax.random.key(seed), ids, ids > 0, ids)["params"]
  rng = np.random.default_rng(seed)
  return jax.tree.map(lambda x: x + 0.3 * rng.standard_normal(x.shape).astype(np.float32)
                      * max(float(x.std()), 0.5), params)


def make_source(lengths, width=None, seed=3):
  rng = np.random.default_rng(seed)
  rows = [rng.integers(2, 50, n) for n in lengths]
  ids = np.zeros((len(rows), width or max(lengths)), np.int32)
  for i, row in enumerate(rows):
    ids[i, :len(row)] = row
  return Source(ids=ids, length=np.asarray(lengths, np.int32))


def decoder_inputs(batch, size, seed=4):
  ids = np.random.default_rng(seed).integers(1, 50, (batch, size)).astype(np.int32)
  ids[:, 0] = 0
  return ids


@pytest.fixture(scope="module")
def model():
  scorer = T5Scorer(V1_1)
  return scorer, scorer.prepare(make_params(V1_1))


score = jax.jit(lambda scorer, weights, ids, cache: scorer.score(weights, ids, cache),
                static_argnums=0)
init = jax.jit(lambda scorer, weights, source: scorer.init(weights, source, CAPACITY),
               static_argnums=0)


VARIANTS = {
    "v1.1": V1_1, "v1.0": V1_0, "tied, unscaled": V1_0.replace(scale_logits=False),
    "biases of layers": V1_1.replace(relpos_per_layer=True, scale_logits=True)}


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("out_in", [False, True], ids=["in_out", "out_in"])
def test_logits_equal_a_numpy_t5(config, out_in):
  params = make_params(config)
  source = make_source([11, 4])
  ids = decoder_inputs(2, 9)
  scorer = T5Scorer(config, out_in)
  ours = scorer.logits(scorer.prepare(params), source, ids)
  training = T5(config).apply({"params": params}, source.ids, source.mask, ids)
  for row, length in enumerate([11, 4]):
    wanted = numpy_t5.logits(params, config, source.ids[row, :length], ids[row])
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(ours[row], wanted, atol=2e-5 * scale)
    np.testing.assert_allclose(training[row], wanted, atol=2e-5 * scale)


def test_a_swap_of_the_gates_is_seen():
  params = make_params(V1_1)
  mlp = params["decoder"]["layers_1"]["mlp"]
  swapped = {**params, "decoder": {**params["decoder"], "layers_1": {
      **params["decoder"]["layers_1"],
      "mlp": {"wi_0": mlp["wi_1"], "wi_1": mlp["wi_0"], "wo": mlp["wo"]}}}}
  source, ids = make_source([6]), decoder_inputs(1, 5)
  scorer = T5Scorer(V1_1)
  right, wrong = (scorer.logits(scorer.prepare(p), source, ids) for p in (params, swapped))
  assert np.abs(right - wrong).max() > 1e-2


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets(bidirectional):
  offsets = np.arange(-300, 301)
  ours = relpos.bucket(offsets, bidirectional, 32, 128)
  wanted = [numpy_t5.bucket(int(o), bidirectional, 32, 128) for o in offsets]
  np.testing.assert_array_equal(ours, wanted)
  assert ours.min() == 0 and ours.max() == 31


def test_one_call_of_many_tokens_equals_many_calls_of_one(model):
  scorer, weights = model
  source, ids = make_source([5, 9]), decoder_inputs(2, 8)
  together, hidden, cache = score(scorer, weights, ids, init(scorer, weights, source))
  assert hidden.shape == (2, 8, V1_1.emb_dim)
  one = init(scorer, weights, source)
  for i in range(8):
    logits, _, one = score(scorer, weights, ids[:, i:i + 1], one)
    np.testing.assert_allclose(logits[:, 0], together[:, i], atol=1e-4)
  np.testing.assert_array_equal(one.length, cache.length)
  np.testing.assert_allclose(together, scorer.logits(weights, source, ids), atol=1e-4)


def test_rows_at_offsets_of_their_own_up_to_beyond_the_maximum_distance(model):
  scorer, weights = model
  offsets = [3, 17, 130]
  source, ids = make_source([5, 7, 6]), decoder_inputs(3, 134)
  _, _, cache = score(scorer, weights, ids[:, :130], init(scorer, weights, source))
  cache = scorer.rollback(cache, jnp.asarray(offsets))
  block = np.stack([row[o:o + 4] for row, o in zip(ids, offsets)])
  logits, _, _ = score(scorer, weights, block, cache)
  wanted = scorer.logits(weights, source, ids)
  for row, offset in enumerate(offsets):
    np.testing.assert_allclose(logits[row], wanted[row, offset:offset + 4], atol=1e-4)


@pytest.mark.parametrize("batch", [1, 2])
def test_write_roll_back_and_rewrite_equals_fresh(model, batch):
  scorer, weights = model
  source = make_source([5, 9][:batch])
  ids, junk = decoder_inputs(batch, 12), decoder_inputs(batch, 12, seed=9)
  cache = init(scorer, weights, source)
  _, _, cache = score(scorer, weights, ids[:, :6], cache)
  _, _, cache = score(scorer, weights, junk[:, :6], cache)  # to be rejected
  cache = scorer.rollback(cache, jnp.full((batch,), 6))
  logits, _, _ = score(scorer, weights, ids[:, 6:], cache)
  np.testing.assert_allclose(logits, scorer.logits(weights, source, ids)[:, 6:], atol=1e-4)


def test_what_stands_behind_a_row_is_never_seen(model):
  scorer, weights = model
  source, ids = make_source([5, 9]), decoder_inputs(2, 8)
  _, _, cache = score(scorer, weights, ids[:, :4], init(scorer, weights, source))
  filthy = cache.replace(
      self_key=tuple(k.at[:, :, 4:].set(1e4) for k in cache.self_key),
      self_value=tuple(v.at[:, :, 4:].set(1e4) for v in cache.self_value))
  clean, _, _ = score(scorer, weights, ids[:, 4:], cache)
  dirty, _, _ = score(scorer, weights, ids[:, 4:], filthy)
  np.testing.assert_array_equal(clean, dirty)


def test_cross_attention_cache_is_untouched_by_fifty_rounds(model):
  scorer, weights = model
  source, ids = make_source([5, 9]), decoder_inputs(2, 4)
  cache = first = init(scorer, weights, source)
  for i in range(50):
    _, _, cache = score(scorer, weights, ids, cache)
    cache = scorer.rollback(cache, jnp.asarray([i + 1, i]))
  for a, b in zip(first.cross_key + first.cross_value, cache.cross_key + cache.cross_value):
    np.testing.assert_array_equal(a, b)


def test_padded_sources_in_one_batch_equal_each_alone(model):
  scorer, weights = model
  lengths = [1, 7, 512]
  source, ids = make_source(lengths), decoder_inputs(3, 5)
  together = scorer.logits(weights, source, ids)
  for row, length in enumerate(lengths):
    alone = Source(source.ids[row:row + 1, :length], source.length[row:row + 1])
    np.testing.assert_allclose(
        scorer.logits(weights, alone, ids[row:row + 1])[0], together[row], atol=1e-4)


def test_insert_replaces_rows_and_ignores_rows_outside(model):
  scorer, weights = model
  old, new = make_source([5, 9, 4], 9), make_source([3, 6], 9, seed=11)
  ids = decoder_inputs(3, 3)
  _, _, cache = score(scorer, weights, ids, init(scorer, weights, old))
  cache = scorer.insert(cache, jnp.asarray([2, -1]), init(scorer, weights, new))
  np.testing.assert_array_equal(cache.length, [3, 3, 0])
  logits, _, _ = score(scorer, weights, ids, cache.replace(length=jnp.zeros(3, jnp.int32)))
  mixed = Source(np.concatenate([old.ids[:2], new.ids[:1]]),
                 np.concatenate([old.length[:2], new.length[:1]]))
  np.testing.assert_allclose(logits, scorer.logits(weights, mixed, ids), atol=1e-4)


def test_bfloat16_gives_float32_logits_near_those_of_float32():
  # Plain initial weights: the perturbed ones have logits in the hundreds.
  ids = jnp.ones((1, 4), jnp.int32)
  params = T5(V1_1).init(jax.random.key(0), ids, ids > 0, ids)["params"]
  source, ids = make_source([5, 9]), decoder_inputs(2, 6)
  low = T5Scorer(V1_1.replace(dtype="bfloat16"), out_in=False)
  weights = low.prepare(params)
  logits = low.logits(weights, source, ids)
  assert logits.dtype == jnp.float32
  assert weights["decoder"]["layers_0"]["mlp"]["wi"]["kernel"].dtype == jnp.bfloat16
  assert weights["decoder"]["decoder_norm"]["scale"].dtype == jnp.float32
  full = T5Scorer(V1_1)
  wanted = full.logits(full.prepare(params), source, ids)
  assert 0 < np.abs(logits - wanted).max() < 0.05 * np.abs(wanted).max()


def test_mismatch_names_what_is_wrong():
  params = make_params(V1_1)
  assert weights_lib.mismatch(params, V1_1) == ""
  decoder = dict(params["decoder"])
  decoder["extra"] = decoder.pop("decoder_norm")
  said = weights_lib.mismatch({**params, "decoder": decoder}, V1_1.replace(vocab_size=60))
  assert "missing: decoder/decoder_norm/scale" in said
  assert "unexpected: decoder/extra/scale" in said
  assert "token_embedder/embedding (50, 24), expected (60, 24)" in said


@pytest.mark.parametrize("fields, words", [
    ({"num_heads": 0}, "num_heads is 0"), ({"dtype": "float16"}, "float16 overflows"),
    ({"mlp_activations": ("swish",)}, "expected names out of")])
def test_config_refuses(fields, words):
  with pytest.raises(ValueError, match=words):
    V1_1.replace(**fields)


def test_config_round_trip():
  assert T5Config.from_dict(json.loads(json.dumps(V1_0.to_dict()))) == V1_0
  with pytest.raises(ValueError, match="unknown T5Config fields depth"):
    T5Config.from_dict({**V1_0.to_dict(), "depth": 3})


@pytest.mark.parametrize("size, millions", [
    ("small", 77), ("base", 248), ("large", 783), ("xl", 2850), ("xxl", 11135)])
def test_public_sizes_have_the_public_parameter_counts(size, millions):
  path = pathlib.Path(__file__).parents[3] / "configs" / "t5" / f"v1_1_{size}.json"
  assert round(weights_lib.count(T5Config.from_json(path)) / 1e6) == millions
