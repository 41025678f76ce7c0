"""What tests of several folders share."""

import pytest

from specdec.cli.main import run


@pytest.fixture
def mistake(capsys):
  """Runs a command that must fail as a user's mistake; returns its one line."""
  def call(*args):
    code = run(list(args))
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.endswith("\n"), captured.err
    assert captured.err.startswith("specdec: ")
    assert "Traceback" not in captured.err
    return captured.err
  return call
