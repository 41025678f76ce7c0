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
  from specdec.engine import models

  real = models.load_pair
  monkeypatch.setattr(models, "find_pair", lambda pair: pair)
  monkeypatch.setattr(models, "load_pair", lambda pair, dtype=None: (
      tiny.pair() if pair == "tiny" else real(pair, dtype)))
  return tiny.pair()


@pytest.fixture
def generate(memory_pair, capsys):
  """Runs `specdec generate` on the tiny pair: arguments -> code, stdout, stderr."""
  def call(*args):
    code = run(["generate", "--pair=tiny", "--task=none", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err
  return call
