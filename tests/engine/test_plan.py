"""Planning: what is worked out of shapes is what the arrays take."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import keys
from specdec.core import loop
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.core.state import capacity_for
from specdec.drafters.transformer import TransformerDrafter
from specdec.engine import plan
from specdec.models.t5 import sizes
from specdec.models.t5 import weights as weights_lib
from specdec.models.t5.config import T5Config
from specdec.models.t5.scorer import T5Scorer
from specdec.types import Source

TARGET = T5Config(vocab_size=96, emb_dim=16, num_heads=4, head_dim=8, mlp_dim=32,
                  num_encoder_layers=2, num_decoder_layers=3)
SMALL = TARGET.replace(emb_dim=8, num_heads=2, mlp_dim=16, num_decoder_layers=1)
XXL = plan.Wanted(sizes.load("xxl").replace(dtype="bfloat16"),
                  sizes.load("small").replace(dtype="bfloat16"), gamma=7)


def nbytes(tree):
  return sum(x.nbytes for x in jax.tree.leaves(tree))


def test_weights_and_caches_are_those_of_the_arrays():
  wanted = plan.Wanted(TARGET, SMALL, 3, batch_size=2, source_len=8, max_decode_len=12)
  scorers = [T5Scorer(c, out_in=False) for c in (TARGET, SMALL)]
  weights = Weights(*(s.prepare(jax.tree.map(
      lambda x: np.zeros(x.shape, x.dtype), weights_lib.abstract(s.config))) for s in scorers))
  method = Method(scorers[0], TransformerDrafter(scorers[1], 96), 3)
  ids = lambda width: Source(np.zeros((2, width), np.int32), np.ones(2, np.int32))
  state = loop.start(method, weights, ids(8), ids(1), keys.row_keys(0, jnp.arange(2)),
                     np.ones(2, bool), capacity_for(12, 3))
  found = plan.plan(wanted).parts
  assert found["target weights"] == nbytes(weights.target)
  assert found["drafter weights"] == nbytes(weights.drafter)
  assert found["target caches"] == nbytes(state.target_cache)
  assert found["drafter caches"] == nbytes(state.draft_state)


def test_t5_xxl_takes_what_the_compiler_for_tpu_v4_says():
  """Peaks of the compiled programs, in `specdec/assets/bench/tpu_v4_aot.json`: 21.4 GiB."""
  assert plan.plan(XXL).total / plan.GIB == pytest.approx(21.4, rel=0.03)


def test_heads_and_widths_are_shared_among_devices_and_norms_are_not():
  whole = plan.plan(XXL).parts
  found = plan.plan(dataclasses.replace(XXL, model=4)).parts
  for name in ("target weights", "target caches"):
    assert whole[name] / 4 < found[name] < whole[name] / 4 * 1.01
  # Six heads are not to be split among four devices.
  assert found["drafter weights"] > whole["drafter weights"] / 4 * 1.2
  assert found["drafter caches"] == pytest.approx(whole["drafter caches"], rel=0.01)
  assert plan.plan(dataclasses.replace(XXL, model=4, whole_drafter=True)).parts[
      "drafter weights"] == whole["drafter weights"]


def test_rows_are_shared_among_devices():
  many = dataclasses.replace(XXL, batch_size=8)
  assert plan.plan(dataclasses.replace(many, data=8)).total == pytest.approx(
      plan.plan(XXL).total, rel=1e-3)
  assert plan.plan(many).parts["target caches"] == 8 * plan.plan(XXL).parts["target caches"]


def test_the_fewest_devices_that_will_do():
  assert plan.smallest_model_axis(XXL, 32 * plan.GIB) == 1
  assert plan.smallest_model_axis(XXL, 16 * plan.GIB) == 2
  assert plan.smallest_model_axis(XXL, plan.GIB / 100) is None
