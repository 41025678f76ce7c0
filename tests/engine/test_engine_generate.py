"""Order, buckets, batches, seeds: an output depends on its own input alone."""

import dataclasses

import numpy as np
import pytest

import specdec
from specdec.core import loop
from specdec.engine import generate as generate_lib
from specdec.engine import job
from specdec.testing import tiny

# Lengths differ, but all fit into one bucket of 16.
SHORT = ("A boat.", "", "The cat", "b", "Die Katze", "A small boat.", "hens", "old; bridge")


@pytest.fixture(scope="module")
def pair():
  return tiny.pair()


def _same(a: specdec.Result, b: specdec.Result) -> None:
  """Equal but for rounding of the scores, which varies with the batch's shape."""
  np.testing.assert_allclose(a.scores, b.scores, rtol=1e-4, atol=1e-4)
  adjusted = [[r.adjusted_score for r in result.records] for result in (a, b)]
  np.testing.assert_allclose(*adjusted, rtol=1e-4, atol=1e-4)
  unscored = lambda result: [dataclasses.replace(r, score=0.0, adjusted_score=0.0)
                             for r in result.records]
  assert unscored(a) == unscored(b)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_outputs_do_not_depend_on_the_batch_size(pair, temperature):
  results = [specdec.generate(pair, SHORT, task="", temperature=temperature, batch_size=n, seed=5)
             for n in (1, 3, 8)]
  _same(results[0], results[1])
  _same(results[0], results[2])


def test_many_lengths_share_few_programs_and_keep_their_order(pair):
  texts = ["A boat. " * (i * 7 % 20) + "cat" for i in range(20)]
  lengths = [len(pair.vocabulary.encode(t)) for t in texts]
  buckets = {job.power_of_two(min(n, 64), 16) for n in lengths}
  assert len(buckets) == 3
  before = loop.run._cache_size()
  result = specdec.generate(pair, texts, task="")
  assert loop.run._cache_size() - before <= len(buckets)
  assert [r.input for r in result.records] == texts

  # Batches were formed by length; every row is that of its input all the same.
  compiled = loop.run._cache_size()
  order = np.random.default_rng(0).permutation(len(texts))
  shuffled = specdec.generate(pair, [texts[i] for i in order], task="")
  assert [shuffled.ids[list(order).index(i)] for i in range(len(texts))] == result.ids
  specdec.generate(pair, texts, task="", temperature=0.9, top_k=7, top_p=0.9, seed=1)
  assert loop.run._cache_size() == compiled


def test_equal_inputs_are_sampled_apart_and_a_seed_repeats_them(pair):
  draw = lambda seed: specdec.generate(pair, ["A boat."] * 8, task="", temperature=1.0, seed=seed)
  first = draw(0)
  assert len(set(map(tuple, first.ids))) >= 6
  assert draw(0).ids == first.ids
  assert draw(1).ids != first.ids
  assert len(set(map(tuple, specdec.generate(pair, ["A boat."] * 8, task="").ids))) == 1


def test_temperature_per_input(pair):
  temperatures = [0.0, 1.0] * 4
  mixed = specdec.generate(pair, SHORT, task="", temperature=temperatures)
  for value in (0.0, 1.0):
    alone = specdec.generate(pair, SHORT, task="", temperature=value)
    for i in range(8):
      assert (mixed.ids[i] == alone.ids[i]) or temperatures[i] != value
  with pytest.raises(specdec.SpecdecError, match="has 2 values for 8 inputs"):
    specdec.generate(pair, SHORT, temperature=[0.0, 1.0])


def test_speculative_equals_plain_at_temperature_0(pair):
  plain = specdec.generate(pair, SHORT, task="", mode="plain")
  assert plain.alpha is None and plain.tokens_per_call == 1.0
  result = specdec.generate(pair, SHORT, task="")
  assert result.ids == plain.ids
  assert result.target_calls < plain.target_calls


def test_ids_as_lists_or_padded_equal_text(pair):
  expected = specdec.generate(pair, SHORT, task="")
  ids = [pair.vocabulary.encode(text) for text in SHORT]
  padded = np.zeros((len(ids), 40), np.int64)
  for row, values in zip(padded, ids, strict=True):
    row[:len(values)] = values
  for given in (ids, padded, [np.asarray(row) for row in ids]):
    result = specdec.generate_ids(pair, given)
    assert result.ids == expected.ids and result.texts == expected.texts


def test_task_puts_its_prefix(pair):
  first = specdec.generate(pair, "A boat.")
  assert first.ids == specdec.generate(pair, "A boat.", task="translate").ids
  by_hand = specdec.generate(pair, tiny.TASKS["translate"] + "A boat.", task="")
  assert first.ids == by_hand.ids
  assert first.records[0].input == "A boat."


def test_too_long_input_is_cut_and_keeps_its_eos(pair):
  text = "A boat. " * 40
  ids = pair.vocabulary.encode(text)
  result = specdec.generate(pair, [text], task="", max_source_len=16)
  assert result.records[0].truncated
  cut = specdec.generate_ids(pair, [[*ids[:15], 1]], max_source_len=16)
  assert not cut.records[0].truncated
  assert cut.ids == result.ids
  with pytest.raises(specdec.SpecdecError, match=r"^input 1 has \d+ tokens; expected at most 16"):
    specdec.generate(pair, ["A", text], task="", max_source_len=16, strict_length=True)


def test_records_come_as_they_are_decoded(pair, monkeypatch):
  calls = []
  real = generate_lib.run_batch
  monkeypatch.setattr(generate_lib, "run_batch", lambda *a: calls.append(1) or real(*a))
  records = specdec.iterate(pair, ["A boat."] * 40, task="", batch_size=1)
  assert not calls
  next(records)
  assert len(calls) == 16
  assert len(list(records)) == 39 and len(calls) == 40


def test_progress_sees_every_record(pair):
  seen = []
  result = specdec.generate(pair, SHORT, task="", progress=seen.append)
  assert tuple(seen) == result.records


def test_any_iterable_of_texts_will_do(pair):
  expected = specdec.generate(pair, list(SHORT), task="").ids
  assert specdec.generate(pair, (t for t in SHORT), task="").ids == expected
  assert len(specdec.generate(pair, []).records) == 0
  assert len(specdec.generate_ids(pair, []).records) == 0


@pytest.mark.parametrize("texts, expected", [
    (None, "the input is NoneType"), (3, "the input is int"), (b"A", "the input is bytes"),
    (["A", None], "input 1 is NoneType; expected text"),
])
def test_what_is_no_text_is_refused(pair, texts, expected):
  with pytest.raises(specdec.SpecdecError, match=expected):
    specdec.generate(pair, texts)


@pytest.mark.parametrize("rows, expected", [
    (3, "not rows of ids"), ([[]], "row 0 is empty"), ([[5, 1], [0, 0]], "row 1 is empty"),
    ([[5, -1]], "negative id -1"), ([[5, 120]], "holds the id 120"), ([[2**40]], "holds the id"),
    ([[1.5, 1.0]], "row 0 is float64"), ([["a"]], "row 0 is"), ([5, 1], "row 0 is int64"),
    ([[[5, 1]]], r"of shape \(1, 2\)"), ([[[5], [1, 2]]], "not rows of ids"),
])
def test_what_are_no_ids_is_refused(pair, rows, expected):
  with pytest.raises(specdec.SpecdecError, match=expected):
    specdec.generate_ids(pair, rows)
