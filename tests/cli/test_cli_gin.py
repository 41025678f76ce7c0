"""Settings from gin files, and each way to get one wrong."""

import json
import pathlib

import pytest

from specdec.cli import generate as generate_cli
from specdec.cli import gin_bindings
from specdec.engine.settings import Settings

GIN = pathlib.Path(__file__).parents[2] / "gin"


@pytest.mark.parametrize("path", sorted((GIN / "decode").glob("*.gin")), ids=lambda p: p.name)
def test_every_gin_file_is_read_and_valid(path):
  bound = gin_bindings.read([str(path)], [])
  assert bound.settings
  Settings(**bound.settings)


def test_flags_win_over_bindings_and_bindings_over_files(generate):
  sample = f"--gin_file={GIN / 'decode' / 'sample.gin'}"
  bound = gin_bindings.read([str(GIN / "decode" / "sample.gin")], [
      "Settings.gamma = 2", "Settings.seed = 5"])
  assert bound.settings == {"temperature": 1.0, "gamma": 2, "seed": 5}
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
    ("load_pair.drafter = 3", "load_pair.drafter is 3; expected a text in quotes"),
    ("load_pair.dtype = 'int4'", "dtype is 'int4'; expected one of"),
    ("load_pair.drafter = 'nowhere'", "nowhere"),
    ("Costs.alpha = 0.5", "Costs.iteration is not bound"),
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
  gin_bindings.read([], ["Settings.gamma = 9", "load_pair.drafter = 'copy'"])
  assert gin_bindings.read([], ["Settings.seed = 1"]) == gin_bindings.Bound({"seed": 1})


def test_what_was_typed_is_not_put_together_with_half_of_another_pair():
  def names(*args):
    flags = generate_cli.make_flags()
    flags.parse([*args, *(f"--gin_bindings=load_pair.{n} = '{v}'" for n, v in (
        ("target", "big"), ("drafter", "small"), ("vocabulary", "bytes")))])
    gin_bindings.of_flags(flags)
    return flags.pair, flags.target, flags.drafter, flags.vocab

  assert names() == ("demo", "big", "small", "bytes")
  assert names("--drafter=copy") == ("demo", "big", "copy", "bytes")
  assert names("--target=huge") == ("demo", "huge", None, "bytes")
  assert names("--pair=demo") == ("demo", None, None, "bytes")


def test_a_comparison_takes_settings_per_input_but_no_mode(generate, mistake, tmp_path):
  record = tmp_path / "times.json"
  code, out, _ = generate("--compare", "--repeats=1", f"--compare_json={record}", "--gamma=2",
                          "--gin_bindings=Settings.temperature = [0.0, 1.0]", "a boat", "a cat")
  assert code == 0 and "0 to 1 (per input)" in out
  assert json.loads(record.read_text())["temperature"] == [0.0, 1.0]
  assert "does not go with Settings.mode" in mistake(
      "generate", "--compare", f"--gin_file={GIN / 'decode' / 'plain.gin'}", "a boat")
