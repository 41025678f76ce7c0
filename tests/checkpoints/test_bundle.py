"""The bundle: round trip, damage, and saves that do not come to their end."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from specdec.checkpoints import bundle
from specdec.engine import models
from specdec.errors import SpecdecError
from specdec.testing import tiny


@pytest.fixture(scope="module")
def original():
  vocabulary = tiny.vocabulary()
  return bundle.Bundle(tiny.config().to_dict(), tiny.params(tiny.config()), vocabulary.model,
                       vocabulary.fingerprint, "random numbers")


@pytest.fixture
def saved(original, tmp_path):
  path = tmp_path / "model"
  bundle.save(path, original)
  return path


def test_round_trip_is_exact(original, saved):
  back = bundle.load(saved)
  assert dataclasses.replace(back, params=None) == dataclasses.replace(original, params=None)
  for a, b in zip(jax.tree.leaves(original.params), jax.tree.leaves(back.params), strict=True):
    np.testing.assert_array_equal(a, b)


def test_bfloat16_on_disk_keeps_scales_and_biases_float32(original, tmp_path):
  bundle.save(tmp_path / "low", original, "bfloat16")
  decoder = bundle.load(tmp_path / "low").params["decoder"]
  assert decoder["layers_0"]["mlp"]["wo"]["kernel"].dtype == "bfloat16"
  assert decoder["decoder_norm"]["scale"].dtype == np.float32
  assert decoder["relpos_bias"]["rel_embedding"].dtype == np.float32
  model = models.load_model(tmp_path / "low", "float32")
  (kernel,) = model.weights["decoder"]["layers_0"]["mlp"]["wo"].values()
  assert kernel.dtype == np.float32


def test_no_file_names_the_machine_it_was_written_on(saved):
  for file in saved.rglob("*"):
    if file.is_file():
      assert str(saved.parent).encode() not in file.read_bytes(), file


def test_an_existing_folder_is_not_written_over(original, saved):
  with pytest.raises(SpecdecError, match="exists; give a new folder"):
    bundle.save(saved, original)


def test_a_save_that_fails_leaves_nothing(original, tmp_path, monkeypatch):
  def fail(*_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(bundle.os, "replace", fail)
  with pytest.raises(SpecdecError, match="No space left"):
    bundle.save(tmp_path / "model", original)
  assert list(tmp_path.iterdir()) == []


def largest(path):
  return max((f for f in (path / "params").rglob("*") if f.is_file()),
             key=lambda f: f.stat().st_size)


def cut(path):
  file = largest(path)
  file.write_bytes(file.read_bytes()[:-7])


def edit(**changes):
  def apply(path):
    about = json.loads((path / "model.json").read_text())
    (path / "model.json").write_text(json.dumps({**about, **changes}))
  return apply


DAMAGE = {
    "a file cut short": (cut, "expected .* damaged"),
    "a file missing": (lambda p: largest(p).unlink(), "missing .* incomplete"),
    "no vocabulary": (lambda p: (p / "vocab.model").unlink(), "vocab.model is missing"),
    "no index": (lambda p: (p / "model.json").unlink(), "is not a specdec model"),
    "not JSON": (lambda p: (p / "model.json").write_text("{"), "is not JSON"),
    "another format": (edit(format="t5x"), "is not of format"),
    "a later version": (edit(version=99), "install a newer one"),
    "another vocabulary": (edit(vocabulary="0"), "not the vocabulary that model.json names"),
    "an unknown field": (edit(config={"depth": 3}), "unknown T5Config fields depth"),
    "another architecture": (
        edit(config=tiny.config(num_decoder_layers=2).to_dict()), "missing: decoder/layers_1"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_told_in_one_line(saved, damage):
  harm, words = DAMAGE[damage]
  harm(saved)
  with pytest.raises(SpecdecError, match=words) as caught:
    models.load_model(saved)
  assert "\n" not in str(caught.value)
  assert str(saved) in str(caught.value)
