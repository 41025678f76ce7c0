"""What tests of several folders share."""

import ctypes
import gc
import os
import pathlib
import sys

import pytest

from specdec.cli.main import run

# Tests leave nothing in anybody's home, in this process and in those it starts.
os.environ.setdefault("SPECDEC_COMPILATION_CACHE_DIR", "none")

# The files that take longest: whoever begins with them ends with short ones, which fill up
# the processes evenly.
_SLOW = (
    "engine/test_mesh.py", "drafters/test_cascade.py", "core/test_lossless.py",
    "core/test_controls.py", "engine/test_refill.py", "cli/test_cli_hosts.py",
)

# A process may have some 65,000 memory maps (Linux's vm.max_map_count), a compiled program
# takes dozens, and XLA dies of one too many. And programs take memory.
_MAPS, _BYTES = 20_000, 2 * 2**30
_PROCESS = pathlib.Path("/proc/self")


def pytest_collection_modifyitems(items):
  """Puts the slow files first, each as it is."""
  place = {name: i for i, name in enumerate(_SLOW)}
  folder = pathlib.Path(__file__).parent
  items.sort(key=lambda item: place.get(
      item.path.relative_to(folder).as_posix(), len(place)))


@pytest.fixture(autouse=True, scope="module")
def few_programs():
  """Lets go of compiled programs between files when there are very many."""
  yield
  if not _PROCESS.exists() or "jax" not in sys.modules:
    return
  maps = len((_PROCESS / "maps").read_bytes().splitlines())
  resident = int((_PROCESS / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
  if maps > _MAPS or resident > _BYTES:
    import jax

    jax.clear_caches()
    gc.collect()
    # What was freed goes back to the system, where the C library knows how.
    getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)


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
