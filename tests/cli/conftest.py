"""A tiny pair for the command line, in a folder and in memory."""

import pytest

from specdec.cli.main import run
from specdec.testing import tiny


@pytest.fixture(scope="session")
def saved_pair(tmp_path_factory):
  """Folder of the tiny pair."""
  return str(tiny.save(tmp_path_factory.mktemp("pairs") / "tiny"))


@pytest.fixture
def memory_pair(monkeypatch):
  """Makes `--pair=tiny` the pair in memory, which spares reading it every time."""
  from specdec.engine import pairs

  real, real_vocabulary = pairs.load_pair, pairs.pair_vocabulary
  def load_pair(pair, dtype=None, *, drafter=None, **named):
    if pair != "tiny":
      return real(pair, dtype, drafter=drafter, **named)
    return tiny.pair() if drafter is None else tiny.pair().with_drafter(drafter)

  monkeypatch.setattr(pairs, "check_pair", lambda pair, **named: None)
  monkeypatch.setattr(pairs, "load_pair", load_pair)
  monkeypatch.setattr(pairs, "pair_vocabulary", lambda pair, **named: (
      tiny.vocabulary() if pair == "tiny" else real_vocabulary(pair, **named)))
  return tiny.pair()


@pytest.fixture
def generate(memory_pair, capsys):
  """Runs `specdec generate` on the tiny pair: arguments -> code, stdout, stderr."""
  def call(*args):
    code = run(["generate", "--pair=tiny", "--task=none", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err
  return call
