"""Every bad checkpoint is one line that names the file and what was expected.

Nothing of a conversion is left behind, and nothing in a checkpoint is run.
"""

import json
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from specdec.checkpoints import detect
from specdec.checkpoints import drafts
from specdec.checkpoints import mapping
from specdec.checkpoints import stores
from specdec.cli.main import run
from specdec.engine import convert
from specdec.engine import describe
from specdec.errors import SpecdecError
from specdec.models.t5.config import T5Config
from specdec.testing import tiny
from tests.checkpoints import t5x_data
from tests.checkpoints.small import params
from tests.checkpoints.small import save_hf
from tests.checkpoints.small import save_t5x

safetensors = pytest.importorskip(
    "safetensors.numpy", reason="Hugging Face checkpoints need safetensors: the test extra")

def array(folder, name="target.decoder.logits_dense.kernel"):
  return folder / name


def overwrite(path, change):
  path.write_bytes(change(path.read_bytes()))


def flip(content):
  middle = len(content) // 2
  return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1:]


def edit_json(path, **changes):
  about = json.loads(path.read_text())
  path.write_text(json.dumps({**about, **changes}))


def edit_index(folder, change):
  from flax import serialization

  index = serialization.msgpack_restore((folder / "checkpoint").read_bytes())
  change(index["optimizer"]["target"])
  (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(index))


T5X = {
    "truncated array": (lambda f: overwrite(array(f) / "0.0", lambda b: b[:-20]),
                        "logits_dense.kernel: "),
    "flipped bit": (lambda f: overwrite(array(f) / "0.0", flip), "logits_dense.kernel: "),
    "missing chunk": (lambda f: (array(f) / "0.0").unlink(), "logits_dense.kernel: "),
    "index naming what is missing": (lambda f: shutil.rmtree(array(f)),
                                     "target.decoder.logits_dense.kernel"),
    "damaged array header": (lambda f: (array(f) / ".zarray").write_text("{"),
                             "target.decoder.logits_dense.kernel"),
    "another shape than the index": (
        lambda f: edit_json(array(f) / ".zarray", shape=[8, 41]), "expected (8, 40), as "),
    "integers": (lambda f: edit_json(array(f) / ".zarray", dtype="<i4"),
                 "holds int32; expected floating point"),
    "no index": (lambda f: (f / "checkpoint").unlink(),
                 "checkpoint is missing; expected the index"),
    "truncated index": (lambda f: overwrite(f / "checkpoint", lambda b: b[:40]),
                        "checkpoint: "),
    "an index of something else": (lambda f: (f / "checkpoint").write_bytes(b"\x93\x01\x02\x03"),
                                   "is not T5X's msgpack index"),
    "a parameter too few": (
        lambda f: edit_index(f, lambda t: t["decoder"]["layers_0"]["mlp"].pop("wi_1")),
        "have 1 parallel projections"),
    "misspelt": (
        lambda f: edit_index(f, lambda t: t["encoder"].update(
            encoder_nrom=t["encoder"].pop("encoder_norm"))),
        "missing: encoder/encoder_norm/scale (there is encoder/encoder_nrom/scale)"),
    "decoder-only": (
        lambda f: edit_index(f, lambda t: (t.pop("encoder"), t.pop("token_embedder"))),
        "a decoder-only model; expected a T5 encoder-decoder"),
    "a configuration of another model": (
        lambda f: edit_json(f.parent / "config.json", emb_dim=16), "says emb_dim 16, but"),
    "a configuration with an unknown field": (
        lambda f: edit_json(f.parent / "config.json", depth=3), "unknown T5Config fields depth"),
}
HF = {
    "truncated": (lambda f: overwrite(f / "model.safetensors", lambda b: b[:-40]),
                  "model.safetensors: "),
    "damaged header": (lambda f: overwrite(f / "model.safetensors", lambda b: b"\xff" + b[1:]),
                       "model.safetensors: "),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no weights; expected"),
    "no configuration": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "configuration cut short": (lambda f: overwrite(f / "config.json", lambda b: b[:9]),
                                "config.json: "),
    "BERT": (lambda f: edit_json(f / "config.json", model_type="bert"),
             "is of a bert model; expected an encoder-decoder of the T5 family"),
    "GPT-2": (lambda f: edit_json(f / "config.json", model_type="gpt2"), "is of a gpt2 model"),
    "an encoder alone": (lambda f: edit_json(f / "config.json", is_encoder_decoder=False),
                         "is of an encoder alone"),
    "another width": (lambda f: edit_json(f / "config.json", d_ff=13),
                      "not those that " ),
    "another depth": (lambda f: edit_json(f / "config.json", num_decoder_layers=2),
                      "missing: decoder.block.1"),
    "another feed-forward": (lambda f: edit_json(f / "config.json", feed_forward_proj="relu"),
                             "missing: encoder.block.0.layer.1.DenseReluDense.wi.weight"),
    "an unknown activation": (lambda f: edit_json(f / "config.json", feed_forward_proj="gelu"),
                              "feed_forward_proj 'gelu'; expected one of relu"),
    "no size": (lambda f: edit_json(f / "config.json", d_model=None), "d_model None; expected"),
    "another start": (lambda f: edit_json(f / "config.json", decoder_start_token_id=2),
                      "decoder_start_token_id 2; expected 0"),
    "not a number": (
        lambda f: overwrite(f / "model.safetensors", lambda b: b[:-4] + b"\x00\x00\xc0\x7f"),
        "holds nan (1 of "),
}


def told(call):
  with pytest.raises(SpecdecError) as caught:
    call()
  line = str(caught.value)
  assert "\n" not in line
  return line


@pytest.mark.parametrize("damage", T5X)
def test_bad_t5x(tmp_path, damage):
  folder = save_t5x(tmp_path / "model")
  harm, words = T5X[damage]
  harm(folder)
  line = told(lambda: convert.convert(tmp_path / "model", tmp_path / "out", vocabulary="none"))
  assert words in line and str(tmp_path / "model") in line, line
  assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("damage", HF)
def test_bad_hf(tmp_path, damage):
  folder = save_hf(tmp_path / "model")
  harm, words = HF[damage]
  harm(folder)
  line = told(lambda: convert.convert(folder, tmp_path / "out", vocabulary="none", layout="hf"))
  assert words in line, line
  assert damage == "not a number" or str(folder) in line
  assert os.listdir(tmp_path) == ["model"]


def test_bad_shards(tmp_path):
  folder = save_hf(tmp_path / "model", shards=3)
  assert len(detect.open_checkpoint(folder).arrays) == len(params())
  (folder / "model-1.safetensors").rename(folder / "aside")
  assert "model-1.safetensors is missing" in told(lambda: detect.open_checkpoint(folder))
  shutil.copy(folder / "model-0.safetensors", folder / "model-1.safetensors")
  assert "model-1.safetensors lacks " in told(lambda: detect.open_checkpoint(folder))
  index = folder / "model.safetensors.index.json"
  about = json.loads(index.read_text())["weight_map"]
  edit_json(index, weight_map={**about, "shared.weight": "../secret"})
  assert "names the file '../secret'; expected names" in told(
      lambda: detect.open_checkpoint(folder))
  index.write_text("[]")
  assert 'expected JSON with a "weight_map"' in told(lambda: detect.open_checkpoint(folder))


def test_a_pickle_with_code_in_it_is_not_run(tmp_path):
  torch = pytest.importorskip("torch", reason="pytorch_model.bin needs torch: the test extra")
  folder = save_hf(tmp_path / "model")
  (folder / "model.safetensors").unlink()
  ran = tmp_path / "ran"

  class Evil:
    def __reduce__(self):
      return pathlib.Path.touch, (ran,)

  for write in (lambda f: f.write_bytes(pickle.dumps({"shared.weight": Evil()})),
                lambda f: torch.save({"shared.weight": Evil()}, f)):
    write(folder / "pytorch_model.bin")
    line = told(lambda: convert.convert(folder, tmp_path / "out", vocabulary="none"))
    assert str(folder / "pytorch_model.bin") in line
    assert "nothing in it was run; expected tensors" in line
    assert not ran.exists()
  assert os.listdir(tmp_path) == ["model"]
  (folder / "pytorch_model.bin").write_bytes(b"not a pickle")
  assert "pytorch_model.bin" in told(lambda: detect.open_checkpoint(folder))
  torch.save({"epoch": 3}, folder / "pytorch_model.bin")
  assert "epoch in " in told(lambda: detect.open_checkpoint(folder))


def test_a_path_that_holds_nothing(tmp_path, monkeypatch):
  (tmp_path / "file").write_text("x")
  (tmp_path / "empty").mkdir()
  (tmp_path / "other").mkdir()
  (tmp_path / "other" / "notes.txt").write_text("x")
  for name, words in (("file", "is a file; expected a specdec bundle"), ("empty", "is empty"),
                      ("other", "holds no model (notes.txt)"), ("gone", "there is no folder")):
    line = told(lambda name=name: detect.open_checkpoint(tmp_path / name))
    assert words in line and str(tmp_path / name) in line
  pair = tiny.save(tmp_path / "pair")
  assert "is a pair of models; name one" in told(lambda: detect.open_checkpoint(pair))

  def deny(*_):
    raise PermissionError(13, "Permission denied")

  monkeypatch.setattr(stores.os, "listdir", deny)
  line = told(lambda: detect.open_checkpoint(tmp_path / "other"))
  assert line == f"cannot look into {tmp_path / 'other'}: Permission denied"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_no_permission(tmp_path):
  folder = save_hf(tmp_path / "model")
  (folder / "config.json").chmod(0)
  assert "config.json: Permission denied" in told(lambda: detect.open_checkpoint(folder))
  tmp_path.chmod(0o500)
  assert "cannot write" in told(lambda: convert.convert(
      folder, tmp_path / "out", vocabulary="none"))
  tmp_path.chmod(0o700)


def test_a_target_that_cannot_be_written(tmp_path, monkeypatch):
  folder = save_hf(tmp_path / "model")
  assert "exists; give a new folder" in told(
      lambda: convert.convert(folder, folder, vocabulary="none"))
  assert "cannot write" in told(lambda: convert.convert(
      folder, folder / "config.json" / "out", vocabulary="none"))

  def full(*_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(drafts.os, "replace", full)
  assert "No space left" in told(lambda: convert.convert(
      folder, tmp_path / "out", vocabulary="none"))
  assert os.listdir(tmp_path) == ["model"]


def test_a_killed_conversion_leaves_nothing_that_loads(tmp_path):
  folder = save_hf(tmp_path / "model")
  program = f"""
import os, signal
from specdec.engine import convert
convert.verify = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
convert.convert({str(folder)!r}, {str(tmp_path / "out")!r}, vocabulary="none", to="hf")
"""
  killed = subprocess.run([sys.executable, "-c", program])
  assert killed.returncode == -signal.SIGKILL
  (left,) = (p for p in tmp_path.iterdir() if p != folder)
  assert left.name.startswith(".out.")
  # The next conversion to the same place clears away what was left.
  convert.convert(folder, tmp_path / "out", vocabulary="none", to="hf")
  assert sorted(os.listdir(tmp_path)) == ["model", "out"]


def test_a_bundle_without_its_last_file_does_not_load(tmp_path, monkeypatch):
  folder = save_hf(tmp_path / "model")
  seen = []

  def stop(draft):
    # Everything else is there at this point.
    seen.append(told(lambda: detect.open_checkpoint(draft)))
    raise SpecdecError("stopped")

  monkeypatch.setattr(convert.bundle, "_files", stop)
  assert told(lambda: convert.convert(folder, tmp_path / "out", vocabulary="none")) == "stopped"
  assert "is not a specdec model" in seen[0]
  assert os.listdir(tmp_path) == ["model"]


def test_a_flipped_bit_in_a_bundle_is_found(tmp_path):
  folder = save_hf(tmp_path / "model")
  convert.convert(folder, tmp_path / "out", vocabulary="none")
  files = [p for p in (tmp_path / "out" / "params").rglob("*") if p.is_file()]
  for file in files:
    content = file.read_bytes()
    file.write_bytes(flip(content))
    line = told(lambda: detect.open_checkpoint(tmp_path / "out"))
    assert f"{file} has the SHA-256" in line
    file.write_bytes(content)
  assert detect.open_checkpoint(tmp_path / "out").arrays


def test_a_disk_that_forgets_is_found_out(tmp_path, monkeypatch):
  folder = save_hf(tmp_path / "model")
  real = convert.hf_write.write

  def write(draft, *args):
    done = real(draft, *args)
    overwrite(draft / "model.safetensors", lambda b: b[:-1] + bytes([b[-1] ^ 1]))
    return done

  monkeypatch.setitem(convert._WRITERS, "hf", write)
  line = told(lambda: convert.convert(folder, tmp_path / "out", to="hf", vocabulary="none"))
  assert "does not read back as it was written" in line
  assert os.listdir(tmp_path) == ["model"]


def test_vocabularies_that_do_not_fit(tmp_path):
  folder = save_hf(tmp_path / "model")
  out = tmp_path / "out"
  for vocabulary, words in (
      (None, "carries no vocabulary; name it: --vocab=spiece.model"),
      ("nowhere.model", "there is no vocabulary nowhere.model"),
      (str(tmp_path), "has no vocabulary; expected one of spiece.model"),
      (str(folder / "model.safetensors"), "is not a sentencepiece model"),
      ("bytes", "384 pieces for 40 logits")):
    assert words in told(lambda v=vocabulary: convert.convert(folder, out, vocabulary=v))
  assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("command", ["convert", "inspect", "generate", "vocab"])
def test_the_command_line_tells_it_in_one_line(tmp_path, capsys, command):
  folder = save_hf(tmp_path / "model")
  edit_json(folder / "config.json", model_type="bert")
  args = {"convert": [str(folder), str(tmp_path / "out")], "inspect": [str(folder)],
          "generate": [f"--target={folder}", f"--drafter={folder}", "A dog."],
          "vocab": [f"--target={folder}", f"--drafter={folder}", "A dog."]}[command]
  assert run([command, *args]) == 2
  out, err = capsys.readouterr()
  assert out == "" and err.count("\n") == 1
  assert f"specdec: {folder / 'config.json'} is of a bert model; expected" in err
  assert os.listdir(tmp_path) == ["model"]


def test_what_a_t5xxl_takes_is_planned_from_shapes(tmp_path):
  """An index with the true shapes: shards of 45 GB that are holes on the disk."""
  path = pathlib.Path(__file__).parents[2] / "configs" / "t5" / "v1_1_xxl.json"
  config = T5Config.from_json(path)
  table = mapping.hf_table(config.to_dict())
  shapes = {table[name].name: shape[::-1] if table[name].transposed else shape
            for name, shape in mapping.parameter_shapes(config.to_dict()).items()}
  placed = {key: f"model-{i % 5}.safetensors" for i, key in enumerate(shapes)}
  for file in set(placed.values()):
    header, at = {}, 0
    for key in (k for k in shapes if placed[k] == file):
      size = 4 * int(np.prod(shapes[key]))
      header[key] = {"dtype": "F32", "shape": list(shapes[key]), "data_offsets": [at, at + size]}
      at += size
    text = json.dumps(header).encode()
    with open(tmp_path / file, "wb") as f:
      f.write(len(text).to_bytes(8, "little") + text)
      f.truncate(8 + len(text) + at)
  (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
  (tmp_path / "config.json").write_text(json.dumps({
      "model_type": "t5", "vocab_size": 32128, "d_model": 4096, "num_heads": 64, "d_kv": 64,
      "d_ff": 10240, "num_layers": 24, "feed_forward_proj": "gated-gelu",
      "tie_word_embeddings": False}))
  found = describe.describe(tmp_path)
  assert found.config.replace(dtype="float32") == config
  assert round(found.parameters / 1e6) == 11135
  stored = sum(array.nbytes for array in found.checkpoint.arrays.values())
  low, high = (describe.plan(found.checkpoint.arrays, d) for d in ("bfloat16", "float32"))
  assert stored > 44e9 and low.kept == pytest.approx(stored / 2, rel=1e-3)
  for plan in (low, high):
    assert plan.load_peak < 1.2 * plan.kept
    assert plan.convert_peak < 2.5e9 < stored / 17
  # One array of it is read, out of the middle of a shard, without the rest.
  wo = found.checkpoint.arrays["decoder/layers_23/mlp/wo/kernel"]
  assert wo.read((slice(5, 7), slice(0, 3))).tolist() == [[0.0] * 3] * 2


@t5x_data.needed
def test_a_bucket_is_read_as_a_folder_is(monkeypatch):
  real = stores.kvstore
  folder = t5x_data.FOLDER / "t5_1_1_tiny"
  seen = []

  def kvstore(path):
    if not stores.is_remote(path):
      return real(path)
    seen.append(real(path))
    assert seen[-1]["driver"] == "gcs" and seen[-1]["bucket"] == "some-bucket"
    return real(str(folder / seen[-1]["path"].removeprefix("models/tiny").strip("/")))

  monkeypatch.setattr(stores, "kvstore", kvstore)
  there = detect.open_checkpoint("gs://some-bucket/models/tiny")
  here = detect.open_checkpoint(folder)
  assert there.config == here.config and seen
  for name, values in here.arrays.items():
    np.testing.assert_array_equal(there.arrays[name], values)
