"""Pairs on disk and in memory, and teacher-forced logits."""

import dataclasses

import jax
import numpy as np
import pytest

import specdec
from specdec.errors import SpecdecError
from specdec.testing import tiny


@pytest.fixture(scope="module")
def pair():
  return tiny.pair()


def test_logits_have_their_shape_and_ignore_padding(pair):
  encode = pair.vocabulary.encode
  rows = [encode("A boat."), encode("b")]
  decoder = np.asarray([[0, 5, 6, 7], [0, 9, 8, 7]])
  both = pair.target.logits(rows, decoder)
  assert both.shape == (2, 4, pair.target.config.vocab_size)
  assert both.dtype == np.float32
  for i in range(2):
    alone = pair.target.logits([rows[i]], decoder[i:i + 1])
    np.testing.assert_allclose(alone[0], both[i], rtol=1e-4, atol=1e-4)
  # Causal: what comes later does not change what came before.
  shorter = pair.target.logits(rows, decoder[:, :2])
  np.testing.assert_allclose(shorter, both[:, :2], rtol=1e-4, atol=1e-4)


def test_logits_agree_with_what_is_decoded(pair):
  # Eight short inputs, whose program other tests have compiled already.
  result = specdec.generate(pair, ["A boat.", "b", "The cat", "hens"] * 2, task="")
  decoder = np.zeros((8, 12), np.int32)
  for row, ids in zip(decoder, result.ids, strict=True):
    row[1:len(ids)] = ids[:-1]
  sources = [pair.vocabulary.encode(record.input) for record in result.records]
  all_logits = pair.target.logits(sources, decoder)
  for record, logits in zip(result.records, all_logits, strict=True):
    logits = logits[:len(record.output_ids)]
    assert logits.argmax(-1).tolist() == record.output_ids
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    score = log_probs[np.arange(len(record.output_ids)), record.output_ids].sum()
    assert record.score == pytest.approx(float(score), abs=1e-3)


@pytest.mark.parametrize("decoder, expected", [
    ([[0, 999]], "hold ids from 0 to 999"), ([[0, -1]], "hold ids from -1"),
    ([0, 1], "expected integers of shape"), ([[0], [0]], "a row per encoder row"),
    ([[0.5]], "are float64"), (np.zeros((1, 0), int), "of shape"),
])
def test_logits_refuse_bad_ids(pair, decoder, expected):
  with pytest.raises(specdec.SpecdecError, match=expected):
    pair.target.logits([[5, 1]], decoder)


def test_saved_pair_is_the_pair(pair, tmp_path):
  loaded = specdec.load_pair(tiny.save(tmp_path / "pair"))
  assert loaded.tasks == pair.tasks
  assert (loaded.max_source_len, loaded.max_decode_len) == (64, 12)
  assert loaded.target.num_params == pair.target.num_params
  for role in ("target", "drafter"):
    jax.tree.map(np.testing.assert_array_equal,
                 getattr(loaded.weights(), role), getattr(pair.weights(), role))


def test_vocabularies_must_be_equal(pair):
  from specdec.data.vocabulary import Vocabulary

  other = Vocabulary(tiny.train_vocabulary(tiny.SENTENCES, 100))
  with pytest.raises(specdec.SpecdecError, match="different vocabularies"):
    dataclasses.replace(pair, drafter=dataclasses.replace(pair.drafter.model, vocabulary=other))


def test_unknown_pair():
  with pytest.raises(specdec.SpecdecError, match="there is no pair 'nowhere'"):
    specdec.load_pair("nowhere")


@pytest.mark.parametrize("encoder, decoder, words", [
    ([[9, 1], [9, 1]], [[0, 9], [0]], "different lengths"), ([], [], "no rows")])
def test_logits_tell_ragged_and_absent_rows(pair, encoder, decoder, words):
  with pytest.raises(SpecdecError, match=words):
    pair.target.logits(encoder, decoder)
