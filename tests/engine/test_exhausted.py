"""Memory that does not suffice names what to turn; weights that are no numbers are named."""

import numpy as np
import pytest

import specdec
from specdec.checkpoints import bundle
from specdec.checkpoints.checkpoint import in_memory
from specdec.core import loop
from specdec.engine import models
from specdec.testing import tiny

OUT = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.\nmore"


def told(call):
  with pytest.raises(specdec.SpecdecError) as caught:
    call()
  line = str(caught.value)
  assert "\n" not in line
  return line


@pytest.mark.parametrize("program", ["start", "run"])
@pytest.mark.parametrize("error", [RuntimeError(OUT), MemoryError()], ids=["device", "host"])
def test_decoding_names_the_settings_that_take_memory(monkeypatch, program, error):
  def fail(*args, **kwargs):
    raise error

  monkeypatch.setattr(loop, program, fail)
  decode = lambda: specdec.generate(tiny.pair(), "A boat.", batch_size=64, max_decode_len=100)
  line = told(decode)
  for words in ("batch_size (it is 64)", "max_decode_len (100)", "max_source_len (64)",
                "dtype bfloat16"):
    assert words in line
  assert "num_decodes" not in line
  assert "num_decodes 3" in told(lambda: specdec.generate(tiny.pair(), "A.", num_decodes=3))
  list_of = lambda: list(specdec.stream(tiny.pair(), "A boat."))
  assert "not enough memory to decode" in told(list_of)


def test_other_faults_keep_their_trace(monkeypatch):
  def fail(*args, **kwargs):
    raise RuntimeError("INTERNAL: a fault of ours")

  monkeypatch.setattr(loop, "run", fail)
  with pytest.raises(RuntimeError, match="a fault of ours"):
    specdec.generate(tiny.pair(), "A boat.")


def test_loading_names_the_dtype(monkeypatch):
  def fail(*args, **kwargs):
    raise RuntimeError(OUT)

  monkeypatch.setattr(models.T5Scorer, "prepare", fail)
  make = lambda **changes: models.make_model(
      "big", tiny.config(**changes), tiny.params(tiny.config()), tiny.vocabulary())
  assert "to load big, 3.9e-05 GiB in float32; load with dtype bfloat16" in told(make)
  line = told(lambda: make(dtype="bfloat16"))
  assert "in bfloat16; expected a smaller model" in line


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_are_no_numbers_are_named_at_load(tmp_path, value, dtype):
  params = tiny.params(tiny.config())
  params["decoder"]["layers_0"]["mlp"]["wo"]["kernel"][3, 5] = value
  bundle.save(tmp_path / "model", bundle.Bundle(
      tiny.config().to_dict(), params, tiny.vocabulary().model, tiny.vocabulary().fingerprint),
      dtype=dtype)
  line = told(lambda: specdec.load_model(tmp_path / "model"))
  assert "decoder/layers_0/mlp/wo/kernel in " in line and str(tmp_path / "model") in line
  assert f"holds {value} (1 of " in line


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_largest_numbers_are_numbers(dtype):
  import ml_dtypes

  limits = ml_dtypes.finfo(dtype)
  values = np.asarray([[limits.max, limits.min, 0.0], [limits.smallest_subnormal, -0.0, 1.0]],
                      dtype)
  for array in (values, values.T, values[::-1], values[:, ::2]):
    np.testing.assert_array_equal(in_memory(array).finite("x").read(), array)
  values[1, 1] = np.nan
  for array in (values, values.T):
    assert "x in memory holds nan (1 of 6" in told(in_memory(array).finite("x").read)
