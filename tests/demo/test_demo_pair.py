"""The pair that ships with the package, on real sentences."""

import gzip
import json
import pathlib
import random

import numpy as np
import pytest
import sacrebleu

import specdec
from specdec.engine import pairs
from specdec.training import corrupt

DATA = pathlib.Path(__file__).parents[3] / "shared" / "data" / "multi30k"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="multi30k (public repository multi30k/dataset) is not at "
    f"{DATA}; only sentences of our own are tested")

OWN = [
    "A small brown dog is running along the beach.",
    "Two children are building a tower out of wooden blocks.",
    "An old man with a grey beard reads a newspaper on a bench.",
    "A woman in a blue jacket is riding her bicycle through the snow.",
    "The band plays on a stage while a crowd in raincoats is watching.",
    "Three cooks in white hats are standing behind a counter full of bread.",
    "A boy jumps into a swimming pool.",
    "Nobody is sitting at the table next to the window.",
]


def read(name: str) -> list[str]:
  with gzip.open(DATA / f"{name}.gz", "rt", encoding="utf-8") as f:
    return [line.strip() for line in f]


@pytest.fixture(scope="module")
def pair():
  return specdec.load_pair("demo", "float32")


def unexcused(pair, texts, plain, other) -> list[str]:
  """Differences of greedy ids that no near tie excuses.

  Two kernels may order two logits differently only when they are closer than
  1e-5; the margin of the target at the first difference tells.
  """
  found = []
  prefix = next(iter(pair.tasks.values()))
  for text, a, b in zip(texts, plain.ids, other.ids, strict=True):
    if a == b:
      continue
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    logits = pair.target.logits([pair.vocabulary.encode(prefix + text)], [[0, *a[:at]]])
    best, second = np.sort(logits[0, -1])[[-1, -2]]
    print(f"difference at token {at} with margin {best - second:.2e}: {text}")
    if best - second >= 1e-5:
      found.append(text)
  return found


def check_greedy(pair, texts, batch_size, gammas):
  settings = {"temperature": 0.0, "batch_size": batch_size}
  plain = specdec.generate(pair, texts, mode="plain", **settings)
  for gamma in gammas:
    result = specdec.generate(pair, texts, gamma=gamma, **settings)
    assert unexcused(pair, texts, plain, result) == []
    assert result.accepted <= result.tested <= result.drafted
    assert result.target_calls < plain.target_calls
    np.testing.assert_allclose(result.scores, plain.scores, atol=1e-2)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_greedy_speculative_is_greedy_plain(pair, batch_size):
  """On 500 sentences of the test set where it is at hand, and on our own anywhere."""
  texts = OWN + (read("test_2016_flickr.en")[:500] if DATA.is_dir() else [])
  check_greedy(pair, texts, batch_size, [1, 3, 7])


@needs_data
def test_translation_quality_and_acceptance(pair):
  result = specdec.generate(pair, read("test_2016_flickr.en"), gamma=4, batch_size=8)
  bleu = sacrebleu.corpus_bleu(result.texts, [read("test_2016_flickr.de")]).score
  assert bleu >= 34
  assert result.alpha >= 0.75


@needs_data
def test_corrections(pair):
  clean = read("test_2016_flickr.en")[:200]
  rng = random.Random(2016)
  faulty = [corrupt.corrupt(text, rng) for text in clean]
  result = specdec.generate(pair, faulty, task="correct", gamma=4)
  score = lambda texts: sacrebleu.corpus_bleu(texts, [clean]).score
  assert score(result.texts) > score(faulty) + 5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("gamma", [3, 7])
def test_a_drafter_that_is_the_target_is_always_accepted(pair, gamma, temperature):
  perfect = pairs.Pair("perfect", pair.target, pair.target, pair.tasks)
  result = specdec.generate(perfect, OWN[:2], gamma=gamma, temperature=temperature,
                            max_decode_len=256, eos_ids=())
  assert result.tested == result.accepted
  for record in result.records:
    assert len(record.output_ids) == 256
    assert record.target_calls == 256 // (gamma + 1)


def test_the_model_card_states_what_was_measured(pair):
  folder = pairs.ASSETS / "demo"
  card = (folder / "README.md").read_text(encoding="utf-8")
  measured = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
  for row in measured["results"]:
    assert f"{row['alpha']:.3f}" in card
    for name, value in row.items():
      if name.endswith("bleu"):
        assert f"{value:.2f}" in card
      if name.endswith("exact_match"):
        assert f"{value:.3f}" in card
  size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
  assert size <= 30e6
