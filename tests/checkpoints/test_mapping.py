"""The tables of names against the network itself."""

import pytest

from specdec.checkpoints import mapping
from specdec.models.t5 import weights
from specdec.models.t5.config import T5Config

V1_1 = T5Config(vocab_size=50, emb_dim=24, num_heads=3, head_dim=7, mlp_dim=20,
                num_encoder_layers=2, num_decoder_layers=3)
V1_0 = V1_1.replace(mlp_activations=("relu",), logits_via_embedding=True)
CONFIGS = {"v1.1": V1_1, "v1.0": V1_0, "umt5": V1_1.replace(relpos_per_layer=True)}


@pytest.mark.parametrize("name", CONFIGS)
def test_shapes_are_those_of_the_network(name):
  config = CONFIGS[name]
  assert mapping.parameter_shapes(config.to_dict()) == weights._shapes(weights.abstract(config))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_parameter_has_a_place_of_its_own(name):
  table = mapping.hf_table(CONFIGS[name].to_dict())
  assert len({place.name for place in table.values()}) == len(table)


@pytest.mark.parametrize("ours, theirs, transposed", [
    ("token_embedder/embedding", "shared.weight", False),
    ("decoder/logits_dense/kernel", "lm_head.weight", True),
    ("encoder/relpos_bias/rel_embedding",
     "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", True),
    ("decoder/layers_2/relpos_bias/rel_embedding",
     "decoder.block.2.layer.0.SelfAttention.relative_attention_bias.weight", True),
    ("encoder/layers_11/mlp/wi_1/kernel",
     "encoder.block.11.layer.1.DenseReluDense.wi_1.weight", True),
    ("decoder/layers_0/mlp/wo/kernel", "decoder.block.0.layer.2.DenseReluDense.wo.weight", True),
    ("decoder/layers_1/encoder_decoder_attention/out/kernel",
     "decoder.block.1.layer.1.EncDecAttention.o.weight", True),
    ("decoder/layers_1/pre_cross_attention_layer_norm/scale",
     "decoder.block.1.layer.1.layer_norm.weight", False),
    ("encoder/encoder_norm/scale", "encoder.final_layer_norm.weight", False),
])
def test_places(ours, theirs, transposed):
  assert mapping.hf_parameter(ours) == (theirs, transposed)


def test_what_t5_lacks_has_no_place():
  with pytest.raises(KeyError):
    mapping.hf_parameter("decoder/layers_0/router/kernel")


def test_differences_name_the_nearest():
  wanted = {"a/kernel": (2, 3), "decoder/layers_0/mlp/wi_0/kernel": (4, 4), "b": (1,)}
  found = {"a/kernel": (3, 2), "decoder/layers_0/mlp/wi/kernel": (4, 4), "b": (1,)}
  told = mapping.differences(wanted, found)
  assert told == ("missing: decoder/layers_0/mlp/wi_0/kernel (there is "
                  "decoder/layers_0/mlp/wi/kernel); unexpected: decoder/layers_0/mlp/wi/kernel; "
                  "of another shape: a/kernel (3, 2), expected (2, 3)")
  assert mapping.differences(wanted, wanted) == ""
  many = mapping.differences({str(i): (1,) for i in range(9)}, {})
  assert many.endswith("5 and 3 more")
