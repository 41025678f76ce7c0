"""What tests of several folders share."""

import os
import pathlib

import pytest

from specdec.cli.main import run

# Tests leave nothing in anybody's home, in this process and in those it starts.
os.environ.setdefault("SPECDEC_COMPILATION_CACHE_DIR", "none")

# A process may have some 65,000 memory maps (Linux's vm.max_map_count), a compiled program
# takes dozens, and XLA dies of one too many.
_MAPS = 20_000


@pytest.fixture(autouse=True, scope="module")
def few_programs():
  """Lets go of compiled programs between files when there are very many."""
  yield
  maps = pathlib.Path("/proc/self/maps")
  if maps.exists() and len(maps.read_bytes().splitlines()) > _MAPS:
    import jax

    jax.clear_caches()


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
