"""Help, version, dispatch, and what they import."""

import json
import os
import subprocess
import sys

import pytest

import specdec
from specdec.cli import decoding
from specdec.cli import generate as generate_command
from specdec.cli import main
from specdec.cli.main import run

_OPTIONAL = ("tensorflow", "torch", "transformers", "seqio", "optax", "matplotlib", "orbax",
             "scipy", "sacrebleu", "gin", "t5x", "pandas")


def _imported_by(code: str) -> set[str]:
  program = f"{code}\nimport json, sys\nprint('\\n' + json.dumps(list(sys.modules)))"
  done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True,
                        check=True)
  return set(json.loads(done.stdout.splitlines()[-1]))


def test_help_of_the_whole_names_every_command(capsys):
  for args in ([], ["--help"], ["-h"], ["help"]):
    assert run(args) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in main.COMMANDS)
    assert out.count("specdec generate") >= 3
    assert max(map(len, out.splitlines())) <= 88


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help_of_a_command_lists_its_flags_and_no_others(name, capsys):
  for args in ([name, "--help"], ["help", name], [name, "--gamma=3", "-h"]):
    assert run(args) == 0
    out = capsys.readouterr().out
    for hidden in ("flagfile", "undefok", "alsologtostderr", "helpxml"):
      assert hidden not in out
    assert max(map(len, out.splitlines())) <= 88


def test_help_of_generate_shows_each_flag_and_its_default(capsys):
  run(["generate", "--help"])
  out = capsys.readouterr().out
  flags = generate_command.make_flags()
  for name in ("pair", "task", "dtype", "gamma", "mode", "temperature", "top_k", "top_p", "seed",
               "max_decode_len", "max_source_len", "strict_length", "batch_size", "input_file",
               "output_file", "overwrite", "compare", "repeats", "compare_json"):
    assert f"--{name}" in out
    default = getattr(flags, name)
    if default not in (None, False):
      text = out[out.index(f"  --{name}"):].split("\n  --")[0]
      assert f"[{default:g}]" in text if isinstance(default, float) else f"[{default}]" in text


def test_defaults_of_flags_are_those_of_settings():
  flags, settings = generate_command.make_flags(), specdec.Settings()
  for name in decoding.SETTINGS:
    if getattr(flags, name) is not None:
      assert getattr(flags, name) == getattr(settings, name), name


def test_version(capsys):
  assert run(["--version"]) == 0
  assert capsys.readouterr().out == f"specdec {specdec.__version__}\n"


def test_unknown_command_names_the_nearest(mistake):
  assert "unknown command 'genrate'; did you mean 'generate'?" in mistake("genrate", "A dog.")
  assert "expected one of generate" in mistake("zzz")
  assert "unknown command 'zzz'" in mistake("help", "zzz")


def test_flag_before_the_command(mistake):
  assert "type the command first: specdec generate --gamma=3" in mistake("--gamma=3", "generate")


def test_help_and_user_errors_do_not_import_jax():
  program = "from specdec.cli.main import run\n"
  for args in (["--help"], ["generate", "--help"], ["generate", "--gamma=-1", "a"]):
    assert "jax" not in _imported_by(program + f"run({args!r})"), args


def test_import_is_lazy_and_free_of_optional_packages():
  assert "jax" not in _imported_by("import specdec")
  everything = _imported_by("import specdec\nfor n in specdec.__all__: getattr(specdec, n)")
  assert "jax" in everything
  assert not everything & set(_OPTIONAL)


def test_a_job_runs_without_optional_packages(tmp_path, saved_pair):
  (tmp_path / "in.txt").write_text("A boat.\n")
  args = ["infer", f"--pair={saved_pair}", f"--input_file={tmp_path / 'in.txt'}", "--task=none",
          f"--output_dir={tmp_path / 'out'}", "--max_decode_len=4"]
  found = _imported_by(f"from specdec.cli.main import run\nassert run({args!r}) == 0")
  assert "jax" in found and not found & (set(_OPTIONAL) - {"gin", "orbax"})


def test_public_names_are_all_there():
  assert set(specdec.__all__) <= set(dir(specdec))
  for name in specdec.__all__:
    assert getattr(specdec, name) is not None
  with pytest.raises(AttributeError, match="nothing_here"):
    _ = specdec.nothing_here


def test_module_runs_as_a_program():
  done = subprocess.run([sys.executable, "-m", "specdec", "--help"], capture_output=True,
                        text=True, env={**os.environ, "COLUMNS": "80"})
  assert (done.returncode, done.stderr) == (0, "")
  assert "Examples" in done.stdout


def test_bad_flag_as_a_program():
  done = subprocess.run([sys.executable, "-m", "specdec", "generate", "--gamma=two", "a"],
                        capture_output=True, text=True)
  assert (done.returncode, done.stdout) == (2, "")
  assert done.stderr == "specdec: --gamma=two; expected an integer or auto\n"


def test_closed_pipe_ends_quietly():
  program = f"{sys.executable} -m specdec generate --help | true; echo ${{PIPESTATUS[0]}}"
  done = subprocess.run(["bash", "-c", program], capture_output=True, text=True)
  assert done.stderr == ""
  assert done.stdout.strip() in ("0", "141")
