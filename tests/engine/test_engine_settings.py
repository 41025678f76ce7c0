"""Settings are applied or refused by name."""

import dataclasses
import json
import math

import numpy as np
import pytest

from specdec.engine.settings import Settings
from specdec.errors import SpecdecError


@pytest.mark.parametrize("fields", [
    {"gamma": 0}, {"gamma": np.int64(3)}, {"temperature": 1}, {"temperature": [0, 0.5]},
    {"temperature": np.float32(0.5)}, {"top_k": 3.0}, {"top_p": 1}, {"top_p": (0.1, 0.9)},
    {"gamma": "auto"}, {"confidence": [0, 1]}, {"verifier": "lenient", "lenience": [1, 0.5]},
    {"verifier": "lenient"}, {"lenience": np.ones(2)}, {"verifier": "block"},
    {"eos_ids": ()}, {"eos_ids": [1, 5]}, {"eos_ids": np.asarray([1])}, {"seed": 2**32 - 1},
])
def test_good(fields):
  Settings(**fields)


@pytest.mark.parametrize("name, value", [
    ("gamma", True), ("gamma", 1.0), ("gamma", "4"), ("gamma", None), ("gamma", -1),
    ("temperature", "0.5"), ("temperature", None), ("temperature", math.nan),
    ("temperature", [0.0, -1.0]), ("temperature", 1e39), ("temperature", 1j),
    ("temperature", True), ("temperature", [[1.0], [1.0, 2.0]]), ("temperature", {}),
    ("top_k", 2.5), ("top_k", -1), ("top_k", 2**31), ("top_k", math.inf), ("top_k", 10**30),
    ("top_p", 1.0001), ("top_p", "x"), ("eos_ids", 1), ("eos_ids", "1"), ("eos_ids", [1.5]),
    ("eos_ids", [-1]), ("mode", "fast"), ("mode", []), ("strict_length", "no"),
    ("gamma", "Auto"), ("gamma", ""), ("gamma", 65), ("verifier", "lossy"), ("verifier", None),
    ("verifier", []), ("lenience", 0.5), ("lenience", 0), ("lenience", 1.1), ("lenience", "1"),
    ("lenience", [1.0, 0.9]), ("confidence", -0.1), ("confidence", 1.1), ("confidence", "x"),
    ("confidence", math.nan), ("batch_size", 0), ("seed", -1), ("max_decode_len", 0),
    ("max_source_len", 1),
])
def test_bad(name, value):
  with pytest.raises(SpecdecError, match=f"{name}.* expected") as info:
    Settings(**{name: value})
  assert "\n" not in str(info.value)


def test_lenience_needs_the_lenient_verifier():
  for verifier in ("token", "block", "coupled"):
    with pytest.raises(SpecdecError, match="expected the verifier lenient"):
      Settings(lenience=0.5, verifier=verifier)


def test_gamma_may_be_picked_as_it_goes():
  auto = Settings(gamma="auto")
  assert auto.paced and auto.effective_gamma == "auto"
  assert not Settings(gamma="auto", mode="plain").paced
  assert Settings(gamma="auto", mode="plain").effective_gamma == 0
  assert not Settings(gamma=7).paced and Settings(gamma=7).effective_gamma == 7
  assert json.loads(json.dumps(dataclasses.asdict(auto)))["gamma"] == "auto"


def test_per_row():
  settings = Settings(temperature=[0.0, 1.0])
  assert settings.per_row("temperature", 2).tolist() == [0.0, 1.0]
  assert settings.per_row("top_k", 2).tolist() == [0, 0]
  for wrong in (1, 3):
    with pytest.raises(SpecdecError, match=f"has 2 values for {wrong} inputs"):
      settings.per_row("temperature", wrong)


def test_numbers_of_numpy_become_pythons_own():
  settings = Settings(gamma=np.int64(3), seed=np.uint32(7), temperature=np.array([0.0, 1.0]),
                      eos_ids=np.array([1, 2]), top_k=np.int32(4))
  assert json.loads(json.dumps(dataclasses.asdict(settings)))["temperature"] == [0.0, 1.0]
  assert (settings.gamma, settings.seed, settings.eos_ids) == (3, 7, (1, 2))


def test_a_matrix_of_temperatures_is_told_by_its_shape():
  with pytest.raises(SpecdecError, match=r"shape \(1, 1\)"):
    Settings(temperature=[[0.5]]).per_row("temperature", 1)
