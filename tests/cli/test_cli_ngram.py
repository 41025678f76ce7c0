"""`specdec ngram`: tables out of texts, ids or a target's outputs; what they hold; mistakes."""

import json

import pytest

from specdec.checkpoints import drafter_folder
from specdec.cli.main import run
from specdec.engine import ngrams
from specdec.testing import tiny


@pytest.fixture
def vocab(tmp_path):
  """A file with the tiny vocabulary."""
  path = tmp_path / "vocab.model"
  path.write_bytes(tiny.vocabulary().model)
  return f"--vocab={path}"


@pytest.fixture
def texts(tmp_path):
  path = tmp_path / "in.txt"
  path.write_text("".join(f"{s}\n" for s in tiny.SENTENCES), encoding="utf-8")
  return str(path)


@pytest.fixture
def ngram(capsys):
  """Runs the command, which must work; returns its standard output and error."""
  def call(*args):
    code = run(["ngram", *map(str, args)])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out, err
  return call


def same(path, tables) -> bool:
  back = ngrams.tables_of(drafter_folder.load(path))
  return back.width == tables.width and all(
      (a == b).all() for a, b in zip([*back.histories, back.begin, back.tokens, back.log_probs],
                                     [*tables.histories, tables.begin, tables.tokens,
                                      tables.log_probs], strict=True))


def test_texts_are_tokenised_and_counted(vocab, texts, ngram, tmp_path):
  encoded = [tiny.vocabulary().encode(s) for s in tiny.SENTENCES]
  out, err = ngram("build", vocab, tmp_path / "tables", f"--input_file={texts}", "--order=3",
                   "--successors=5", "--min_count=2")
  assert same(tmp_path / "tables", ngrams.count(encoded, 3, 120, 5, 2))
  assert out.startswith(f"{tmp_path / 'tables'}: trigrams, ") and out.count("\n") == 1
  assert f"{sum(map(len, encoded))} tokens of 12 sequences, texts in in.txt" in err
  assert drafter_folder.load(tmp_path / "tables").source == "texts in in.txt"


def test_ids_come_as_lists_or_as_records(vocab, ngram, tmp_path):
  file = tmp_path / "out.jsonl"
  file.write_text('[5, 6, 1]\n{"input": "x", "output_ids": [5, 7, 1], "score": -1.5}\n[]\n',
                  encoding="utf-8")
  ngram("build", vocab, tmp_path / "tables", f"--ids_file={file}")
  assert same(tmp_path / "tables", ngrams.count([[5, 6, 1], [5, 7, 1]], 2, 120))


def test_a_pair_lends_its_vocabulary(saved_pair, texts, ngram, tmp_path, vocab):
  ngram("build", f"--pair={saved_pair}", tmp_path / "a", f"--input_file={texts}")
  ngram("build", vocab, tmp_path / "b", f"--input_file={texts}")
  for name in ("drafter.json", "arrays.npz"):
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_targets_outputs_are_decoded_and_counted(memory_pair, generate, ngram, tmp_path):
  """Just as by way of a file that generate has written."""
  texts, out = tmp_path / "in.txt", tmp_path / "out.jsonl"
  texts.write_text("".join(f"{s}\n" for s in tiny.SENTENCES[:4]), encoding="utf-8")
  shared = ("--batch_size=4", f"--input_file={texts}")
  _, err = ngram("build", "--pair=tiny", "--from_target", "--task=none", *shared, tmp_path / "a")
  assert "outputs of target for texts in in.txt" in err
  code, _, _ = generate(*shared, "--mode=plain", f"--output_file={out}")
  assert code == 0
  records = [json.loads(line) for line in out.read_text().splitlines()]
  assert same(tmp_path / "a", ngrams.count([r["output_ids"] for r in records], 2, 120))


@pytest.fixture
def tables(tmp_path):
  path = tmp_path / "tables"
  counted = ngrams.count([tiny.vocabulary().encode(s) for s in tiny.SENTENCES], 3, 120)
  ngrams.save(path, counted, tiny.vocabulary(), "twelve sentences")
  return path


def test_show_tells_what_tables_hold(tables, ngram):
  out, _ = ngram("show", tables)
  assert "trigrams, " in out and "from twelve sentences" in out
  assert tiny.vocabulary().fingerprint[:12] in out and out.count("\n") == 2


def test_show_tells_what_is_expected(tables, vocab, ngram):
  """After both tokens, after one of them, and at the beginning."""
  pieces, known = tiny.vocabulary(), ngrams.tables_of(drafter_folder.load(tables))
  for text in ("The cat", "", "Die"):
    out, _ = ngram("show", vocab, tables, text)
    expected = ngrams.after(known, pieces.encode(text)[:-1])
    lines = out.splitlines()
    assert lines[2].endswith(f": {len(expected.tokens)} successors")
    assert lines[2].startswith("after the start") == (0 in expected.history)
    best = lines[5] if set(lines[4]) <= {"─", " "} else lines[4]
    assert best.split() == [pieces.piece(expected.tokens[0]), str(expected.tokens[0]),
                            f"{expected.probs[0]:.4f}"]


def test_show_refuses_a_text_under_another_vocabulary(tables, mistake):
  assert "another vocabulary" in mistake("ngram", "show", "--vocab=bytes", str(tables), "a")


@pytest.mark.parametrize("args, words", [
    ([], "type specdec ngram build OUT or specdec ngram show DIR"),
    (["biuld", "x"], "unknown action 'biuld'; did you mean 'build'?"),
    (["build"], "0 folders are given; expected one"),
    (["build", "a", "b"], "2 folders are given"),
    (["build", "OUT"], "neither --input_file and --ids_file are given"),
    (["build", "OUT", "--input_file=a", "--ids_file=b"], "both --input_file and --ids_file"),
    (["build", "OUT", "--input_file=/nowhere"], "cannot read --input_file /nowhere"),
    (["build", "OUT", "--ids_file=/nowhere"], "cannot read --ids_file /nowhere"),
    (["build", "OUT", "--ids_file=IDS", "--from_target"], "does not go with --ids_file"),
    (["build", "OUT", "--ids_file=IDS", "--temperature=1"], "--temperature belongs to --from_tar"),
    (["build", "OUT", "--ids_file=IDS", "--task=none"], "--task belongs to --from_target"),
    (["build", "OUT", "--ids_file=IDS", "--order=0"], "order is 0; expected an integer from 1 to"),
    (["build", "OUT", "--ids_file=IDS", "--order=4"], "order is 4"),
    (["build", "OUT", "--ids_file=IDS", "--successors=0"], "successors is 0"),
    (["build", "OUT", "--ids_file=IDS", "--min_count=0"], "min_count is 0"),
    (["build", "OUT", "--ids_file=IDS", "--pair=nobody"], "there is no pair 'nobody'"),
    (["build", "OUT", "--ids_file=IDS", "--vocab=/nowhere"], "there is no vocabulary /nowhere"),
    (["build", "OUT", "--ids_file=IDS", "--vocab=IDS"], "IDS"),
    (["build", "OUT", "--ids_file=IDS", "--overwrite"], "unknown flag --overwrite"),
    (["build", ".", "--ids_file=IDS"], ". exists; give a new folder"),
    (["show"], "0 arguments are given; expected a folder"),
    (["show", "/nowhere"], "/nowhere is not a drafter's folder"),
    (["show", "."], "is not a drafter's folder"),
])
def test_mistakes(mistake, tmp_path, monkeypatch, args, words):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "IDS").write_text("[5, 1]\n", encoding="utf-8")
  assert words in mistake("ngram", *args)
  assert [p.name for p in tmp_path.iterdir()] == ["IDS"]


@pytest.mark.parametrize("content, words", [
    ("", "is empty"), ("\n", "line 1 of IDS is not JSON"),
    ("[5]\n{\n", "line 2 of IDS is not JSON"),
    ("[5, 120]\n", "line 1 of IDS holds the id 120; expected ids from 0 to 119"),
    ("[5]\n[-1]\n", "line 2 of IDS holds the id -1"), ("[]\n", "there are no tokens"),
    ("[1.5]\n", "line 1 of IDS holds no list of ids"), ("[true]\n", "holds no list of ids"),
    ('{"ids": [5]}\n', "expected [37, 5, 1], or an object with such output_ids"),
    ("7\n", "no list"),
    (f"[{2**80}]\n", "line 1 of IDS"), ("[" * 100_000 + "\n", "line 1 of IDS"),
])
def test_bad_ids(mistake, tmp_path, monkeypatch, vocab, content, words):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "IDS").write_text(content, encoding="utf-8")
  assert words in mistake("ngram", "build", "OUT", "--ids_file=IDS", vocab)
  assert not (tmp_path / "OUT").exists()


@pytest.mark.parametrize("content, words", [
    ("", "no input: IN is empty"), ("a dog\n\n", "line 2 of IN is empty; expected a text per"),
    ("a dog\n \t\n", "line 2 of IN is empty")])
def test_bad_texts(mistake, tmp_path, monkeypatch, vocab, content, words):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "IN").write_text(content, encoding="utf-8")
  assert words in mistake("ngram", "build", "OUT", "--input_file=IN", vocab)


def test_a_task_that_there_is_not_is_told(mistake, memory_pair, texts, tmp_path):
  assert "has no task 'sing'" in mistake(
      "ngram", "build", "--pair=tiny", "--from_target", "--task=sing", f"--input_file={texts}",
      str(tmp_path / "tables"))
