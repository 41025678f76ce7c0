"""Compiled programs are kept on disk, read by later commands, and never a reason to fail."""

import os
import pathlib
import subprocess
import sys

import pytest

from specdec.cli import compilation
from specdec.cli import generate as generate_command
from specdec.cli.main import run
from specdec.engine import program_cache


@pytest.fixture
def config(monkeypatch):
  """JAX's configuration, as far as the cache goes, of a process that has set nothing."""
  values = {}
  monkeypatch.setattr(program_cache, "_set", values.__setitem__)
  monkeypatch.setattr(program_cache, "folder", lambda: values.get("jax_compilation_cache_dir"))
  monkeypatch.setattr(program_cache, "_ours", None)
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
  monkeypatch.delenv("SPECDEC_COMPILATION_CACHE_DIR", raising=False)
  return values


def enable(*args):
  flags = generate_command.make_flags()
  flags.parse([*args, "x"])
  compilation.enable(flags)


def test_the_flag_goes_before_the_variable_and_that_before_the_users_cache(
    config, monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
  enable()
  assert config["jax_compilation_cache_dir"] == str(tmp_path / "home" / "specdec" / "xla")
  assert (tmp_path / "home" / "specdec" / "xla").stat().st_mode & 0o777 == 0o700
  monkeypatch.setenv("SPECDEC_COMPILATION_CACHE_DIR", str(tmp_path / "variable"))
  enable()
  assert config["jax_compilation_cache_dir"] == str(tmp_path / "variable")
  enable(f"--compilation_cache_dir={tmp_path / 'typed'}")
  assert config["jax_compilation_cache_dir"] == str(tmp_path / "typed")


def test_none_switches_it_off(config, monkeypatch, capsys):
  enable("--compilation_cache_dir=none")
  monkeypatch.setenv("SPECDEC_COMPILATION_CACHE_DIR", "none")
  enable()
  assert not config and capsys.readouterr().err == ""


def test_jax_own_variable_wins_and_says_so(config, monkeypatch, tmp_path, capsys):
  monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "jax"))
  enable()
  assert not config and capsys.readouterr().err == ""
  enable(f"--compilation_cache_dir={tmp_path / 'typed'}")
  assert not config and not (tmp_path / "typed").exists()
  err = capsys.readouterr().err
  assert err.startswith("note: JAX_COMPILATION_CACHE_DIR is set") and err.count("\n") == 1


@pytest.mark.parametrize("path", ["file/below", "nul\0", "/proc/nothing"])
def test_a_folder_that_cannot_be_written_is_one_notice(config, tmp_path, capsys, path):
  (tmp_path / "file").write_text("x")
  enable(f"--compilation_cache_dir={tmp_path / path}")
  assert not config
  err = capsys.readouterr().err
  assert err.startswith("note: compiled programs are not kept: cannot write to")
  assert err.count("\n") == 1


def test_the_oldest_programs_go_when_there_are_too_many(config, monkeypatch, tmp_path):
  for i in range(5):
    (tmp_path / f"{i}-cache").write_bytes(b"x" * 100)
    os.utime(tmp_path / f"{i}-cache", (i, i))
  (tmp_path / "mine.txt").write_bytes(b"x" * 1000)
  monkeypatch.setattr(program_cache, "_MOST_BYTES", 250)
  assert program_cache.keep_in(tmp_path) is None
  assert sorted(os.listdir(tmp_path)) == ["3-cache", "4-cache", "mine.txt"]


def test_after_a_warm_up_another_process_reads_everything(tmp_path, saved_pair):
  cache = tmp_path / "cache"
  env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_COMPILATION", "JAX_PERS"))}

  def command(*args):
    done = subprocess.run(
        [sys.executable, "-m", "specdec", args[0], f"--pair={saved_pair}", "--task=none",
         "--max_decode_len=6", "--mode=plain", "--batch_size=1", *args[1:]],
        capture_output=True, text=True, env={**env, "SPECDEC_COMPILATION_CACHE_DIR": str(cache)})
    assert done.returncode == 0, done.stderr
    return done

  def programs():
    return {p.name for p in cache.iterdir() if p.name.startswith(("jit_run", "jit_start"))}

  warm = command("warmup", "--widths=16")
  assert "1 shapes: batches of 1, sources 16 wide" in warm.stdout
  assert "3 programs compiled, 0 read" in warm.stdout and str(cache) in warm.stdout
  kept = programs()
  assert len(kept) == 2
  first = command("generate", "A boat.")
  assert programs() == kept
  assert "note" not in first.stderr
  # What lies there may be damaged: it is compiled anew then.
  for file in cache.iterdir():
    file.write_bytes(b"x" * 100)
  again = command("generate", "A boat.")
  assert again.stdout == first.stdout and "Traceback" not in again.stderr


@pytest.mark.parametrize("args, words", [
    (["A boat."], "specdec warmup decodes nothing"),
    (["--widths=0"], "--widths is '0'; expected integers from 1 up"),
    (["--widths=16", "--input_file=x"], "--widths does not go with --input_file"),
    (["--format=tsv"], "--format says something about an --input_file"),
    (["--shard_size=0", "--input_file=x"], "shard_size is 0"),
    (["--input_file=/no/such"], "cannot read /no/such"),
])
def test_mistakes_of_warmup(mistake, args, words):
  assert words in mistake("warmup", *args)


def test_warmup_goes_by_the_lines_of_a_file(memory_pair, tmp_path: pathlib.Path, capsys):
  (tmp_path / "in.jsonl").write_text('{"input": "A boat."}\n{"input": "' + "boat " * 9 + '"}\n'
                                     '{"input": "Two."}\n')
  assert run(["warmup", "--pair=tiny", "--task=none", f"--input_file={tmp_path / 'in.jsonl'}",
              "--mode=plain", "--max_decode_len=6", "--shard_size=2"]) == 0
  assert "2 shapes: batches of 1, 2, sources 16, 32 wide" in capsys.readouterr().out
