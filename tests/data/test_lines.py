"""Reading files of records: every format, every broken line, any part of the file."""

import gzip
import hashlib
import re

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from specdec.data import lines
from specdec.errors import SpecdecError


def write(tmp_path, data, name="in.txt"):
  path = tmp_path / name
  path.write_bytes(data if isinstance(data, bytes) else data.encode())
  return path


def texts(file):
  return [line.text for line in file.read(0, file.count)]


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"])),
                min_size=1, max_size=200), st.booleans(), st.data())
@settings(max_examples=60, deadline=None)
def test_any_part_of_a_text_file_is_what_stands_there(tmp_path_factory, written, ends, data):
  if not ends and not written[-1]:
    written[-1] = "x"
  if written[0].startswith("\ufeff"):
    written[0] = "x"
  path = write(tmp_path_factory.mktemp("lines"), "\n".join(written) + "\n" * ends)
  file = lines.LineFile(path)
  assert file.count == len(written)
  assert file.digest == hashlib.sha256(path.read_bytes()).hexdigest()
  begin = data.draw(st.integers(0, len(written)))
  end = data.draw(st.integers(begin, len(written)))
  found = file.read(begin, end)
  assert [line.text for line in found] == written[begin:end]
  assert [line.number for line in found] == list(range(begin + 1, end + 1))


def test_a_byte_order_mark_and_carriage_returns_are_no_text(tmp_path):
  assert texts(lines.LineFile(write(tmp_path, b"\xef\xbb\xbfa b\r\n\r\nc"))) == ["a b", "", "c"]


def test_columns_go_by_number_or_by_a_name_in_the_first_line(tmp_path):
  path = write(tmp_path, "id\ttext\n1\tone\n2\ttwo\n", "in.tsv")
  assert texts(lines.LineFile(path)) == ["id", "1", "2"]
  assert texts(lines.LineFile(path, field="2")) == ["text", "one", "two"]
  file = lines.LineFile(path, field="text")
  assert texts(file) == ["one", "two"] and file.count == 2
  assert [line.number for line in file.read(0, 2)] == [2, 3]
  with pytest.raises(SpecdecError, match="no column 'txt'; its first line has: id, text"):
    lines.LineFile(path, field="txt")
  with pytest.raises(SpecdecError, match="from 1"):
    lines.LineFile(path, field="0")


def test_fields_of_json_lines_go_by_name(tmp_path):
  path = write(tmp_path, '{"input": "a", "other": "b"}\n{"input": "\\u00e9\\n"}\n', "in.jsonl")
  assert texts(lines.LineFile(path)) == ["a", "é\n"]
  assert lines.LineFile(path, field="other").read(0, 1)[0].text == "b"


@pytest.mark.parametrize("name, line, expected", [
    ("in.txt", b"caf\xe9", r"not UTF-8 \(byte 4\)"),
    ("in.jsonl", b"{", "not JSON"),
    ("in.jsonl", b"[1]", "is list; expected a JSON object"),
    ("in.jsonl", b"", "not JSON"),
    ("in.jsonl", b'{"text": "a", "id": 3}', "no field 'input'; it has: 'text', 'id'"),
    ("in.jsonl", b"{}", "it has: none"),
    ("in.jsonl", b'{"input": 3}', "int in 'input'; expected text"),
    ("in.jsonl", b'{"input": "\\ud800"}', "surrogate"),
    ("in.jsonl", b"[" * 100_000, "not JSON"),
    ("in.tsv", b"a", "has 1 columns; expected 2 or more"),
])
def test_a_broken_line_is_told_of_and_the_others_are_read(tmp_path, name, line, expected):
  good = {"in.txt": b"good", "in.jsonl": b'{"input": "good"}', "in.tsv": b"a\tgood"}[name]
  file = lines.LineFile(write(tmp_path, b"\n".join([good, line, good]) + b"\n", name),
                        field="2" if name == "in.tsv" else None)
  first, broken, last = file.read(0, 3)
  assert first.text == last.text == "good" and first.error is None
  assert broken.number == 2 and broken.text == ""
  assert re.search(expected, broken.error)


def test_files_that_cannot_be_read_are_refused(tmp_path):
  with pytest.raises(SpecdecError, match=r"cannot read .*nowhere.txt: No such file"):
    lines.LineFile(tmp_path / "nowhere.txt")
  with pytest.raises(SpecdecError, match="empty; expected a record per line"):
    lines.LineFile(write(tmp_path, ""))
  with pytest.raises(SpecdecError, match="empty"):
    lines.LineFile(write(tmp_path, b"\xef\xbb\xbf"))
  with pytest.raises(SpecdecError, match="empty"):
    lines.LineFile(write(tmp_path, "id\ttext\n", "in.tsv"), field="text")
  with pytest.raises(SpecdecError, match="is compressed; unpack it first"):
    lines.LineFile(write(tmp_path, gzip.compress(b"a\nb\n"), "in.txt.gz"))
  with pytest.raises(SpecdecError, match=r"none of the first 2 lines .* no field 'input'; it has"):
    lines.LineFile(write(tmp_path, '{"text": "a"}\n' * 2, "in.json"))
  with pytest.raises(SpecdecError, match="expected one of text, tsv, jsonl"):
    lines.LineFile(write(tmp_path, "a"), "csv")
  with pytest.raises(SpecdecError, match="the field 'a' is asked for"):
    lines.LineFile(write(tmp_path, "a"), field="a")
