"""Small things that a checkpoint must not get wrong without a word."""

import json
import os
import platform

import pytest

from specdec.bench.timing import Spread
from specdec.checkpoints import drafts
from specdec.checkpoints import hf_config
from specdec.checkpoints import t5x
from specdec.checkpoints import vocabularies
from specdec.errors import SpecdecError
from specdec.models.t5.config import T5Config


def test_what_lies_beside_a_checkpoint_is_found_from_within(tmp_path, monkeypatch):
  inner = tmp_path / "model" / "checkpoint_7"
  inner.mkdir(parents=True)
  monkeypatch.chdir(inner)
  assert t5x._beside(".")[1] == str(tmp_path / "model")
  assert t5x._beside("gs://bucket/model/checkpoint_7")[1] == "gs://bucket/model"
  assert t5x._name(".") == t5x._name("gs://bucket/model/checkpoint_7") == "checkpoint_7"


def test_tokens_that_were_added_are_not_dropped(tmp_path):
  (tmp_path / "spiece.model").write_bytes(b"pieces")
  token = lambda text: {"id": 1, "content": text}
  usual = [token("</s>"), token("<pad>"), token("<extra_id_3>")]
  for added, kind in ((usual, "sentencepiece"), ([*usual, token("<hl>")], "tokenizer"),
                      (None, "sentencepiece")):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert vocabularies.find([str(tmp_path)], 128).kind == kind


def test_folders_are_written_locally(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SpecdecError, match="cannot write gs://bucket/x: folders are written local"):
    with drafts.whole_folder("gs://bucket/x"):
      pass
  assert not list(tmp_path.iterdir())


def test_drafts_of_another_host_are_left_alone(tmp_path, monkeypatch):
  with pytest.raises(RuntimeError):
    with drafts.whole_folder(tmp_path / "a") as draft:
      ours = draft.name.replace(str(os.getpid()), "999999999")
      raise RuntimeError
  monkeypatch.setattr(platform, "node", lambda: "elsewhere")
  theirs = drafts._prefix(tmp_path / "a") + "999999999.tmp"
  monkeypatch.undo()
  for name in (ours, theirs):
    (tmp_path / name).mkdir()
  with drafts.whole_folder(tmp_path / "a"):
    pass
  assert sorted(p.name for p in tmp_path.iterdir()) == sorted([theirs, "a"])


@pytest.mark.parametrize("field, value", [
    ("num_decoder_layers", "2"), ("num_decoder_layers", -1), ("feed_forward_proj", ["relu"]),
    ("layer_norm_epsilon", "1e-6"), ("d_model", 0),
])
def test_configurations_of_the_wrong_type(field, value):
  about = {"model_type": "t5", "vocab_size": 32, "d_model": 8, "num_heads": 2, "d_kv": 4,
           "d_ff": 16, "num_layers": 1}
  hf_config.to_ours(about, ["lm_head.weight"], "config.json")
  with pytest.raises(SpecdecError, match=f"config.json has {field}"):
    hf_config.to_ours({**about, field: value}, ["lm_head.weight"], "config.json")
  if field == "layer_norm_epsilon":
    with pytest.raises(ValueError, match="layer_norm_epsilon is '1e-6'"):
      T5Config(32, 8, 2, 4, 16, 1, 1, layer_norm_epsilon=value)


def test_quartiles_are_those_of_the_values():
  assert Spread.of([0.9, 0.95, 1.1, 1.2, 1.3]).quartiles == pytest.approx((0.95, 1.2))
  assert Spread.of([2.0]).quartiles == (2.0, 2.0)
