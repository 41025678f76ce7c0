"""Text as it is decoded: the pieces are the whole."""

import pytest

import specdec
from specdec.engine import streaming
from specdec.testing import tiny

TEXTS = ["A boat.", "The cat sleeps on the wall.", "", "Die Katze", "hens"]


@pytest.fixture(scope="module")
def pair():
  return tiny.pair()


@pytest.mark.parametrize("options", [
    {"temperature": 1.0, "batch_size": 2, "seed": 3},
    {"temperature": 1.0, "num_decodes": 3, "batch_size": 2, "prompt": "Die", "eos_ids": [1, 9]},
    {"mode": "plain", "temperature": 1.2, "batch_size": 4},
])
def test_pieces_concatenate_to_the_output(pair, options):
  expected = specdec.generate(pair, TEXTS, task="", **options)
  said, records = {}, {}
  count = 0
  for piece in specdec.stream(pair, TEXTS, task="", **options):
    where = piece.index, piece.sample
    assert where not in records, "nothing comes after the last piece"
    said[where] = said.get(where, "") + piece.text
    count += 1
    if piece.record:
      records[where] = piece.record
  whole = {(r.index, r.sample): r for r in expected.records}
  assert said == {where: record.output for where, record in whole.items()}
  for where, record in records.items():
    assert record.output_ids == whole[where].output_ids
    assert record.target_calls == whole[where].target_calls
  assert count > 2 * len(whole), "text comes before the end"


def test_mistakes_are_raised_at_once(pair):
  with pytest.raises(specdec.SpecdecError, match="gamma"):
    specdec.stream(pair, "A boat.", gamma=-1)


def test_nothing_is_said_that_later_tokens_take_back(pair, monkeypatch):
  """A character made of several byte pieces is held back until it is whole."""
  texts = {1: "a", 2: "a\ufffd", 3: "a\ufffd\ufffd", 4: "aü", 5: "aüb"}
  monkeypatch.setattr(streaming.generate, "text_of", lambda job, ids, status: texts[len(ids)])
  said, pieces = "", []
  for n in texts:
    piece = streaming._settled(None, __import__("numpy").zeros(n), said)
    said += piece
    pieces.append(piece)
  assert pieces == ["a", "", "", "ü", "b"]


def test_the_last_piece_brings_the_record(pair):
  pieces = list(specdec.stream(pair, "A boat.", task="", trace=True))
  assert [p.record is not None for p in pieces] == [False] * (len(pieces) - 1) + [True]
  assert pieces[-1].record.trace is not None
