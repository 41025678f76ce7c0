"""Every mistake is one line that names it, exit code 2, and never a traceback."""

import hashlib
import io
import json
import shutil
import sys

from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from specdec.cli.main import run


@pytest.mark.parametrize("flag, expected", [
    ("--gamma=-1", "gamma is -1; expected an integer from 0 to 64"),
    ("--gamma=65", "gamma is 65"),
    ("--gamma=two", "--gamma=two; expected an integer or auto"),
    ("--verifier=lossy", "--verifier=lossy; expected one of token, block, lenient, coupled"),
    ("--lenience=0.5", "lenience is 0.5 and the verifier 'token', which knows no lenience"),
    ("--lenience=0", "lenience is 0; expected a number above 0, up to 1"),
    ("--confidence=2", "confidence is 2; expected a number from 0 (off) to 1"),
    ("--drafter=bigrm", "there is no drafter 'bigrm'; did you mean bigram?"),
    ("--drafter=", "the drafter '' is empty"),
    ("--drafter=copy:max_mach=2", "did you mean max_match?"),
    ("--drafter=copy:max_match=99", "option max_match of copy is 99; expected an integer from 1"),
    ("--drafter=drafter+drafter", "drafter is drafter once more"),
    ("--drafter=drafter+copy", "copy is the copy drafter and cannot be drafted for"),
    ("--drafter=drafter:gamma=3", "--gamma=3"),
    ("--drafter=./nowhere", "there is no folder ./nowhere"),
    ("--target=x", "--target needs --drafter: copy, uniform, or a model"),
    ("--gamma=1.5", "--gamma=1.5; expected an integer"),
    ("--gamma=", "--gamma=; expected an integer"),
    ("--temperature=-0.1", "temperature is -0.1; expected a finite number from 0"),
    ("--temperature=nan", "temperature is nan"),
    ("--temperature=inf", "temperature is inf"),
    ("--temperature=1e39", "temperature is 1e+39"),
    ("--temperature=warm", "--temperature=warm; expected a number"),
    ("--top_p=1.1", "top_p is 1.1; expected a number from 0 (off) to 1"),
    ("--top_p=-1", "top_p is -1"),
    ("--top_p=nan", "top_p is nan"),
    ("--top_k=-1", "top_k is -1"),
    ("--top_k=99999999999", "top_k is 1e+11"),
    ("--max_decode_len=0", "max_decode_len is 0; expected an integer from 1"),
    ("--max_source_len=1", "max_source_len is 1; expected an integer from 2"),
    ("--batch_size=0", "batch_size is 0"),
    ("--seed=-1", "seed is -1"),
    ("--seed=4294967296", "seed is 4294967296"),
    ("--mode=fast", "--mode=fast; expected one of speculative, plain"),
    ("--dtype=float16", "--dtype=float16; expected one of auto, float32, bfloat16"),
    ("--strict_length=perhaps", "--strict_length=perhaps; expected true or false"),
    ("--gama=3", "unknown flag --gama; did you mean --gamma?"),
    ("--temp=1", "unknown flag --temp; did you mean --temperature?"),
    ("--flagrant", "unknown flag --flagrant"),
    ("-5 degrees", "put -- before texts that begin with a dash"),
    ("--flagfile=/nowhere", "/nowhere"),
    ("--repeats=3", "--repeats belongs to --compare"),
    ("--compare_json=x", "--compare_json belongs to --compare"),
    ("--min_decode_len=-1", "min_decode_len is -1"),
    ("--repetition_penalty=0", "repetition_penalty is 0; expected a number from 1e-6"),
    ("--no_repeat_ngram_size=-2", "no_repeat_ngram_size is -2"),
    ("--num_decodes=0", "num_decodes is 0"),
    ("--forbidden_ids=a", "--forbidden_ids is 'a'; expected ids with commas between"),
    ("--forbidden_ids=3:4", "(3:0:2 is id 3 at positions 0 and 1)"),
    ("--forbidden_ids=3:4:4", "no range of positions"),
    ("--eos_ids=1:0:2", "--eos_ids is '1:0:2'; expected ids with commas between, or none"),
    ("--eos_ids=-1", "an entry of eos_ids is -1"),
    ("--prompt_file=/nowhere", "cannot read --prompt_file /nowhere"),
    ("--allowed_file=/nowhere", "cannot read --allowed_file /nowhere"),
])
def test_bad_flag(mistake, flag, expected):
  assert expected in mistake("generate", flag, "A dog.")


@pytest.mark.parametrize("flags, expected", [
    (["--mode=plain"], "--compare does not go with --mode"),
    (["--mode=speculative"], "--compare does not go with --mode"),
    (["--output_file=x"], "--compare does not go with --output_file"),
    (["--drafter=copy+"], "has an empty part"),
    (["--gamma=0"], "--compare needs a gamma of 1 or more"),
    (["--repeats=0"], "repeats is 0"),
    (["--compare_json=-"], "expected the name of a file"),
    (["--stream"], "--compare does not go with --stream"),
    (["--trace"], "--compare does not go with --trace"),
    (["--trace_html=x"], "--compare does not go with --trace_html"),
])
def test_bad_comparison(mistake, flags, expected):
  assert expected in mistake("generate", "--compare", *flags, "A dog.")


@pytest.mark.parametrize("flag", ["--trace", "--trace_html=x", "--output_file=x",
                                  "--batch_size=2", "--num_decodes=2"])
def test_streams_that_cannot_be(mistake, flag):
  assert f"--stream does not go with {flag.partition('=')[0]}" in mistake(
      "generate", "--stream", flag, "A dog.")


def test_prompts_that_do_not_fit(memory_pair, mistake, tmp_path):
  tiny = ("generate", "--pair=tiny", "--task=none")
  assert "--prompt and --prompt_file are both given" in mistake(
      *tiny, "--prompt=a", "--prompt_file=b", "A dog.")
  path = tmp_path / "prompts.txt"
  path.write_text("a\n" + "b" * 40 + "\n")
  assert "text 2 has a prompt of" in mistake(*tiny, f"--prompt_file={path}", "A dog.", "A cat.")
  assert f"--prompt_file {path} has 2 lines for 1 inputs" in mistake(
      *tiny, f"--prompt_file={path}", "A dog.")
  path.write_text("")
  assert f"--allowed_file {path} is empty" in mistake(*tiny, f"--allowed_file={path}", "A dog.")
  for text, told in (("Ein\n\n", f"line 2 of {path}: of the allowed texts is ''"),
                     ("Ein\n" + "b" * 40, f"line 2 of {path} has 41 tokens"),
                     ("日本", "which the vocabulary writes as")):
    path.write_text(text, encoding="utf-8")
    assert told in mistake(*tiny, f"--allowed_file={path}", "A dog.")
  assert "--eos_ids leaves out" in mistake(*tiny, f"--allowed_file={path}", "--eos_ids=9", "A dog.")
  assert "Settings.num_decodes in gin" in mistake(
      *tiny, "--stream", "--gin_bindings=Settings.num_decodes = 2", "A dog.")
  assert "min_decode_len is 13; expected an integer from 0 to max_decode_len, which is 12" in (
      mistake(*tiny, "--min_decode_len=13", "A dog."))
  assert "forbidden_ids holds 9999" in mistake(*tiny, "--forbidden_ids=9999", "A dog.")


def test_flag_without_its_value(mistake):
  assert "Missing value for flag --gamma" in mistake("generate", "A dog.", "--gamma")


def test_no_input(mistake, monkeypatch):
  terminal = io.TextIOWrapper(io.BytesIO())
  monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
  for stdin in (terminal, None):
    monkeypatch.setattr(sys, "stdin", stdin)
    assert "no input; type texts" in mistake("generate")
  monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
  assert "no input: standard input is empty" in mistake("generate")


def test_two_inputs(mistake, tmp_path):
  assert "expected one of the two" in mistake("generate", "--input_file=x", "A dog.")


def test_input_file_that_cannot_be_read(mistake, tmp_path):
  missing = tmp_path / "missing.txt"
  line = mistake("generate", f"--input_file={missing}")
  assert str(missing) in line and "No such file" in line
  assert "Is a directory" in mistake("generate", f"--input_file={tmp_path}")
  (tmp_path / "empty.txt").touch()
  assert "is empty" in mistake("generate", f"--input_file={tmp_path / 'empty.txt'}")


def test_input_that_is_not_utf8_names_the_line(mistake, tmp_path, monkeypatch):
  latin = "A dog.\nDie Bäckerin.\n".encode("latin-1")
  path = tmp_path / "latin.txt"
  path.write_bytes(latin)
  assert f"line 2 of {path} is not UTF-8" in mistake("generate", f"--input_file={path}")
  monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(latin)))
  assert "line 2 of standard input is not UTF-8" in mistake("generate", "--input_file=-")
  assert "text 2 is not UTF-8" in mistake("generate", "A dog.", "B\udce4cker")


@pytest.fixture
def no_loading(monkeypatch):
  """Fails the test when a model is about to be loaded."""
  from specdec.engine import models
  from specdec.engine import pairs

  def fail(*args):
    pytest.fail("a model was loaded before the mistake was noticed")
  monkeypatch.setattr(models, "load_model", fail)
  monkeypatch.setattr(pairs, "load_pair", fail)


@pytest.mark.parametrize("flag", ["--output_file", "--compare_json", "--trace_html"])
def test_output_that_cannot_be_written(mistake, tmp_path, no_loading, flag):
  args = ["generate", "A dog.", *(["--compare"] if flag == "--compare_json" else [])]
  existing = tmp_path / "there.jsonl"
  existing.write_text("kept\n")
  for path, expected in (
      (tmp_path / "no" / "such.jsonl", "create it first"), (tmp_path, "is a folder"),
      (existing, "add --overwrite"), (existing / "x", "create it first"),
      (tmp_path / ("x" * 300), "File name too long"), ("", "is a folder")):
    assert expected in mistake(*args, f"{flag}={path}"), path
  assert existing.read_text() == "kept\n"
  assert list(tmp_path.iterdir()) == [existing]


def test_pages_that_cannot_be(mistake, no_loading, tmp_path):
  assert "--trace_html is -; expected the name of a file" in mistake(
      "generate", "--trace_html=-", "A dog.")
  path = tmp_path / "out"
  assert f"--trace_html and --output_file are both {path}" in mistake(
      "generate", f"--trace_html={path}", f"--output_file={path}", "A dog.")


def test_output_that_is_the_input(mistake, tmp_path, no_loading):
  path = tmp_path / "in.txt"
  path.write_text("A dog.\n")
  line = mistake("generate", f"--input_file={path}", f"--output_file={path}", "--overwrite")
  assert "is the input file" in line
  assert path.read_text() == "A dog.\n"


def test_failing_later_leaves_output_files_as_they_were(mistake, tmp_path):
  new, old = tmp_path / "new.jsonl", tmp_path / "old.jsonl"
  old.write_text("kept\n")
  for path in (new, old):
    mistake("generate", "A dog.", "--pair=nowhere", f"--output_file={path}", "--overwrite")
  assert not new.exists()
  assert old.read_text() == "kept\n"


def test_unknown_pair_lists_what_exists(mistake, monkeypatch):
  from specdec.engine import pairs

  monkeypatch.setattr(pairs, "pair_names", lambda: ["demo", "other"])
  assert ("there is no pair 'nowhere'; expected a name (demo, other) or a folder"
          in mistake("generate", "--pair=nowhere", "A dog."))
  for name in ("", "x" * 300, "a\0b"):
    assert "there is no pair" in mistake("generate", f"--pair={name}", "A dog.")


def test_unknown_task_lists_what_exists(mistake, memory_pair):
  line = mistake("generate", "--pair=tiny", "--task=summarise", "A dog.")
  assert "has no task 'summarise'; it has: translate, correct" in line


def test_strict_length_names_the_line(mistake, memory_pair, tmp_path):
  path = tmp_path / "in.txt"
  path.write_text("A dog.\n" + "A dog. " * 40 + "\n")
  line = mistake("generate", "--pair=tiny", "--strict_length", f"--input_file={path}")
  assert f"line 2 of {path} has " in line and "expected at most 64" in line
  line = mistake("generate", "--pair=tiny", "--strict_length", "A dog. " * 40)
  assert "text 1 has " in line


def _damage_json(text):
  return lambda folder: (folder / "pair.json").write_text(text)


@pytest.mark.parametrize("damage, expected", [
    (_damage_json("{"), "is not JSON"),
    (_damage_json("[]"), "names no target"),
    (_damage_json('{"target": 3, "drafter": "drafter"}'), "names no target"),
    (_damage_json('{"target": "target"}'), "names no drafter"),
    (_damage_json('{"target": "target", "drafter": "gone"}'), "there is no folder"),
    (_damage_json('{"target": "target", "drafter": "drafter", "tasks": ["a"]}'), '"tasks" in'),
    (_damage_json('{"target": "target", "drafter": "drafter", "max_decode_len": "x"}'),
     '"max_decode_len" in'),
    (lambda f: (f / "drafter" / "model.json").unlink(), "is not a specdec model"),
    (lambda f: (f / "drafter" / "model.json").write_text("{}"), "is not of format"),
    (lambda f: (f / "drafter" / "vocab.model").unlink(), "the bundle is incomplete"),
    (lambda f: (f / "drafter" / "vocab.model").write_bytes(b"\0\1"), "has 2 bytes"),
    (lambda f: _replace_vocabulary(f, b"\0" * 10), "not a sentencepiece model"),
    (lambda f: shutil.rmtree(f / "drafter" / "params"), "the bundle is incomplete"),
    (lambda f: shutil.rmtree(f / "drafter" / "params" / "d"), "is missing"),
    (lambda f: _cut_short(f), "the bundle is damaged"),
    (lambda f: _edit(f, files=3), "expected a table"),
    (lambda f: _edit(f, config=3), "expected a table"),
    (lambda f: _edit(f, version=3), "has bundle version 3"),
    (lambda f: _edit_config(f, emb_dim=24), "do not fit its architecture"),
    (lambda f: _edit_config(f, emb_dim="x"), "expected a positive integer"),
    (lambda f: _edit_config(f, colour=1), "unknown T5Config fields colour"),
])
def test_damaged_pair(mistake, saved_pair, tmp_path, damage, expected):
  folder = tmp_path / "pair"
  shutil.copytree(saved_pair, folder)
  damage(folder)
  assert expected in mistake("generate", f"--pair={folder}", "A dog.")


def _edit(folder, **changes):
  path = folder / "drafter" / "model.json"
  path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _edit_config(folder, **changes):
  about = json.loads((folder / "drafter" / "model.json").read_text())
  _edit(folder, config={**about["config"], **changes})


def _cut_short(folder):
  files = [p for p in (folder / "drafter" / "params").rglob("*") if p.is_file()]
  largest = max(files, key=lambda p: p.stat().st_size)
  largest.write_bytes(largest.read_bytes()[:-1])


def _replace_vocabulary(folder, model, **changes):
  (folder / "drafter" / "vocab.model").write_bytes(model)
  about = json.loads((folder / "drafter" / "model.json").read_text())
  _edit(folder, files={**about["files"], "vocab.model": len(model)},
        sha256={**about["sha256"], "vocab.model": hashlib.sha256(model).hexdigest()}, **changes)


def test_pair_with_two_vocabularies(mistake, saved_pair, tmp_path):
  from specdec.data.vocabulary import Vocabulary
  from specdec.testing import tiny

  folder = tmp_path / "pair"
  shutil.copytree(saved_pair, folder)
  other = Vocabulary(tiny.train_vocabulary(tiny.SENTENCES[::-1], 100))
  _replace_vocabulary(folder, other.model, vocabulary=other.fingerprint)
  line = mistake("generate", f"--pair={folder}", "A dog.")
  assert "different vocabularies (120 pieces" in line and "(100" not in line


_TEXT = st.text(max_size=12)
_VALUES = st.one_of(_TEXT, st.integers(-3, 70).map(str), st.floats().map(str))
_NAMES = st.sampled_from([
    "gamma", "mode", "temperature", "top_k", "top_p", "max_decode_len", "max_source_len", "seed",
    "batch_size", "dtype", "task", "strict_length", "compare", "repeats", "nogamma", "nocompare",
    "undefok", "", "x y"])


@settings(max_examples=60, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(args=st.lists(st.one_of(
    st.builds("--{}={}".format, _NAMES, _VALUES), st.builds("-{}".format, _NAMES), _TEXT),
    max_size=5))
def test_whatever_is_typed_the_answer_is_one_line(capsys, monkeypatch, args):
  # The pair does not exist, so that arguments without a mistake end there.
  monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
  code = run(["generate", "--pair=/nowhere", *args])
  out, err = capsys.readouterr()
  if code == 0:
    assert "Usage" in out  # Somebody typed -h.
  else:
    assert code == 2 and out == "" and err.startswith("specdec: ")
    assert err.count("\n") == 1 and len(err.splitlines()) == 1
