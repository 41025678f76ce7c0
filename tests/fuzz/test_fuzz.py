"""A few damaged inputs for every reader; `scripts/fuzz.py` tries as many as it is told to."""


from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from specdec.errors import SpecdecError
from tests.fuzz import readers

EXAMPLES = 50

_NEEDS = {"safetensors": "safetensors", "hf_config": "safetensors", "hf_index": "safetensors",
          "torch_bin": "torch", "t5x_index": "msgpack", "tokenizer_json": "tokenizers"}


@pytest.mark.parametrize("name", readers.READERS)
def test_damage_is_read_or_refused_in_a_line(name, tmp_path):
  if name in _NEEDS:
    pytest.importorskip(_NEEDS[name], reason="part of the test extra")
  bench = readers.Bench(readers.READERS[name], tmp_path)
  found = {bench.check({}): 1}
  assert found == {"read": 1} or name == "lines", "the undamaged folder must be read"

  @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck))
  @given(st.data())
  def run(data):
    outcome = bench.check(data.draw(bench.damages))
    found[outcome] = found.get(outcome, 0) + 1

  with readers.limits():
    run()
  # Damage that nobody notices is no damage: the strategies reach what is looked at.
  assert found.get("refused", 0) > EXAMPLES // 10


def raising(error):
  def read(folder):
    raise error
  return readers.Reader(lambda f: f.mkdir(), lambda f: st.just({}), read)


def test_other_exceptions_and_lines_are_found(tmp_path):
  """What the suite looks for is found when it is there."""
  with pytest.raises(KeyError):
    readers.Bench(raising(KeyError("x")), tmp_path).check({})
  (tmp_path / "b").mkdir()
  assert readers.Bench(raising(SpecdecError("one\ntwo")), tmp_path / "b").check({}) == "refused"
  torn = SpecdecError("x")
  torn.args = ("one\ntwo",)
  (tmp_path / "c").mkdir()
  with pytest.raises(AssertionError):
    readers.Bench(raising(torn), tmp_path / "c").check({})


def test_a_declared_size_that_is_believed_is_found(tmp_path):
  import numpy as np

  reader = readers.Reader(lambda f: f.mkdir(), lambda f: st.just({}),
                          lambda f: np.empty(2**40, np.uint8))
  with readers.limits(), pytest.raises(MemoryError):
    readers.Bench(reader, tmp_path).check({})


def test_messages_are_a_line_whatever_they_quote():
  for text in ("a\nb", "a\u2028b\x1b[31m", "\ud800", "x" * 10_000):
    line = str(SpecdecError(text))
    assert line.isprintable() and len(line) <= 2000 and line[0] in "ax "
  assert str(SpecdecError("caf\u00e9 'x'")) == "caf\u00e9 'x'"


