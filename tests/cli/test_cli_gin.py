"""Settings from gin files, and each way to get one wrong."""

import json
import pathlib

import pytest

from specdec.cli import gin_bindings
from specdec.engine.settings import Settings

GIN = pathlib.Path(__file__).parents[2] / "gin"


@pytest.mark.parametrize("path", sorted(GIN.rglob("*.gin")), ids=lambda p: p.name)
def test_every_gin_file_is_read_and_valid(path):
  bound = gin_bindings.read_settings([str(path)], [])
  assert bound
  Settings(**bound)


def test_flags_win_over_bindings_and_bindings_over_files(generate):
  sample = f"--gin_file={GIN / 'decode' / 'sample.gin'}"
  bound = gin_bindings.read_settings([str(GIN / "decode" / "sample.gin")], [
      "Settings.gamma = 2", "Settings.seed = 5"])
  assert bound == {"temperature": 1.0, "gamma": 2, "seed": 5}
  common = ["--output_file=-", "--gin_bindings=Settings.gamma = 2", sample, "a boat"]
  _, by_file, _ = generate(*common)
  _, by_flags, _ = generate("--output_file=-", "--gamma=2", "--temperature=1", "a boat")
  assert json.loads(by_file) == json.loads(by_flags)
  _, greedy, _ = generate(*common, "--temperature=0")
  _, plain, _ = generate("--output_file=-", "--mode=plain", "a boat")
  assert json.loads(greedy)["output_ids"] == json.loads(plain)["output_ids"]


@pytest.mark.parametrize("binding, expected", [
    ("Settings.gamma = -1", "gamma is -1; expected an integer"),
    ("Settings.gama = 1", "gama"),
    ("Setings.gamma = 1", "Setings"),
    ("Settings.mode = plain", "gin_bindings line 1"),
    ("Settings.gamma = %GAMMA", "the macro GAMMA has no value"),
    ("Settings.gamma", "gin"),
])
def test_mistakes(mistake, binding, expected):
  assert expected in mistake("generate", f"--gin_bindings={binding}", "A dog.")


def test_mistakes_in_a_file_name_it(mistake, tmp_path):
  assert "nowhere.gin" in mistake("generate", "--gin_file=nowhere.gin", "A dog.")
  path = tmp_path / "bad.gin"
  path.write_text("Settings.gamma = 3\nSettings.mode = plain\n")
  said = mistake("generate", f"--gin_file={path}", "A dog.")
  assert "bad.gin" in said and "line 2" in said


def test_nothing_stays_bound_between_runs():
  gin_bindings.read_settings([], ["Settings.gamma = 9"])
  assert gin_bindings.read_settings([], ["Settings.seed = 1"]) == {"seed": 1}


def test_a_comparison_takes_settings_per_input_but_no_mode(generate, mistake, tmp_path):
  record = tmp_path / "times.json"
  code, out, _ = generate("--compare", "--repeats=1", f"--compare_json={record}", "--gamma=2",
                          "--gin_bindings=Settings.temperature = [0.0, 1.0]", "a boat", "a cat")
  assert code == 0 and "0 to 1 (per input)" in out
  assert json.loads(record.read_text())["temperature"] == [0.0, 1.0]
  assert "does not go with Settings.mode" in mistake(
      "generate", "--compare", f"--gin_file={GIN / 'decode' / 'plain.gin'}", "a boat")
