"""The vocabulary: T5's ids, round trip, fingerprints, safe decoding."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies
import pytest

from specdec.data.vocabulary import Vocabulary
from specdec.errors import SpecdecError
from specdec.testing import tiny

VOCABULARY = tiny.vocabulary()


def test_round_trip_and_special_ids():
  text = "Two children are building a tower of wooden blocks."
  ids = VOCABULARY.encode(text)
  assert ids[-1] == VOCABULARY.eos_id == 1
  assert VOCABULARY.decode(ids) == text
  assert VOCABULARY.pieces([0, 1, 2]) == ["<pad>", "</s>", "<unk>"]


def test_decoding_stops_at_eos_and_skips_padding_and_ids_without_a_piece():
  ids = VOCABULARY.encode("a boat")[:-1]
  wide = len(VOCABULARY) + 5
  assert VOCABULARY.decode([0, *ids, wide, 0, 1, *ids]) == "a boat"
  assert VOCABULARY.pieces([wide]) == [f"<id {wide}>"]


@settings(max_examples=100, deadline=None)
@given(strategies.text(max_size=40))
def test_any_text_is_encoded_and_decoded(text):
  ids = VOCABULARY.encode(text)
  assert ids[-1] == 1 and all(0 < i < len(VOCABULARY) for i in ids)
  assert isinstance(VOCABULARY.decode(ids), str)


def test_lone_surrogates_are_repaired():
  assert VOCABULARY.encode("a \ud800 boat")[-1] == 1


def test_fingerprint_depends_on_the_pieces_alone():
  other = Vocabulary(tiny.train_vocabulary(tiny.SENTENCES[:6], 80))
  assert other.fingerprint != VOCABULARY.fingerprint
  assert Vocabulary(VOCABULARY.model).fingerprint == VOCABULARY.fingerprint


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x80\x04pickle"])
def test_other_files_are_refused(tmp_path, content):
  path = tmp_path / "vocab.model"
  path.write_bytes(content)
  with pytest.raises(SpecdecError, match="sentencepiece"):
    Vocabulary.load(path)


def test_a_missing_file_is_named(tmp_path):
  with pytest.raises(SpecdecError, match=r"cannot read the vocabulary .*nowhere"):
    Vocabulary.load(tmp_path / "nowhere")
