"""Pairs of texts out of local files, and each way in which a file can be wrong."""

import gzip
import json

import pytest

from specdec.data.tasks import metrics
from specdec.data.tasks.local import LocalTask
from specdec.errors import SpecdecError


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  return tmp_path


def test_a_tsv_is_read_by_columns_or_by_the_names_in_its_first_line(folder):
  (folder / "a.tsv").write_text("en\tde\tid\nA dog.\tEin Hund.\t7\n\tleer\t8\n")
  by_name = LocalTask(data_file="a.tsv", inputs_field="en", targets_field="de")
  assert by_name.read() == [("A dog.", "Ein Hund."), ("", "leer")]
  assert by_name.label == "a"
  assert LocalTask(data_file="a.tsv").read()[:2] == [("en", "de"), ("A dog.", "Ein Hund.")]
  assert LocalTask(data_file="a.tsv", inputs_field="3", targets_field="1").read()[1] == (
      "7", "A dog.")


def test_json_lines_are_read_by_field_and_by_path(folder):
  row = {"source": "Long text.", "targets": ["short", "shorter"], "a.b": "dotted"}
  (folder / "a.jsonl").write_text(json.dumps(row) + "\n")
  read = lambda *fields: LocalTask(
      data_file="a.jsonl", inputs_field=fields[0], targets_field=fields[1], prefix="do: ").read()
  assert read("source", "targets.1") == [("do: Long text.", "shorter")]
  assert read("a.b", "source") == [("do: dotted", "Long text.")]


def test_two_files_of_lines_and_their_splits(folder):
  for split, count in (("train", 3), ("dev", 2)):
    for language in ("en", "de"):
      lines = "".join(f"{language} {i}\r\n" for i in range(count))
      (folder / f"{split}.{language}.gz").write_bytes(gzip.compress(lines.encode()))
  (folder / "test.en.gz").write_bytes(b"")  # With no counterpart.
  task = LocalTask(inputs_file="{split}.en.gz", targets_file="{split}.de.gz")
  assert task.splits() == ("dev", "train")
  assert task.read("dev") == [("en 0", "de 0"), ("en 1", "de 1")]
  with pytest.raises(SpecdecError, match=r"has no split 'test'; it has: dev, train$"):
    task.read("test")
  assert task.label == "en"
  assert LocalTask(inputs_file="dev.en.gz", targets_file="dev.de.gz", name="a b").label == "a_b"


def test_a_split_may_stand_in_a_name_twice_and_in_folders(folder):
  for split in ("a", "b"):
    (folder / split).mkdir()
    (folder / split / f"{split}.tsv").write_text("x\ty\n")
  (folder / "b" / "c.tsv").write_text("x\ty\n")
  task = LocalTask(data_file="{split}/{split}.tsv")
  assert task.splits() == ("a", "b")
  assert task.read("b") == [("x", "y")]


@pytest.mark.parametrize("name, content, fields, expected", [
    ("a.tsv", "one\ttwo\nthree\n", {}, "line 2 of a.tsv has 1 column; expected at least 2"),
    ("a.tsv", "en\tde\nA\tB\tC\n", {"inputs_field": "en", "targets_field": "de"},
     "line 2 of a.tsv has 3 columns; expected 2"),
    ("a.tsv", "en\tde\nA\tB\n", {"inputs_field": "fr", "targets_field": "de"},
     "no column 'fr' in its first line; it has: en, de"),
    ("a.tsv", "en\tde\n", {"inputs_field": "en", "targets_field": "de"}, "a header and nothing"),
    ("a.tsv", "one\ttwo\n", {"inputs_field": "0", "targets_field": "1"}, "counted from 1"),
    ("a.tsv", "", {}, "a.tsv is empty"),
    ("a.jsonl", '{"inputs": "a", "targets": "b"}\n{"inputs": \n', {}, "line 2 of a.jsonl is not J"),
    ("a.jsonl", '["a", "b"]\n', {}, "line 1 of a.jsonl is no JSON object"),
    ("a.jsonl", '{"source": "a", "target": "b"}\n', {},
     "line 1 of a.jsonl has no field 'inputs'; it has: source, target"),
    ("a.jsonl", '{"inputs": ["a"], "targets": "b"}\n', {}, "a text (its first is inputs.0)"),
    ("a.jsonl", '{"inputs": 3, "targets": "b"}\n', {}, "is no text but int"),
    ("a.jsonl", '{"inputs": "\\ud800", "targets": "b"}\n', {}, "half of a surrogate pair"),
    ("a.jsonl", "[" * 100_000 + "\n", {}, "line 1 of a.jsonl is not JSON"),
    ("a.jsonl", '{"inputs": "a", "targets": "b"}\n\n', {}, "line 2 of a.jsonl is not JSON"),
    ("a.tsv.gz", "not packed\tat all\n", {}, "cannot read a.tsv.gz: Not a gzipped file"),
    ("a.txt", "one\ttwo\n", {}, "a.txt could be of any format; name it as data_format"),
    ("a.txt", "one\ttwo\n", {"data_format": "csv"}, "data_format is 'csv'; expected tsv or jsonl"),
])
def test_a_broken_file_is_told_by_name_and_line(folder, name, content, fields, expected):
  (folder / name).write_text(content)
  with pytest.raises(SpecdecError) as error:
    LocalTask(data_file=name, **fields).read()
  assert expected in str(error.value)


def test_other_ways_to_get_files_wrong(folder):
  (folder / "a.en").write_bytes(b"fine\n\xff\xfe\n")
  (folder / "a.de").write_bytes(b"fein\n")
  (folder / "b.de").write_bytes(b"fein\n\xc3\xa4\n")
  for fields, expected in (
      ({}, "one file or two"),
      ({"data_file": "a.tsv", "inputs_file": "a.en"}, "one file or two"),
      ({"inputs_file": "a.en"}, "there is a inputs_file and no targets_file"),
      ({"inputs_file": "a.en", "targets_file": "a.de", "data_format": "tsv"}, "no fields"),
      ({"inputs_file": "{split}.en", "targets_file": "a.de"}, "in both or in none"),
      ({"data_file": "nowhere.tsv"}, "cannot read nowhere.tsv: No such file"),
      ({"inputs_file": "a.en", "targets_file": "a.de"}, "line 2 of a.en is not UTF-8"),
      ({"inputs_file": "b.de", "targets_file": "a.de"}, "b.de has 2 lines and a.de has 1"),
      ({"data_file": "{split}.tsv"}, "none: no file is called {split}.tsv")):
    with pytest.raises(SpecdecError) as error:
      LocalTask(**fields).read()
    assert expected in str(error.value)
  with pytest.raises(SpecdecError, match="is one file and so has one split, test"):
    LocalTask(data_file="a.tsv").read("validation")


def test_metrics_have_known_values():
  said, meant = ["Ein Hund läuft.", "Zwei Kinder"], ["Ein Hund läuft.", "Zwei Kinder spielen."]
  assert metrics.sequence_accuracy(meant, said) == {"sequence_accuracy": 50.0}
  assert metrics.bleu(meant, meant) == {"bleu": pytest.approx(100.0)}
  import sacrebleu
  # T5's tokenisation parts words at hyphens, and sacrebleu's default does not.
  a, b = ["the long-term plan of the big house"], ["the long term plan of the big house"]
  assert metrics.bleu(a, b)["bleu"] == sacrebleu.corpus_bleu(b, [a], tokenize="intl").score
  assert metrics.bleu(a, b)["bleu"] != sacrebleu.corpus_bleu(b, [a]).score


def test_rouge_is_the_same_each_time_and_leaves_the_random_state_alone():
  pytest.importorskip("rouge_score", reason="the extra seqio is not installed")
  import numpy as np

  meant = [f"the number {i} is here . and so is the next" for i in range(20)]
  said = [f"the number {i} is there . and so it is" for i in range(20)]
  np.random.seed(3)
  first, drawn = metrics.rouge(meant, said), np.random.random()
  np.random.seed(3)
  assert drawn == np.random.random()
  assert metrics.rouge(meant, said) == first
  assert list(first) == ["rouge1", "rouge2", "rougeLsum"]
  assert metrics.rouge(meant, meant) == dict.fromkeys(first, pytest.approx(100.0))
  # Sentences are taken apart: in one piece, the common subsequence would be shorter.
  swapped = ["and so is the next . the number 1 is here"]
  assert metrics.rouge(["the number 1 is here . and so is the next"], swapped)["rougeLsum"] > 95


def test_a_missing_package_or_metric_is_told_by_name(monkeypatch):
  with pytest.raises(SpecdecError, match="there is no metric 'blue'; expected some of bleu, rouge"):
    metrics.check(["blue"])
  monkeypatch.setattr(metrics.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(SpecdecError, match=r"rouge-score.*pip install 'specdec-jax\[seqio\]'"):
    metrics.check(["rouge"])
