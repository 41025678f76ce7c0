"""Counting n-grams, and tables on disk."""

import json
import time

import jax
import numpy as np
import pytest

from specdec.checkpoints import drafter_folder
from specdec.data.byte_vocabulary import ByteVocabulary
from specdec.data.vocabulary import Vocabulary
from specdec.drafters.ngram import NgramDrafter
from specdec.drafters.ngram import Tables
from specdec.engine import ngrams
from specdec.errors import InputError
from specdec.errors import SpecdecError
from specdec.testing import tiny

TEXTS = [[5, 6, 5, 6, 1], [5, 7, 1], [6]]


def as_dictionary(tables: Tables) -> dict[tuple[int, ...], dict[int, float]]:
  """Probabilities by history, and successors in the order of the table."""
  histories = [(), *(tuple(h) for level in tables.histories for h in level.tolist())]
  return {h: dict(zip(tables.tokens[a:b].tolist(), np.exp(tables.log_probs[a:b]).tolist()))
          for h, a, b in zip(histories, tables.begin, tables.begin[1:])}


def test_counts_worked_out_by_hand():
  found = as_dictionary(ngrams.count(TEXTS, 3, 10))
  expected = {
      (): {5: 3 / 9, 6: 3 / 9, 1: 2 / 9, 7: 1 / 9},
      (0,): {5: 2 / 3, 6: 1 / 3}, (5,): {6: 2 / 3, 7: 1 / 3}, (6,): {1: 1 / 2, 5: 1 / 2},
      (7,): {1: 1.0},
      (0, 5): {6: 1 / 2, 7: 1 / 2}, (5, 6): {1: 1 / 2, 5: 1 / 2}, (5, 7): {1: 1.0},
      (6, 5): {6: 1.0}}
  assert found.keys() == expected.keys()
  for history, row in expected.items():
    assert list(found[history]) == list(row), history
    np.testing.assert_allclose(list(found[history].values()), list(row.values()), rtol=1e-6)


def test_no_history_reaches_into_another_sequence():
  found = as_dictionary(ngrams.count([[5], [6], [7]], 3, 10))
  assert found.keys() == {(), (0,)}


def test_successors_are_cut_and_keep_their_probabilities():
  found = as_dictionary(ngrams.count(TEXTS, 2, 10, successors=1))
  assert found[()] == {5: pytest.approx(3 / 9)}
  assert found[5,] == {6: pytest.approx(2 / 3)}


def test_rare_ngrams_are_left_out_and_single_tokens_stay():
  found = as_dictionary(ngrams.count(TEXTS, 3, 10, min_count=2))
  assert found.keys() == {(), (0,), (5,)}
  assert found[()].keys() == {5, 6, 1, 7} and found[5,].keys() == {6}


@pytest.mark.parametrize("order", [1, 2, 3])
def test_min_count_may_leave_single_tokens_alone(order, tmp_path):
  tables = ngrams.count(TEXTS, order, 120, min_count=99)
  assert as_dictionary(tables).keys() == {()}
  ngrams.save(tmp_path / "few", tables, tiny.vocabulary())
  drafter, back = ngrams.load(tmp_path / "few", tiny.vocabulary())
  assert drafter.order == order and back.width == 4
  assert ngrams.after(tables, [5, 6]).history == []


@pytest.mark.parametrize("make, words", [
    (lambda: ngrams.count(TEXTS, 0, 10), "order is 0; expected an integer from 1 to 3"),
    (lambda: ngrams.count(TEXTS, 4, 10), "order is 4"),
    (lambda: ngrams.count(TEXTS, 2, 10, successors=0), "successors is 0"),
    (lambda: ngrams.count(TEXTS, 2, 10, min_count=0), "min_count is 0"),
    (lambda: ngrams.count([], 2, 10), "there are no tokens"),
    (lambda: ngrams.count([[], []], 2, 10), "there are no tokens"),
    (lambda: ngrams.count([[5], [5, 10]], 2, 10), "input 1 holds the id 10; expected ids from 0"),
    (lambda: ngrams.count([[5], [-1]], 2, 10), "input 1 holds the id -1"),
    (lambda: ngrams.count([[1.5]], 2, 10), "input 0 is not a list of ids"),
    (lambda: ngrams.count([[[1]]], 2, 10), "input 0 is not a list of ids"),
    (lambda: ngrams.count([[1, [2]]], 2, 10), "input 0 is not a list of ids"),
    (lambda: ngrams.count([[2**70]], 2, 10), "input 0 is not a list of ids"),
])
def test_mistakes_are_told_in_one_line(make, words):
  with pytest.raises(SpecdecError, match=words) as caught:
    make()
  assert "\n" not in str(caught.value)


def test_a_wrong_sequence_is_told_apart():
  with pytest.raises(InputError) as caught:
    ngrams.count([[5], [99]], 2, 10)
  assert caught.value.index == 1


def test_a_million_tokens_take_seconds():
  """Of CPU time, with room for a slow machine; one at a time would take minutes."""
  rng = np.random.default_rng(0)
  flat = np.minimum(rng.zipf(1.2, 10**6), 32000)
  sequences = [row.tolist() for row in np.array_split(flat, 50_000)]
  begin = time.process_time()
  tables = ngrams.count(sequences, 3, 32128)
  assert time.process_time() - begin < 20
  assert tables.histories[1].shape[0] > 10**5 and tables.width == 64


@pytest.fixture
def saved(tmp_path):
  tables = ngrams.count([tiny.vocabulary().encode(s) for s in tiny.SENTENCES], 3, 120)
  ngrams.save(tmp_path / "tables", tables, tiny.vocabulary(), "twelve sentences")
  return tmp_path / "tables", tables


def test_tables_come_back_as_they_were(saved):
  path, tables = saved
  drafter, back = ngrams.load(path, tiny.vocabulary(), 128)
  assert drafter == NgramDrafter(128, 3) and back.width == tables.width
  for a, b in zip(jax.tree.leaves(tables), jax.tree.leaves(back), strict=True):
    assert isinstance(b, jax.Array) and a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)
  assert drafter_folder.load(path).source == "twelve sentences"


def test_a_table_of_another_vocabulary_is_refused_and_both_are_named(saved):
  path, _ = saved
  with pytest.raises(SpecdecError, match="another vocabulary") as caught:
    ngrams.load(path, ByteVocabulary())
  message = str(caught.value)
  assert tiny.vocabulary().fingerprint[:12] in message and "\n" not in message
  assert ByteVocabulary().fingerprint[:12] in message


def test_sentinels_make_no_other_vocabulary(saved):
  path, _ = saved
  more = Vocabulary(tiny.vocabulary().model, 100)
  assert more.fingerprint != tiny.vocabulary().fingerprint
  assert ngrams.load(path, more)[0].vocab_size == 220


def test_logits_too_narrow_for_the_tables_are_refused(saved):
  path, tables = saved
  highest = int(tables.tokens.max())
  with pytest.raises(SpecdecError, match=f"drafts the id {highest}; expected ids below the 50"):
    ngrams.load(path, tiny.vocabulary(), 50)


def rewrite(path, **changes):
  """The same tables with other arrays, whose checksums are right."""
  found = drafter_folder.load(path)
  new = path.with_name("new")
  arrays = {**found.arrays, **{k: v for k, v in changes.items() if k in found.arrays}}
  drafter_folder.save(new, kind=changes.get("kind", "ngram"), arrays=arrays,
                      settings={**found.settings, **changes.get("settings", {})},
                      vocabulary=found.vocabulary)
  return new


@pytest.mark.parametrize("change, words", [
    (lambda a: {"kind": "heads"}, "of kind 'heads'; expected n-gram tables"),
    (lambda a: {"settings": {"order": 4}}, '"order" .* from 1 to 3'),
    (lambda a: {"settings": {"order": 2}}, "array 'begin'"),
    (lambda a: {"settings": {"width": 1}}, "width of the rows do not agree"),
    (lambda a: {"begin": a["begin"][::-1]}, "no successors, or rows overlap"),
    (lambda a: {"begin": a["begin"].astype(np.float32)}, "'begin' .* is float32"),
    (lambda a: {"tokens": -a["tokens"]}, "negative ids"),
    (lambda a: {"log_probs": a["log_probs"][1:]}, "do not agree"),
    (lambda a: {"log_probs": a["log_probs"] + np.inf}, "positive or not finite"),
    (lambda a: {"histories_2": a["histories_2"][::-1]}, "not sorted"),
    (lambda a: {"histories_1": a["histories_1"][[0, *range(len(a["histories_1"]) - 1)]]},
     "one is there twice"),
])
def test_unsound_tables_are_refused(saved, change, words):
  path, _ = saved
  new = rewrite(path, **change(drafter_folder.load(path).arrays))
  with pytest.raises(SpecdecError, match=words) as caught:
    ngrams.load(new, tiny.vocabulary())
  assert "\n" not in str(caught.value) and str(new) in str(caught.value)


def test_what_is_expected_after_a_text(saved):
  _, tables = saved
  words = tiny.vocabulary().encode("The cat")[:-1]
  found = ngrams.after(tables, words)
  rows = as_dictionary(tables)
  assert found.history == [0, *words][-2:]
  assert dict(zip(found.tokens, found.probs)) == pytest.approx(rows[tuple(found.history)])
  assert found.probs == sorted(found.probs, reverse=True)
  assert ngrams.after(tables, []).history == [0]
  unknown = ngrams.after(tables, [*words, 119, 118])
  assert len(unknown.history) < 2 and dict(zip(unknown.tokens, unknown.probs)) == pytest.approx(
      rows[tuple(unknown.history)])


def test_the_index_says_what_tables_are(saved):
  about = json.loads((saved[0] / "drafter.json").read_text())
  assert about["kind"] == "ngram" and about["target"] is None
  assert about["settings"]["order"] == 3
