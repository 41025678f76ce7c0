"""`specdec generate --compare` and the function behind it."""

import dataclasses
import json

import pytest

import specdec
from specdec.bench import compare as compare_lib
from specdec.testing import tiny

TEXTS = ("A small boat.", "The cat sleeps.")


@pytest.fixture(scope="module")
def comparison():
  return compare_lib.compare(tiny.pair(), TEXTS, task="", repeats=3)


def test_counts_are_those_of_generate(comparison):
  plain = specdec.generate(tiny.pair(), TEXTS, task="", mode="plain")
  speculative = specdec.generate(tiny.pair(), TEXTS, task="")
  assert comparison.plain.result == plain
  assert comparison.speculative.result == speculative
  assert comparison.greedy and comparison.differences == {}
  assert comparison.plain.result.lossless and comparison.speculative.result.lossless


def test_record_is_json_and_says_where_it_was_taken(comparison):
  record = json.loads(json.dumps(comparison.to_dict()))
  for field in ("device", "jax", "commit", "dtype", "batch_size", "rows", "gamma", "temperature",
                "seed", "ratio", "verdict", "date", "pair", "inputs"):
    assert field in record
  for side in ("plain", "speculative"):
    assert len(record[side]["times_s"]) == 3
    spread = record[side]["ms_per_token"]
    assert 0 < spread["low"] <= spread["median"] <= spread["high"]
  assert record["identical_outputs"] == 2 and record["rows"] == 2


@pytest.mark.parametrize("plain, speculative, verdict", [
    ((2.0, 2.0, 2.2), (1.0, 1.0, 1.0), "2.00x: faster than plain decoding"),
    ((0.84, 0.8, 0.9), (1.0, 1.0, 1.0), "0.84x: slower than plain decoding"),
    ((1.1, 1.0, 0.8), (1.0, 1.0, 1.0), "1.00x: no clear difference from plain decoding"),
    ((3.0,), (1.0,), "3.00x: faster than plain decoding"),
])
def test_verdict_is_said_in_words(comparison, plain, speculative, verdict):
  changed = dataclasses.replace(
      comparison, plain=dataclasses.replace(comparison.plain, times_s=plain),
      speculative=dataclasses.replace(comparison.speculative, times_s=speculative))
  assert changed.verdict == verdict


def test_differences_name_the_first_token(comparison):
  records = comparison.speculative.result.records
  ids = records[1].output_ids
  changed = [records[0], dataclasses.replace(records[1], output_ids=[*ids[:3], 5, *ids[4:]])]
  result = dataclasses.replace(comparison.speculative.result, records=tuple(changed))
  other = dataclasses.replace(
      comparison, speculative=dataclasses.replace(comparison.speculative, result=result))
  assert other.differences == {1: 3}
  shorter = dataclasses.replace(records[1], output_ids=ids[:4])
  result = dataclasses.replace(result, records=(records[0], shorter))
  other = dataclasses.replace(
      comparison, speculative=dataclasses.replace(comparison.speculative, result=result))
  assert other.differences == {1: 4}


@pytest.mark.parametrize("settings, expected", [
    ({"gamma": 0}, "gamma is 0"), ({"mode": "plain"}, "mode does not go"),
    ({"repeats": 0}, "repeats is 0"), ({"colour": 1}, "unknown setting colour"),
])
def test_bad_comparisons_are_refused(settings, expected):
  with pytest.raises(specdec.SpecdecError, match=expected):
    compare_lib.compare(tiny.pair(), TEXTS, **settings)


def test_nothing_to_compare():
  with pytest.raises(specdec.SpecdecError, match="nothing to compare"):
    compare_lib.compare(tiny.pair(), [])


def test_screen_tells_outputs_counts_times_and_agreement(generate, tmp_path, comparison):
  path = tmp_path / "c.json"
  code, out, err = generate("--compare", "--repeats=2", f"--compare_json={path}", *TEXTS)
  assert code == 0
  result = comparison.speculative.result
  for record in result.records:
    assert f"{record.input} -> {record.output}\n" in out
  for text in ("plain", "speculative", "target calls", "tokens per call", "ms per token",
               "compilation", f"{result.alpha:.3f}", "than plain decoding", "of 2 repeats"):
    assert text in out.replace("difference from", "than"), text
  assert "identical outputs: 2 of 2" in out
  assert all(line == line.rstrip() for line in out.splitlines())
  assert err == f"measurements written to {path}\n"
  assert json.loads(path.read_text())["repeats"] == 2


def test_a_lenient_comparison_says_that_it_is_not_lossless(generate, tmp_path):
  path = tmp_path / "c.json"
  code, out, _ = generate("--compare", "--repeats=1", "--verifier=lenient", "--lenience=0.001",
                          "--drafter=copy", f"--compare_json={path}", *TEXTS)
  assert code == 0
  assert "NOT lossless: lenience 0.001" in out and "with copy, gamma 4, verifier lenient" in out
  assert "identical outputs" in out and "float32 gives" not in out
  record = json.loads(path.read_text())
  assert record["lossless"] is False and record["drafter"] == "copy"
  assert record["verifier"] == "lenient" and record["lenience"] == 0.001


def test_sampled_outputs_are_not_compared(generate):
  code, out, _ = generate("--compare", "--repeats=1", "--temperature=1", *TEXTS)
  assert code == 0
  assert "identical" not in out
