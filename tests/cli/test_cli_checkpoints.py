"""convert, inspect and vocab at work, and pairs of two models on the command line."""

import json
import shutil

import numpy as np
import pytest

from specdec.checkpoints import detect
from specdec.cli.main import run
from specdec.engine import models
from specdec.engine import pairs
from specdec.testing import tiny


@pytest.fixture
def specdec(capsys):
  """Runs a command that must work; returns its standard output and error."""
  def call(*args):
    code = run(list(map(str, args)))
    out, err = capsys.readouterr()
    assert code == 0, err
    return out, err
  return call


def test_convert_there_and_back(saved_pair, specdec, tmp_path):
  source = f"{saved_pair}/target"
  out, err = specdec("convert", "--to=t5x", source, tmp_path / "t5x")
  assert "T5X, native, one array a layer" in out and "vocabulary of 120 pieces" in out
  assert "verified: read back, checksums equal, one forward pass finite" in err
  specdec("convert", "--from=t5x", tmp_path / "t5x", tmp_path / "again")
  specdec("convert", "--to=hf", "--dtype=bfloat16", tmp_path / "again", tmp_path / "hf")
  first, again, low = (detect.open_checkpoint(p) for p in (
      source, tmp_path / "again", tmp_path / "hf"))
  assert first.config == {**again.config, "dtype": "float32"}
  assert again.fingerprint == first.fingerprint
  assert again.source == "T5X checkpoint checkpoint_0"
  for name, array in first.arrays.items():
    np.testing.assert_array_equal(again.arrays[name], array)
    np.testing.assert_array_equal(low.arrays[name], np.asarray(array, low.arrays[name].dtype))
  assert low.dtypes == ["bfloat16"]
  assert len(models.vocabulary_of(low)) == 120


def test_convert_counts_its_paths(mistake, tmp_path):
  assert "1 paths are given; expected two" in mistake("convert", "a")
  assert "expected one: specdec inspect PATH" in mistake("inspect")
  assert "--from=tar; expected one of auto" in mistake("convert", "--from=tar", "a", "b")


def test_inspect_tells_what_would_be_loaded_and_reads_no_weights(saved_pair, specdec, tmp_path,
                                                                 monkeypatch):
  from specdec.checkpoints.checkpoint import ArrayRef

  monkeypatch.setattr(ArrayRef, "read", lambda *_: pytest.fail("weights were read"))
  out, _ = specdec("inspect", "--arrays", f"{saved_pair}/target")
  for words in ("specdec bundle", "specdec 0.", "float32", "1 encoder, 1 decoder",
                "16 model, 2 heads of 8, 32 feed-forward (gelu * linear)", "one a stack",
                "sentencepiece, 120 pieces", "would be loaded", "128 logits",
                "decoder/layers_0/mlp/wi_1/kernel"):
    assert words in out, words
  out, _ = specdec("inspect", "--json", "--arrays", f"{saved_pair}/target")
  told = json.loads(out)
  assert told["parameters"] == sum(int(np.prod(a["shape"])) for a in told["arrays"].values())
  assert told["vocabulary"]["pieces"] == 120 and told["config"]["emb_dim"] == 16


def test_vocab_shows_pieces_and_the_way_back(saved_pair, specdec):
  text = "The cat sleeps."
  out, err = specdec("vocab", f"--pair={saved_pair}", text)
  ids = tiny.vocabulary().encode(text)
  assert f"{len(ids)} tokens: " in out and " ".join(map(str, ids)) in out
  assert "comes back as it was" in out and "120 pieces" in err
  out, err = specdec("vocab", "--json", f"--pair={saved_pair}", "the  cat \u4e16")
  told = json.loads(out)
  assert told["round_trip"] is False and told["ids"][-1] == 1
  assert "1 of 1 texts do not come back" in err


def test_a_pair_of_two_models(saved_pair, specdec, mistake, tmp_path):
  target, drafter = f"{saved_pair}/target", f"{saved_pair}/drafter"
  specdec("convert", "--to=t5x", drafter, tmp_path / "drafter")
  (tmp_path / "drafter" / "spiece.model").unlink()
  texts = ["Two children are building a tower."]
  named = ("generate", f"--target={target}", f"--drafter={tmp_path / 'drafter'}",
           "--max_decode_len=12", "--max_source_len=64", *texts)
  assert "one of them carries no vocabulary: name it (--vocab" in mistake(*named)
  out, _ = specdec(*named, f"--vocab={target}/vocab.model")
  wanted, _ = specdec("generate", f"--pair={saved_pair}", "--task=none", *texts)
  assert out == wanted
  for args, words in (
      ([f"--target={target}"], "--target needs --drafter"),
      ([f"--drafter={target}"], "different vocabularies"),
      ([f"--target={target}", f"--drafter={drafter}", "--pair=demo"],
       "--pair does not go with --target")):
    assert words in mistake("generate", *args, *texts)


def test_a_pair_file_names_models_of_any_layout(saved_pair, specdec, tmp_path):
  folder = tmp_path / "pair"
  shutil.copytree(saved_pair, folder)
  specdec("convert", "--to=hf", folder / "drafter", folder / "drafter_hf")
  about = json.loads((folder / "pair.json").read_text())
  (folder / "pair.json").write_text(json.dumps(
      {**about, "drafter": "drafter_hf", "target": f"{saved_pair}/target"}))
  pair = pairs.load_pair(folder)
  assert pair.drafter.name.endswith("drafter_hf") and pair.tasks == about["tasks"]
  np.testing.assert_array_equal(
      *[next(iter(model.weights["decoder"]["logits_dense"].values())) for model in (
          pair.drafter.model, models.load_model(f"{saved_pair}/drafter"))])
