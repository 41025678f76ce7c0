"""What README tells a reader to type works."""

import pathlib
import re
import shlex

import pytest

from specdec.cli.main import run

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^specdec (.+)$", README, re.MULTILINE)


def test_python_snippets():
  snippets = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
  assert snippets
  names: dict = {}  # A later snippet goes on where the ones before it ended.
  for snippet in snippets:
    exec(compile(snippet, "README.md", "exec"), names)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("bench")])
def test_commands_that_measure_are_typed_right(command):
  """They take minutes; what they do is tested in tests/bench."""
  from specdec.bench import peers
  from specdec.cli import bench

  flags = bench.make_flags()
  flags.parse(shlex.split(command)[1:])
  assert bench.check(flags)
  assert set(flags.baseline) <= set(peers.NAMES)


def test_tables_on_speed_are_those_of_the_records():
  from specdec.bench import tables

  assert tables.insert(README) == README, "run scripts/readme_tables.py"


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith("bench")])
def test_commands(command, tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "in.txt").write_text("A dog dog runs acros the grass.\n", encoding="utf-8")
  assert run(shlex.split(command)) == 0, capsys.readouterr().err
  written = [tmp_path / "out.jsonl", *tmp_path.glob("*/outputs-*.jsonl")]
  assert capsys.readouterr().out or any(file.read_text() for file in written if file.exists())


def test_readme_names_the_commands_it_promises():
  assert len(COMMANDS) >= 4
  for script in ("scripts/demo.sh", "scripts/test.sh"):
    assert (pathlib.Path(__file__).parents[1] / script).exists()
    assert script in README


def test_the_table_is_that_of_the_record():
  import json

  from specdec.engine import pairs

  record = json.loads((pairs.ASSETS / "demo" / "evaluation.json").read_text())
  for row in record["results"]:
    assert f"| {row['alpha']:.3f} | {row['tokens_per_call']:.2f} |" in README
