"""Hugging Face checkpoints against the PyTorch T5 of transformers, both ways."""

import json
import shutil

import numpy as np
import pytest

import specdec
from specdec.checkpoints import detect
from specdec.checkpoints import hf_write
from specdec.engine import convert
from specdec.engine.pairs import Pair
from specdec.errors import SpecdecError
from tests.checkpoints import t5x_data

torch = pytest.importorskip("torch", reason="parity with PyTorch needs torch: the test extra")
transformers = pytest.importorskip(
    "transformers", reason="parity with PyTorch needs transformers: the test extra")
pytest.importorskip("safetensors", reason="Hugging Face checkpoints need safetensors")

_SIZES = {"vocab_size": 384, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2,
          "num_decoder_layers": 2, "num_heads": 3, "decoder_start_token_id": 0}
_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
# Class, fields of its configuration, and whether the output layer is one of its own.
FAMILIES = {
    "T5 v1.0": ("T5", {"feed_forward_proj": "relu"}, False),
    "T5 v1.1": ("T5", _GATED, True),
    "Flan-T5": ("T5", {**_GATED, "n_positions": 512, "output_past": True}, True),
    "mT5": ("MT5", _GATED, True),
    "byT5": ("T5", {**_GATED, "tokenizer_class": "ByT5Tokenizer"}, True),
    "v1.1, tied": ("T5", _GATED, False),
    "umT5": ("UMT5", {}, True),
}


def make(name):
  """A random model of a family, every parameter away from a special value."""
  kind, fields, untied = FAMILIES[name]
  torch.manual_seed(7)
  config = getattr(transformers, f"{kind}Config")(**_SIZES, **fields)
  model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
  with torch.no_grad():
    if untied:
      model.lm_head.weight = torch.nn.Parameter(torch.randn(384, 16) / 2)
    for key, weight in model.named_parameters():
      if key.endswith("layer_norm.weight"):
        weight += 0.2 * torch.randn_like(weight)
      elif "relative_attention_bias" in key:
        weight.copy_(torch.randn_like(weight))
  return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """A random model of each family and its folder, by name."""
  root = tmp_path_factory.mktemp("hf")
  out = {}
  for name in FAMILIES:
    folder = root / name.replace(" ", "_").replace(",", "")
    model = make(name)
    # transformers 5 ties again what it saves, unless it is told.
    model.save_pretrained(folder)
    if name == "byT5":
      (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')
    out[name] = (model, folder)
  return out


def inputs(seed=0):
  rng = np.random.default_rng(seed)
  encoder_ids = rng.integers(2, 380, (2, 11))
  encoder_ids[1, 5:] = 0
  decoder_ids = rng.integers(2, 380, (2, 8))
  decoder_ids[:, 0] = 0
  return encoder_ids, decoder_ids


def torch_logits(model, encoder_ids, decoder_ids):
  with torch.no_grad():
    return model(input_ids=torch.tensor(encoder_ids),
                 attention_mask=torch.tensor(encoder_ids > 0).long(),
                 decoder_input_ids=torch.tensor(decoder_ids)).logits.numpy()


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_pytorch(saved, name):
  model, folder = saved[name]
  ours = specdec.load_model(folder, "float32")
  wanted = torch_logits(model, *inputs())
  np.testing.assert_allclose(ours.logits(*inputs()), wanted, rtol=0, atol=1e-4)
  assert np.abs(wanted).max() > 1
  assert ours.num_params == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["T5 v1.0", "T5 v1.1", "Flan-T5", "mT5", "byT5"])
def test_greedy_ids_are_those_of_pytorch(saved, name):
  model, folder = saved[name]
  ours = specdec.load_model(folder, "float32", vocabulary="bytes")
  encoder_ids, _ = inputs(1)
  with torch.no_grad():
    wanted = model.generate(
        input_ids=torch.tensor(encoder_ids), attention_mask=torch.tensor(encoder_ids > 0).long(),
        max_new_tokens=16, do_sample=False, num_beams=1).tolist()
  found = specdec.generate_ids(Pair("same", ours, ours), encoder_ids, gamma=3, max_decode_len=16)
  for record, row in zip(found.records, wanted, strict=True):
    assert record.output_ids == row[1:len(record.output_ids) + 1]
    assert len(record.output_ids) == 16 or record.output_ids[-1] == 1


def arrays_of(path):
  return {name: np.asarray(array)
          for name, array in detect.open_checkpoint(path).arrays.items()}


def assert_same(path, other):
  a, b = arrays_of(path), arrays_of(other)
  assert a.keys() == b.keys()
  for name in a:
    assert a[name].dtype == b[name].dtype
    np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize("dtype", ["keep", "bfloat16"])
@pytest.mark.parametrize("name", ["T5 v1.0", "T5 v1.1"])
def test_round_trip_over_t5x_is_exact(saved, name, dtype, tmp_path):
  _, folder = saved[name]
  convert.convert(folder, tmp_path / "a", to="t5x", vocabulary="none", dtype=dtype)
  convert.convert(tmp_path / "a", tmp_path / "b", to="hf", vocabulary="none")
  convert.convert(tmp_path / "b", tmp_path / "c", to="t5x", vocabulary="none")
  assert_same(tmp_path / "a", tmp_path / "c")
  if dtype == "keep":
    assert_same(folder, tmp_path / "b")


@t5x_data.needed
@pytest.mark.parametrize("name", ["t5_1_1_tiny", "t5_1_1_tiny_orbax"])
def test_t5x_to_hugging_face_and_back(name, tmp_path):
  source = t5x_data.FOLDER / name
  convert.convert(source, tmp_path / "hf", to="hf", vocabulary="none")
  convert.convert(tmp_path / "hf", tmp_path / "t5x", to="t5x", vocabulary="none")
  assert_same(source, tmp_path / "t5x")
  golden = t5x_data.golden(name)
  model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
  found = torch_logits(model, golden["encoder_input_tokens"], golden["decoder_input_tokens"])
  np.testing.assert_allclose(found, golden["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["T5 v1.0", "mT5", "v1.1, tied"])
def test_transformers_loads_what_is_exported(saved, name, tmp_path, monkeypatch):
  model, folder = saved[name]
  # Several shards even of a small model.
  monkeypatch.setattr(hf_write, "SHARD_BYTES", 20_000)
  convert.convert(folder, tmp_path / "bundle", vocabulary="bytes")
  convert.convert(tmp_path / "bundle", tmp_path / "hf", to="hf")
  again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
  np.testing.assert_allclose(torch_logits(again, *inputs()), torch_logits(model, *inputs()),
                             rtol=0, atol=1e-5)
  assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 1


def test_export_is_refused_when_biases_of_layers_differ(saved, tmp_path):
  with pytest.raises(SpecdecError, match="position biases of their own that differ"):
    convert.convert(saved["umT5"][1], tmp_path / "hf", to="hf", vocabulary="none")
  assert list(tmp_path.iterdir()) == []


def test_pytorch_bin_old_and_new_and_sharded(saved, tmp_path):
  model, folder = saved["T5 v1.1"]
  state = model.state_dict()
  for i, form in enumerate(("zip", "old", "bfloat16")):
    path = tmp_path / form
    path.mkdir()
    shutil.copy(folder / "config.json", path)
    kept = {k: v.bfloat16() for k, v in state.items()} if form == "bfloat16" else state
    torch.save(kept, path / "pytorch_model.bin", _use_new_zipfile_serialization=i != 1)
    found = arrays_of(path)
    for name, array in arrays_of(folder).items():
      np.testing.assert_array_equal(found[name], array.astype(found[name].dtype), err_msg=form)
  path = tmp_path / "sharded"
  path.mkdir()
  shutil.copy(folder / "config.json", path)
  keys = sorted(state)
  placed = {key: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, key in enumerate(keys)}
  for file in set(placed.values()):
    torch.save({k: state[k] for k in keys if placed[k] == file}, path / file)
  (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": placed}))
  assert_same(folder, path)


def test_a_tied_output_layer_in_a_pickle_is_seen_as_tied(saved, tmp_path):
  model, folder = saved["T5 v1.0"]
  shutil.copy(folder / "config.json", tmp_path)
  torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
  assert "lm_head.weight" in model.state_dict()
  assert_same(folder, tmp_path)


def test_a_swap_of_the_gates_would_be_seen(saved):
  model, folder = saved["mT5"]
  ours = specdec.load_model(folder, "float32")
  wanted = torch_logits(model, *inputs())
  params = detect.open_checkpoint(folder).tree()
  mlp = params["decoder"]["layers_1"]["mlp"]
  mlp["wi_0"], mlp["wi_1"] = mlp["wi_1"], mlp["wi_0"]
  swapped = specdec.engine.models.make_model("swapped", ours.config, params, ours.vocabulary)
  assert np.abs(swapped.logits(*inputs()) - wanted).max() > 1e-2


def test_a_name_on_the_hub(saved, monkeypatch, tmp_path):
  hub = pytest.importorskip("huggingface_hub", reason="names on the hub need huggingface_hub")
  monkeypatch.chdir(tmp_path)
  asked = []

  def download(name, allow_patterns):
    asked.append((name, "pytorch_model*.bin" in allow_patterns))
    return str(saved["mT5"][1])

  monkeypatch.setattr(hub, "snapshot_download", download)
  assert detect.open_checkpoint("google/mt5-tiny").layout.startswith("Hugging Face mt5")
  assert asked == [("google/mt5-tiny", False)]

  def offline(*_, **__):
    raise OSError("no route to host\nand a screen of advice")

  monkeypatch.setattr(hub, "snapshot_download", offline)
  with pytest.raises(SpecdecError, match="no folder google/mt5-tiny, and the hub") as caught:
    detect.open_checkpoint("google/mt5-tiny")
  assert "no route to host" in str(caught.value) and "\n" not in str(caught.value)
