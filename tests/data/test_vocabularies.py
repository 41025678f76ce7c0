"""Vocabularies of bytes, of tokenizer.json and of ids alone, and how they are compared."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies
import pytest

from specdec.data import base
from specdec.data.byte_vocabulary import ByteVocabulary
from specdec.data.ids_only import IdsOnly
from specdec.data.make import make
from specdec.data.tokenizer_json import TokenizerVocabulary
from specdec.data.vocabulary import Vocabulary
from specdec.errors import SpecdecError
from specdec.testing import tiny

PLAIN = tiny.vocabulary()
EXTRA = Vocabulary(PLAIN.model, extra_ids=10)
BYTES = ByteVocabulary()


@settings(max_examples=100, deadline=None)
@given(strategies.text(max_size=30))
def test_bytes_bring_every_text_back(text):
  ids = BYTES.encode(text)
  assert ids[-1] == 1 and all(3 <= i < len(BYTES) for i in ids[:-1])
  if "<extra_id_" not in text:
    assert BYTES.decode(ids) == text.encode("utf-8", "replace").decode()


def test_bytes_are_those_of_byt5():
  transformers = pytest.importorskip("transformers", reason="compares with transformers")
  theirs = transformers.ByT5Tokenizer()
  assert len(BYTES) == len(theirs) == 384
  for text in ("Grüße, 世界!", "a <extra_id_0> b", ""):
    assert BYTES.encode(text)[-1] == theirs(text).input_ids[-1]
  assert BYTES.encode("Grüße, 世界!") == theirs("Grüße, 世界!").input_ids
  assert BYTES.pieces([259, 383]) == theirs.convert_ids_to_tokens([259, 383])
  assert BYTES.pieces([0, 1, 2, 68, 13]) == ["<pad>", "</s>", "<unk>", "A", "<0x0A>"]


def test_a_letter_cut_in_the_middle_is_left_out():
  assert BYTES.decode(BYTES.encode("aß")[:-2]) == "a"


def test_sentinels_of_t5():
  assert len(EXTRA) == len(PLAIN) + 10
  last = len(EXTRA) - 1
  assert EXTRA.pieces([last, len(PLAIN)]) == ["<extra_id_0>", "<extra_id_9>"]
  text = "The cat <extra_id_0> on the <extra_id_1> wall."
  ids = EXTRA.encode(text)
  assert last in ids and last - 1 in ids
  assert EXTRA.decode(ids) == text
  assert EXTRA.encode("The cat sleeps.") == PLAIN.encode("The cat sleeps.")
  assert last not in PLAIN.encode(text)
  # One that this vocabulary lacks is text.
  assert EXTRA.encode("<extra_id_99>") == PLAIN.encode("<extra_id_99>")


def test_vocabularies_are_compared_by_pieces():
  other = Vocabulary(tiny.train_vocabulary(tiny.SENTENCES[::-1], 100))
  assert PLAIN.difference(EXTRA) == EXTRA.difference(PLAIN) == ""
  assert PLAIN.difference(Vocabulary(PLAIN.model)) == ""
  assert "in the other" in PLAIN.difference(other) or "nothing" in PLAIN.difference(other)
  assert PLAIN.difference(BYTES).startswith("id 3 is ")
  assert IdsOnly(9).difference(IdsOnly(9)) == ""
  assert "9 and 8 ids" in IdsOnly(9).difference(IdsOnly(8))
  assert "carries no vocabulary" in IdsOnly(len(PLAIN)).difference(PLAIN)
  assert PLAIN.difference(IdsOnly(len(PLAIN))) != ""
  assert base.is_sentinel("\u2581<extra_id_7>") and not base.is_sentinel("extra_id_7")


def test_ids_alone_take_no_text():
  ids = IdsOnly(9)
  assert ids.decode([0, 4, 5, 1, 6]) == "<id 4> <id 5>"
  with pytest.raises(SpecdecError, match="takes ids and no text; give one"):
    ids.encode("a")


@pytest.fixture(scope="module")
def tokenizer_json():
  """A tokenizer.json of the tiny vocabulary's pieces, as T5's fast tokenizer lays it out."""
  tokenizers = pytest.importorskip("tokenizers", reason="reads tokenizer.json: the test extra")
  import sentencepiece

  processor = sentencepiece.SentencePieceProcessor()
  processor.LoadFromSerializedProto(PLAIN.model)
  scores = [(processor.IdToPiece(i), processor.GetScore(i)) for i in range(len(PLAIN))]
  made = tokenizers.Tokenizer(tokenizers.models.Unigram(scores, unk_id=2, byte_fallback=False))
  meta = {"replacement": "\u2581", "prepend_scheme": "always", "split": True}
  made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
      tokenizers.pre_tokenizers.WhitespaceSplit(), tokenizers.pre_tokenizers.Metaspace(**meta)])
  made.decoder = tokenizers.decoders.Metaspace(**meta)
  return made.to_str().encode()


def test_tokenizer_json_agrees_with_the_sentencepiece_model(tokenizer_json):
  found = TokenizerVocabulary(tokenizer_json)
  assert found.fingerprint == PLAIN.fingerprint and found.difference(EXTRA) == ""
  for text in tiny.SENTENCES:
    assert found.encode(text) == PLAIN.encode(text)
    assert found.decode(found.encode(text)) == text


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"model": {"type": "pickle"}}'])
def test_other_files_are_no_tokenizer_json(content):
  pytest.importorskip("tokenizers", reason="reads tokenizer.json: the test extra")
  with pytest.raises(SpecdecError, match=r"is not a tokenizer\.json"):
    TokenizerVocabulary(content)


def test_a_tokenizer_of_another_family_has_no_eos(tokenizer_json):
  with pytest.raises(SpecdecError, match="has no piece </s>"):
    TokenizerVocabulary(tokenizer_json.replace(b"</s>", b"<eot>"))


def test_kinds(tokenizer_json):
  assert make("bytes", b"").kind == "bytes"
  assert make("tokenizer", tokenizer_json).kind == "tokenizer.json"
  assert len(make("sentencepiece", PLAIN.model, 3)) == len(PLAIN) + 3
  with pytest.raises(SpecdecError, match="unknown kind"):
    make("words", b"")
