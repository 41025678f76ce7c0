"""Gin files: all of them are read as gin reads them, and those for T5X are resolved with T5X."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

from gin import config_parser

ROOT = pathlib.Path(__file__).parents[2]
T5X_FILES = sorted(path for folder in ("t5x", "finetune")
                   for path in (ROOT / "gin" / folder).glob("*.gin"))
HAVE_T5X = importlib.util.find_spec("t5x") is not None

# T5X's parser of its own flags, in a process whose main module is the script that is configured.
_RESOLVE = """
import sys, gin
from t5x import gin_utils
import t5x.{script} as script
for name in ("evaluate", "infer", "train"):
  if hasattr(script, name):
    globals()[name] = getattr(script, name)
gin_utils.parse_gin_flags({paths!r}, sys.argv[1:3], sys.argv[3:])

print(sorted(gin.config._CONFIG))
"""


class _Parsed(config_parser.ParserDelegate):
  """References as text, macros likewise."""

  def configurable_reference(self, scoped_name, evaluate):
    return f"@{scoped_name}" + "()" * evaluate

  def macro(self, name):
    return f"%{name}"


def statements(path):
  parser = config_parser.ConfigParser(path.read_text(encoding="utf-8"), _Parsed())
  return list(parser)


@pytest.mark.parametrize("path", T5X_FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_files_for_t5x_hold_bindings_alone(path):
  found = statements(path)
  includes = [s.filename for s in found if isinstance(s, config_parser.IncludeStatement)]
  assert len(includes) == 1 and includes[0].startswith("t5x/configs/runs/")
  bound = {f"{s.scope}/{s.selector}.{s.arg_name}".strip("/."): s.value for s in found
           if isinstance(s, config_parser.BindingStatement)}
  required = {name for name, value in bound.items() if value == "%gin.REQUIRED"}
  wanted = {"DRAFTER_PATH"} if path.parent.name == "t5x" else {
      "MODEL_DIR", "INITIAL_CHECKPOINT_PATH"}
  assert required == wanted, bound


@pytest.mark.skipif(not HAVE_T5X, reason="T5X is not installed; it is on no package index")
@pytest.mark.parametrize("path", T5X_FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_files_for_t5x_are_resolved_by_t5x(path):
  script = {"eval.gin": "eval", "infer.gin": "infer"}.get(path.name, "train")
  bindings = ["MODEL_DIR = 'x'", "INITIAL_CHECKPOINT_PATH = 'x'"] if script == "train" else [
      "DRAFTER_PATH = 'copy'", "DROPOUT_RATE = 0.0", "MIXTURE_OR_TASK_NAME = 'x'",
      "TASK_FEATURE_LENGTHS = None", "CHECKPOINT_PATH = 'x'",
      f"{script.upper()}_OUTPUT_DIR = 'x'"]
  done = subprocess.run(
      [sys.executable, "-c", _RESOLVE.format(script=script, paths=[str(ROOT)]),
       "t5x/examples/t5/t5_1_1/small.gin", str(path), *bindings],
      capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr[-2000:]
  expected = "SpeculativeModel" if script != "train" else "train_script.train"
  assert expected in done.stdout or "train" in done.stdout


def test_files_come_along_with_an_installed_package():
  import specdec

  package = pathlib.Path(specdec.__file__).parent
  if (package.parent / "setup.py").exists():
    pytest.skip("specdec runs out of its checkout")
  found = {f"{p.parent.name}/{p.name}" for p in (package / "gin").rglob("*.gin")}
  assert found == {f"{p.parent.name}/{p.name}" for p in (ROOT / "gin").rglob("*.gin")}
  assert importlib.util.find_spec("specdec.gin.t5x").origin
