"""Several devices: the same ids however models and batches are split, and what is refused."""

import json
import os
import pathlib
import subprocess
import sys

import jax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from specdec.engine import mesh as mesh_lib
from specdec.engine import models
from specdec.errors import SpecdecError
from specdec.models.t5 import sharding
from specdec.models.t5 import weights
from specdec.models.t5.scorer import T5Scorer
from specdec.testing import tiny
from tests.engine import several_devices

# Not as a module: the installed package is tested, and tests are no part of it.
SCRIPT = pathlib.Path(__file__).parent / "several_devices.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
  """What a process with eight virtual devices says."""
  flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
  done = subprocess.run(
      [sys.executable, str(SCRIPT), str(tmp_path_factory.mktemp("mesh"))],
      env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}, capture_output=True,
      text=True)
  assert done.returncode == 0, done.stderr[-4000:]
  return json.loads(done.stdout.splitlines()[-1])


def test_every_drafter_says_the_same_on_one_device_and_on_eight(found):
  assert found["devices"] == 8
  for drafter in several_devices.DRAFTERS:
    assert found["mixed"][drafter] == found["one"][drafter], drafter


@pytest.mark.parametrize(
    "layout", ["data:8", "model:8", several_devices.MIXED, "two devices, whole drafter"])
def test_every_layout_says_the_same(found, layout):
  assert found["layouts"][layout] == found["one"]["drafter"]
  greedy, sampled = found["one"]["drafter"]
  assert greedy != sampled


def test_batches_that_the_devices_do_not_divide_are_filled_up(found):
  assert found["odd batches"] == found["one"]["drafter"]


def test_automatic_gamma_streaming_and_samples_work_on_a_mesh(found):
  assert found["auto"] == found["one"]["drafter"][0]
  assert found["streamed"] == found["one"]["drafter"][1]
  assert sorted(found["first samples"]) == sorted(found["one"]["drafter"][1])


def test_a_second_batch_compiles_nothing(found):
  assert found["compiled again"] == 0
  assert all(program["stable"] for program in found["programs"].values())


def test_logits_of_a_split_model_are_those_of_a_whole_one(found):
  assert found["logits differ by"] < 1e-4


def test_a_device_holds_its_share_of_the_weights_and_of_the_cache(found):
  for layout, share in (("model:8", 8), (several_devices.MIXED, 4), ("data:8", 1)):
    held, whole = found["bytes"][layout]
    # Norms are small and whole.
    assert whole / share <= held < 1.15 * whole / share, layout
  for program in found["programs"].values():
    held, whole = program["cache"]
    assert held * program["devices"] == whole


def test_an_array_on_disk_is_read_in_parts_and_each_part_once(found):
  assert found["read"]["decoder/layers_0/mlp/wi_0/kernel"] == [[16, 16]] * 4
  assert found["read"]["decoder/decoder_norm/scale"] == [[16]]


def test_the_loop_exchanges_no_weight_and_no_cache(found):
  """Sums of the residual stream, logits of a call, and rows' small numbers: nothing else."""
  config = tiny.config(**several_devices.SHAPE)
  for layout, program in found["programs"].items():
    largest = program["batch"] * 4 * config.vocab_size  # Logits, or q, of a whole draft.
    assert {kind for kind, _, _ in program["exchanged"]} <= {
        "all-reduce", "all-gather", "collective-permute", "all-to-all"}
    for _, size, line in program["exchanged"]:
      assert size <= largest, (layout, line)
  split = found["programs"]["model:8"]["exchanged"]
  assert {kind for kind, _, _ in split} <= {"all-reduce", "all-gather"}
  gathered = [line for kind, _, line in split if kind == "all-gather"]
  # The logits alone, of three calls: the drafter's first, its others, the target's.
  assert len(gathered) == 3, gathered


@pytest.mark.parametrize("text, told", [
    ("data:4,heads:2", "has an axis 'heads', which there is not"),
    ("data:4,modl:2", "did you mean model?"),
    ("data=4", "'data=4' is no axis with a size"),
    ("", "is no axis with a size"),
    ("data:4,", "is no axis with a size"),
    ("data:x", "gives data the size 'x'"),
    ("data:0", "gives data the size '0'"),
    ("data:-2", "gives data the size '-2'"),
    ("data:2,data:2", "names data twice"),
])
def test_malformed_meshes_are_refused(text, told):
  with pytest.raises(SpecdecError) as error:
    mesh_lib.parse(text)
  assert told in str(error.value) and "data:4,model:2" in str(error.value)
  assert "\n" not in str(error.value)


def test_a_mesh_of_another_size_than_the_devices_is_refused():
  here = len(jax.devices())
  with pytest.raises(SpecdecError, match=f"is for {8 * here} devices, and there (is|are) {here}"):
    mesh_lib.make(f"data:4,model:{2 * here}")
  with pytest.raises(SpecdecError, match=r"a jax\.sharding\.Mesh with the axes"):
    mesh_lib.make(jax.make_mesh((1,), ("x",)))
  with pytest.raises(SpecdecError, match="drafter_layout is 'halved'; expected one of split"):
    mesh_lib.check(None, "halved")


def test_the_command_refuses_in_one_line(mistake):
  assert "did you mean model?" in mistake("generate", "--mesh=modle:2", "A dog.")
  assert "is for 4096 devices" in mistake("generate", "--mesh=data:4096", "A dog.")
  assert "mesh is 'two'" in mistake("generate", "--gin.load_pair.mesh='two'", "A dog.")
  assert "drafter_layout is 'x'" in mistake("generate", "--drafter_layout=x", "A dog.")
  assert "specdec bench does not know it" in mistake("bench", "--gin.load_pair.mesh='data:1'")


def test_rules_are_by_name():
  config = tiny.config(**several_devices.SHAPE)
  of = lambda name: sharding.spec(name, config, 4)
  layer = "decoder/layers_0"
  assert of(f"{layer}/self_attention/query/kernel") == P(None, "model")
  assert of(f"{layer}/self_attention/query/kernel_out_in") == P("model", None)
  assert of(f"{layer}/self_attention/out/kernel") == P("model", None)
  assert of(f"{layer}/encoder_decoder_attention/key/kernel") == P(None, "model")
  assert of(f"{layer}/mlp/wi_1/kernel") == P(None, "model")
  assert of(f"{layer}/mlp/wo/kernel_out_in") == P(None, "model")
  assert of("token_embedder/embedding") == P("model", None)
  assert of("decoder/logits_dense/kernel_out_in") == P("model", None)
  assert of("decoder/relpos_bias/by_distance") == P("model", None)
  assert of(f"{layer}/self_attention/qkv/kernel") == P()
  assert of("decoder/decoder_norm/scale") == P()


def test_what_does_not_divide_is_whole_and_told(caplog):
  config = tiny.config(num_heads=6, mlp_dim=32)
  assert sharding.undivided(config, 4) == {"heads": 6}
  assert sharding.spec("encoder/layers_0/attention/key/kernel", config, 4) == P(None, None)
  assert sharding.spec("encoder/layers_0/mlp/wo/kernel", config, 4) == P("model", None)
  mesh_lib.tell("big/target", config, AbstractMesh((1, 4), ("data", "model")))
  assert caplog.messages == ["mesh: model:4 does not divide heads (6) of big/target; every device "
                             "holds the whole of it"]


def test_every_weight_of_a_split_model_has_a_rule_and_abstract_devices_will_do():
  """For compiling for devices that are not there."""
  config = tiny.config(**several_devices.SHAPE)
  scorer = T5Scorer(config, split=True)
  mesh = AbstractMesh((1, 8), ("data", "model"))
  where = sharding.places(config, mesh, scorer.split)
  shapes = jax.eval_shape(lambda p: scorer.prepare(p, where), weights.abstract(config))
  laid = sharding.abstract(shapes, where)
  for path, leaf in jax.tree_util.tree_leaves_with_path(laid):
    name = sharding.name_of(path)
    held = np.prod(leaf.sharding.shard_shape(leaf.shape))
    assert held == leaf.size if name.endswith("scale") else held * 8 == leaf.size, name


def test_a_split_model_is_the_same_network_on_one_device():
  """The layout alone: other kernels, no mesh."""
  config = tiny.config(**several_devices.SHAPE)
  params = tiny.params(config)
  split, joint = T5Scorer(config, split=True), T5Scorer(config)
  assert not weights.mismatch(weights.restore(split.prepare(params), config), config)
  source, tokens = np.array([[5, 6, 1]]), np.array([[0, 7, 8]])
  logits = [np.asarray(s.logits(s.prepare(params), models.make_source(source), tokens))
            for s in (split, joint)]
  np.testing.assert_allclose(*logits, atol=1e-5)
