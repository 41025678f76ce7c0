"""Settings from gin files, and each way to get one wrong."""

import importlib
import json
import re

import pytest

from specdec.analysis import paper
from specdec.cli import generate as generate_cli
from specdec.cli import gin_bindings
from specdec.cli import gin_files
from specdec.cli import infer as infer_cli
from specdec.cli.main import COMMANDS
from specdec.engine.costs import Costs
from specdec.engine.settings import Settings
from specdec.errors import SpecdecError

GIN = gin_files.folder()
FILES = sorted(path.relative_to(GIN) for path in GIN.rglob("*.gin"))
# Those of T5X's own jobs are read by T5X, and tested beside it.
OURS = [path for path in FILES if path.parts[0] not in ("t5x", "finetune")]
GIVEN = {"TARGET": "big", "DRAFTER": "small", "INPUT": "in.txt", "OUTPUT": "out",
         "RECORD": "record.json", "DRAFTERS": "drafter,copy", "TASK": "ende",
         "INPUTS": "in.en", "TARGETS": "in.de"}


def command_of(path):
  """The command that a file is for, by the line in its head that says what to type."""
  text = (GIN / path).read_text()
  return re.search(r"^#   specdec (\w+) --gin_file=", text, re.MULTILINE)[1], text


@pytest.mark.parametrize("path", OURS, ids=str)
def test_every_gin_file_resolves_for_the_command_in_its_head(path, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)  # The package's own are found from anywhere.
  command, text = command_of(path)
  flags = importlib.import_module(COMMANDS[command].module).make_flags()
  demanded = re.findall(r"^(\w+) = %gin.REQUIRED", text, re.MULTILINE)
  included = [(GIN / name).read_text() for name in re.findall(r'^include "(.*)"', text, re.M)]
  demanded += [m for t in included for m in re.findall(r"^(\w+) = %gin.REQUIRED", t, re.M)]
  flags.parse([f"--gin_file={path}", *(f"--gin.{name}='{GIVEN[name]}'" for name in demanded)])
  bound = gin_bindings.of_flags(flags)
  assert bound.settings or bound.pair or bound.command or bound.costs
  Settings(**bound.settings)
  if command in ("bench", "alpha"):
    gin_bindings.settings_into_flags(flags, bound)
  for name in demanded:
    said = [getattr(flags, flag) for flag in flags.names()]
    assert GIVEN[name] in said, f"{name} goes nowhere"
    without = importlib.import_module(COMMANDS[command].module).make_flags()
    without.parse([f"--gin_file={path}", *(
        f"--gin.{other}='{GIVEN[other]}'" for other in demanded if other != name)])
    with pytest.raises(SpecdecError, match=f"{name} has no value; type --gin.{name}="):
      gin_bindings.of_flags(without)


def test_the_walltime_rows_are_those_of_the_paper():
  rows = paper.read("walltime")["rows"]
  assert len(rows) == 12 == len([path for path in FILES if path.parts[0] == "paper"])
  for row in rows:
    drafter = row["drafter"].rpartition("_")[2]
    path = f"paper/{row['task']}_{drafter}_t{row['temperature']}.gin"
    values = gin_files.read([path], [], ("Settings", "load_pair", "bench"))
    assert values["Settings"]["gamma"] == row["gamma"]
    assert values["Settings"]["temperature"] == row["temperature"]
    assert values["bench"]["record_task"] == row["task"]
    text = (GIN / path).read_text()
    assert f"Expected: {row['speed_up']}x" in text and f"xxl_{drafter}.gin" in text


def test_what_took_effect_is_a_gin_file_that_gives_the_same_again():
  flags = infer_cli.make_flags()
  flags.parse(["--input_file=in.txt", "--output_dir=out", "--shard_size=7", "--overwrite",
               "--drafter=copy", "--gin.Settings.temperature=[0.0, 1.0]"])
  bound = gin_bindings.of_flags(flags)
  settings = Settings(**bound.settings, gamma="auto", eos_ids=(1, 5), forbidden_ids=((3, 0, 2),))
  costs = Costs((1.0, 1.5), 0.7, (0, 2))
  text = gin_bindings.operative(flags, settings, costs)
  again = infer_cli.make_flags()
  again.parse([f"--gin_bindings={text}"])
  found = gin_bindings.of_flags(again)
  assert Settings(**found.settings) == settings and found.costs == costs
  assert (again.input_file, again.output_dir, again.shard_size, again.drafter, again.pair) == (
      "in.txt", "out", 7, "copy", "demo")
  assert not again.overwrite


def test_what_took_effect_stands_beside_the_output(generate, tmp_path):
  out, again = tmp_path / "out.jsonl", tmp_path / "again.jsonl"
  args = ["--gamma=auto", "--temperature=1", "--seed=3", "--max_decode_len=12", "a boat", "a cat"]
  code, _, _ = generate(f"--output_file={out}", *args)
  assert code == 0
  code, _, _ = generate(f"--output_file={again}", f"--gin_file={out}.gin", "a boat", "a cat")
  assert code == 0 and again.read_text() == out.read_text()
  assert "Costs.iteration" in (tmp_path / "out.jsonl.gin").read_text()


def test_a_binding_may_be_typed_as_a_flag_of_its_own(mistake):
  flags = generate_cli.make_flags()
  texts = flags.parse(["--gin.Settings.gamma=7", "--gin.generate.task='correct'", "--",
                       "--gin.a=1"])
  bound = gin_bindings.of_flags(flags)
  assert bound.settings == {"gamma": 7} and flags.task == "correct" and texts == ["--gin.a=1"]
  assert "has no value; expected --gin.X=VALUE" in mistake("generate", "--gin.X", "a")


def test_flags_of_commands_are_bound_by_what_they_take(mistake):
  assert "shard_size is 'x'; expected an integer" in mistake(
      "infer", "--gin.infer.shard_size='x'", "--input_file=in", "--output_dir=out")
  assert "overwrite is 1; expected True or False" in mistake(
      "infer", "--gin.infer.overwrite=1", "--input_file=in", "--output_dir=out")
  assert "specdec bench does not know it" in mistake(
      "bench", "--gin.Settings.repetition_penalty=2.0")
  flags = importlib.import_module(COMMANDS["bench"].module).make_flags()
  flags.parse(["--gin.bench.baseline=['hf', 't5x']", "--gin.bench.alphas=[0.5, 0.6]"])
  gin_bindings.of_flags(flags)
  assert flags.baseline == ["hf", "t5x"] and flags.alphas == "0.5,0.6"


def test_a_misspelt_macro_names_the_one_that_is_used(mistake):
  assert "OUPUT is bound, and nothing uses it; did you mean OUTPUT?" in mistake(
      "infer", "--gin_file=runs/infer.gin", "--gin.INPUT='a'", "--gin.OUPUT='b'")


def test_search_paths_are_looked_through(mistake, tmp_path):
  (tmp_path / "mine.gin").write_text("Settings.gamma = 3\ninclude 'decode/sample.gin'\n")
  bound = gin_bindings.read(["mine.gin"], [], search_paths=[str(tmp_path)])
  assert bound.settings == {"gamma": 7, "temperature": 1.0}
  assert "there is no file missing.gin, neither here nor in" in mistake(
      "generate", "--gin_file=missing.gin", "a")


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
    ("Settings.gama = 1", "line 1: Settings.gama = 1: Settings has no gama; did you mean gamma?"),
    ("Setings.gamma = 1", "there is no Setings; did you mean Settings?"),
    ("generate.gamma = 1", "generate has no gamma; did you mean Settings.gamma?"),
    ("generate.vocab = 'a'", "did you mean load_pair.vocabulary?"),
    ("generate.overwite = True", "did you mean overwrite?"),
    ("Settings.mode = plain", "text goes in quotes: Settings.mode = 'plain', typed as --gin."),
    ("INPUT = gs://a/in.txt", "typed as --gin.INPUT=\"'gs://a/in.txt'\""),
    ("Settings.strict_length = true", "write True"),
    ("temperature = 1.0", "nothing uses it; did you mean Settings.temperature?"),
    ("a/Settings.gamma = 1", "within a scope; expected Settings.gamma"),
    ("FOO = 3", "FOO is bound, and nothing uses it; drop it"),
    ("Settings.gamma = %GAMMA", "the macro GAMMA in Settings.gamma has no value; add GAMMA ="),
    ("Settings.gamma = %gin.REQUIRED", "Settings.gamma has no value; type --gin.Settings.gamma="),
    ("Settings.gamma", "gin"),
    ("Settings.gamma = @nothing()", "there is no nothing; expected one of"),
    ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
    ("include 'nowhere.gin'", "there is no file nowhere.gin"),
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
  assert "bad.gin line 2: Settings.mode = plain: text goes in quotes" in said


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
