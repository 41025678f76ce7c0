"""`specdec generate` doing its work."""

import io
import json
import os
import subprocess
import sys

import pytest

import specdec
from specdec.cli import main as main_lib
from specdec.cli.main import run
from specdec.testing import tiny

TEXTS = ("A small boat.", "The cat sleeps.")


def _stdin(monkeypatch, data: bytes) -> None:
  monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def _records(path) -> list[dict]:
  return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def expected():
  """What the library itself gives for TEXTS."""
  return specdec.generate(tiny.pair(), TEXTS, task="")


def test_outputs_a_line_each_and_a_summary(generate, expected):
  code, out, err = generate(*TEXTS)
  assert code == 0
  assert out.splitlines() == expected.texts
  at_limit = expected.statuses.count("length")
  assert err == f"{expected}" + (
      f"; {at_limit} stopped at max_decode_len 12" if at_limit else "") + "\n"


def test_file_stdin_and_arguments_give_the_same(generate, expected, tmp_path, monkeypatch):
  path = tmp_path / "in.txt"
  # A byte order mark, Windows line ends, no newline at the end.
  path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(TEXTS).encode())
  assert generate(f"--input_file={path}")[1].splitlines() == expected.texts
  for args in ([], ["-"], ["--input_file=-"]):
    _stdin(monkeypatch, "\n".join(TEXTS).encode() + b"\n")
    assert generate(*args)[1].splitlines() == expected.texts


def test_empty_lines_have_outputs_of_their_own(generate, monkeypatch):
  _stdin(monkeypatch, f"\n{TEXTS[0]}\n  \t\n\n".encode())
  code, out, _ = generate("--output_file=-", "--batch_size=2")
  records = [json.loads(line) for line in out.splitlines()]
  assert code == 0
  assert [r["input"] for r in records] == ["", TEXTS[0], "  \t", ""]


def test_dashes_end_the_flags(generate):
  code, out, _ = generate("--output_file=-", "--", "--gamma=3", "-h")
  assert code == 0
  assert [json.loads(line)["input"] for line in out.splitlines()] == ["--gamma=3", "-h"]


def test_records_have_every_field(generate, expected, tmp_path):
  path = tmp_path / "out.jsonl"
  code, out, err = generate(*TEXTS, f"--output_file={path}")
  assert (code, out) == (0, "")
  assert f"written to {path}" in err
  assert _records(path) == [record.to_dict() for record in expected.records]
  assert set(_records(path)[0]) == {
      "index", "sample", "input", "output", "output_ids", "prompt_tokens", "score",
      "adjusted_score", "status", "target_calls", "drafted", "tested", "accepted", "truncated",
      "seed", "lossless"}


def test_a_drafter_changes_counts_and_no_outputs(generate, expected):
  code, out, err = generate("--drafter=copy:min_match=0", *TEXTS)
  assert code == 0 and out.splitlines() == expected.texts
  assert "NOT lossless" not in err
  assert err.split(" in ")[0] == f"{expected}".split(" in ")[0]


def test_lenient_outputs_say_so(generate):
  code, out, err = generate("--verifier=lenient", "--lenience=0.01", "--output_file=-", *TEXTS)
  assert code == 0 and "; NOT lossless" in err
  assert not any(json.loads(line)["lossless"] for line in out.splitlines())


def test_overwrite_replaces(generate, tmp_path):
  path = tmp_path / "out.jsonl"
  path.write_text("old\n" * 1000)
  assert generate(*TEXTS, f"--output_file={path}")[0] == 2
  assert generate(*TEXTS, f"--output_file={path}", "--overwrite")[0] == 0
  assert len(_records(path)) == 2
  assert generate(*TEXTS, "--output_file=/dev/null")[0] == 0


def test_full_disk_is_one_line(generate):
  code, _, err = generate(*TEXTS, "--output_file=/dev/full")
  assert code == 2
  assert err == "specdec: cannot write --output_file /dev/full: No space left on device\n"


@pytest.mark.parametrize("flags, settings", [
    (["--gamma=0"], {"gamma": 0}),
    (["--mode=plain"], {"mode": "plain"}),
    (["--temperature=1", "--seed=3"], {"temperature": 1.0, "seed": 3}),
    (["--temperature=0.7", "--top_k=5"], {"temperature": 0.7, "top_k": 5}),
    (["--temperature=1", "--top_p=0.5"], {"temperature": 1.0, "top_p": 0.5}),
    (["--gamma=2", "--max_decode_len=5", "--batch_size=1"],
     {"gamma": 2, "max_decode_len": 5, "batch_size": 1}),
    (["--max_source_len=4"], {"max_source_len": 4}),
    (["--nostrict_length"], {}),
])
def test_flags_reach_the_engine(generate, flags, settings):
  code, out, _ = generate("--output_file=-", *flags, *TEXTS)
  assert code == 0
  records = specdec.generate(tiny.pair(), TEXTS, task="", **settings).records
  assert [json.loads(line) for line in out.splitlines()] == [r.to_dict() for r in records]


def test_tasks_put_their_prefix(memory_pair, capsys):
  outs = []
  for args in ([], ["--task=translate"], ["--task=correct"]):
    assert run(["generate", "--pair=tiny", *args, "A dog."]) == 0
    outs.append(capsys.readouterr().out)
  assert outs[0] == outs[1]  # The first task is the default.
  result = specdec.generate(tiny.pair(), "A dog.", task="correct")
  assert outs[2] == result.texts[0] + "\n"


def test_cut_inputs_are_flagged_and_counted_once(generate):
  long = "A dog. " * 40
  code, out, err = generate(
      "--output_file=-", "--max_source_len=16", "--batch_size=2", TEXTS[0], long, long)
  assert code == 0
  records = [json.loads(line) for line in out.splitlines()]
  assert [r["truncated"] for r in records] == [False, True, True]
  assert records[1]["input"] == long
  assert err.count("warning: 2 of 3 inputs had more than 16 tokens and were cut") == 1
  assert generate("--strict_length", "--max_source_len=16", TEXTS[0])[0] == 0


def test_dtype_reaches_the_weights(saved_pair, capsys):
  assert run(["generate", f"--pair={saved_pair}", "--dtype=bfloat16", "--max_decode_len=2",
              "--mode=plain", "A dog."]) == 0
  assert "1 output," in capsys.readouterr().err


def test_interruption_keeps_what_is_written(generate, tmp_path, monkeypatch):
  from specdec.engine import generate as engine

  real, path = engine.run_batch, tmp_path / "out.jsonl"
  calls = iter(range(100))

  def run_batch(*args):
    if next(calls) == 16:
      raise KeyboardInterrupt
    return real(*args)

  monkeypatch.setattr(engine, "run_batch", run_batch)
  code, _, err = generate(f"--output_file={path}", "--batch_size=2", *TEXTS * 20)
  assert code == 130
  assert err == f"specdec: interrupted; 32 of 40 outputs are in {path}\n"
  assert len(_records(path)) == 32


def test_interruption_elsewhere_is_one_line(monkeypatch, capsys):
  def interrupt(args):
    raise KeyboardInterrupt
  monkeypatch.setattr(main_lib, "_dispatch", interrupt)
  assert run([]) == 130
  assert capsys.readouterr().err == "specdec: interrupted\n"


def test_too_little_memory_is_one_line(generate, monkeypatch):
  from specdec.engine import generate as engine

  def run_batch(*args):
    raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes.\nmore")
  monkeypatch.setattr(engine, "run_batch", run_batch)
  code, _, err = generate(TEXTS[0])
  assert (code, err.count("\n")) == (2, 1)
  assert "lower --batch_size, --max_decode_len or --max_source_len" in err


def test_faults_are_not_hidden(generate, monkeypatch):
  from specdec.engine import generate as engine

  def run_batch(*args):
    raise RuntimeError("a fault of ours")
  monkeypatch.setattr(engine, "run_batch", run_batch)
  with pytest.raises(RuntimeError, match="a fault of ours"):
    generate(TEXTS[0])


def test_letters_that_the_locale_lacks_are_escaped():
  program = ("import sys; from specdec.cli.outputs import print_line\n"
             "import specdec.cli.main as m\n"
             "m._dispatch = lambda args: print_line('Bäcker') or 0\nsys.exit(m.run([]))")
  done = subprocess.run([sys.executable, "-c", program], capture_output=True,
                        env={**os.environ, "PYTHONIOENCODING": "ascii"})
  assert (done.returncode, done.stdout) == (0, b"B\\xe4cker\n")


def test_full_standard_output_is_one_line():
  for args in ("--help", "generate --help", "--version"):
    done = subprocess.run(["sh", "-c", f"{sys.executable} -m specdec {args} > /dev/full"],
                          capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "specdec: cannot write standard output: No space left on device\n"


def test_as_a_program_with_a_pipe(saved_pair):
  """Also that nothing else is printed: no library's logs."""
  done = subprocess.run(
      [sys.executable, "-m", "specdec", "generate", f"--pair={saved_pair}", "--task=none"],
      input="\n".join(TEXTS) + "\n", capture_output=True, text=True, encoding="utf-8")
  assert done.returncode == 0, done.stderr
  assert done.stdout.splitlines() == specdec.generate(tiny.pair(), TEXTS, task="").texts
  assert done.stderr.count("\n") == 1 and done.stderr.startswith("2 outputs, ")
