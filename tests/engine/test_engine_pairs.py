"""Pairs with drafters of any kind: loaded, refused, and run."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import specdec
from specdec.core import verify
from specdec.core.state import Method
from specdec.data.vocabulary import Vocabulary
from specdec.drafters.copy import CopyDrafter
from specdec.engine import heads
from specdec.engine import job
from specdec.engine import models
from specdec.engine import ngrams
from specdec.engine import pairs
from specdec.engine.drafter_specs import Known
from specdec.engine.settings import VERIFIERS
from specdec.engine.settings import Settings
from specdec.errors import SpecdecError
from specdec.testing import tiny

TEXTS = ["A small boat.", "The cat sleeps.", "hens", "The bridge cost 25 pounds."]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """A pair's folder with a table of drafters: bigrams, heads, and a T5 of more noise."""
  folder = tiny.save(tmp_path_factory.mktemp("pairs") / "tiny")
  outputs = [tiny.vocabulary().encode(s) for s in tiny.SENTENCES]
  width = tiny.config().vocab_size
  ngrams.save(folder / "bigram", ngrams.count(outputs, 2, width), tiny.vocabulary())
  tiny.save(folder / "more", noise=0.5)
  rng, size = np.random.default_rng(0), tiny.config().emb_dim
  heads.save(folder / "heads", models.load_model(folder / "target"), {
      "kernel": rng.normal(0, 0.1, (2, size, 2 * size)), "bias": np.zeros((2, size))}, "random")
  about = json.loads((folder / "pair.json").read_text())
  (folder / "pair.json").write_text(json.dumps(
      {**about, "drafters": {
          "bigram": "bigram", "noisy": "more/drafter", "heads": "heads"}}))
  return folder


@pytest.fixture(scope="module")
def pair(saved):
  return specdec.load_pair(saved)


def test_a_drafter_is_named_in_many_ways(saved, pair):
  assert pair.drafter.name == "drafter" and pair.drafter.model is not None
  assert pair.name == str(saved)
  for spec, kind, told in (
      ("copy:min_match=0", "CopyDrafter", "copy:min_match=0"),
      ("uniform", "UniformDrafter", "uniform"), ("bigram", "NgramDrafter", "bigram"),
      ("drafter", "TransformerDrafter", "drafter"), ("noisy", "TransformerDrafter", "noisy"),
      ("heads", "HeadsDrafter", "heads"), (saved / "bigram", "NgramDrafter", str(saved / "bigram")),
      ("copy:gamma=3+drafter", "CascadeDrafter", "copy:gamma=3+drafter")):
    other = pair.with_drafter(spec)
    assert type(other.drafter.drafter).__name__ == kind
    assert other.drafter.name == told and other.name == f"{saved} with {spec}"
    assert other.target is pair.target and other.tasks == pair.tasks
  assert pair.with_drafter("copy").with_drafter("uniform").name == f"{saved} with uniform"
  assert pair.with_drafter("copy:min_match=0").drafter.drafter == CopyDrafter(
      pair.target.scorer.vocab_size, min_match=0)


def test_cascades_nest_in_the_order_of_typing(pair):
  whole = pair.with_drafter("copy:gamma=3+noisy:gamma=4+drafter").drafter.drafter
  assert whole.gamma == 4 and whole.scorer == pair.drafter.model.scorer
  assert whole.drafter.gamma == 3 and isinstance(whole.drafter.drafter, CopyDrafter)


def test_a_target_of_your_own_takes_any_drafter(saved):
  loaded = specdec.load_pair(target=saved / "target", drafter="copy")
  assert loaded.name == f"{saved / 'target'} with copy" and loaded.tasks == {}
  assert loaded.drafter.model is None and loaded.weights().drafter == ()
  with pytest.raises(SpecdecError, match="a target needs a drafter"):
    specdec.load_pair(target=saved / "target")
  assert pairs.pair_vocabulary(target=saved / "target", drafter="copy").fingerprint == (
      tiny.vocabulary().fingerprint)


@pytest.fixture
def no_weights(monkeypatch):
  """Fails the test when weights are read."""
  def fail(*args):
    pytest.fail("weights were read before the mistake was noticed")
  monkeypatch.setattr(models.Opened, "load", fail)


def test_mistakes_are_found_before_weights_are_read(saved, no_weights, tmp_path):
  for spec, words in (
      ("bigrm", "did you mean bigram"), ("copy:x=1", "has no option 'x'"),
      ("noisy+noisy", "once more"), (f"noisy+{saved / 'target'}", "is the target once more"),
      ("./nowhere", "there is no folder ./nowhere"), (f"copy+{tmp_path}", "is empty")):
    with pytest.raises(SpecdecError, match=words):
      specdec.load_pair(saved, drafter=spec)
  other = Vocabulary(tiny.train_vocabulary(tiny.SENTENCES, 100))
  (tmp_path / "other.model").write_bytes(other.model)
  with pytest.raises(SpecdecError, match="different vocabularies"):
    with pytest.MonkeyPatch.context() as patch:
      # The drafter's own pieces, another target's.
      patch.setattr(models, "vocabulary_of", lambda found, named, real=models.vocabulary_of: (
          other if "target" in str(found.path) else real(found, named)))
      specdec.load_pair(saved, drafter="copy+noisy")


def test_tables_of_another_vocabulary_are_refused(pair, tmp_path):
  other = Vocabulary(tiny.train_vocabulary(tiny.SENTENCES, 100))
  ngrams.save(tmp_path / "other", ngrams.count([[5, 6, 1]], 2, 100), other)
  with pytest.raises(SpecdecError, match="counted under another vocabulary"):
    pair.with_drafter(tmp_path / "other")


def test_heads_of_another_target_are_refused(saved):
  with pytest.raises(SpecdecError, match="were trained for another target"):
    specdec.load_pair(target=saved / "drafter", drafter=saved / "heads")


@pytest.mark.parametrize("table, words", [
    (3, '"drafters" in'), ({"a": 3}, '"drafters" in'), ({"copy": "x"}, "means something already"),
    ({"a b": "x"}, "could not be typed")])
def test_tables_of_drafters_that_are_wrong(saved, tmp_path, table, words):
  shutil.copytree(saved, tmp_path / "pair")
  path = tmp_path / "pair" / "pair.json"
  path.write_text(json.dumps({**json.loads(path.read_text()), "drafters": table}))
  with pytest.raises(SpecdecError, match=words):
    specdec.load_pair(tmp_path / "pair")


def test_a_drafter_for_another_width_is_refused():
  pair = tiny.pair()
  narrow = dataclasses.replace(pair.drafter, model=None, drafter=CopyDrafter(7))
  with pytest.raises(SpecdecError, match="the drafter tiny/drafter is for 7 logits"):
    dataclasses.replace(pair, drafter=narrow)


def test_methods_and_weights_go_together():
  pair = tiny.pair()
  assert pair.method(0) == Method(pair.target.scorer)
  assert pair.method(3).drafter == pair.method(0, with_drafter=True).drafter == (
      pair.drafter.drafter)
  assert pair.weights().drafter is pair.drafter.params
  assert pair.weights(with_drafter=False).drafter is None
  assert isinstance(pair.method(2, verifier="block").verifier, verify.BlockVerifier)
  # Without drafts they decide nothing, and a program more would be compiled.
  assert pair.method(0, verifier="block") == pair.method(0, verifier="lenient") == pair.method(0)
  assert pair.method(0, verifier="coupled").verifier.coupled
  watched = tiny.pair().with_drafter("copy").method(2, watch=True)
  assert watched.watch and watched.gamma == 2


def test_settings_name_the_verifiers_that_there_are():
  assert VERIFIERS == tuple(verify.VERIFIERS)
  for name, verifier in verify.VERIFIERS.items():
    assert Settings(verifier=name).lossless == verifier.lossless
    assert Settings(verifier=name, mode="plain").lossless


def test_the_text_begins_behind_its_prefix():
  pair = tiny.pair()
  encode = pair.vocabulary.encode
  made = job.from_texts(pair, ["The cat", "", "x" * 200], "translate", {})
  prefix = encode(pair.tasks["translate"])[:-1]
  for encoded in made.encoded:
    assert encoded.ids[:encoded.begin] == prefix[:encoded.begin]
    assert len(prefix) - 1 <= encoded.begin <= len(prefix)
    # What is left is the text, whatever piece the prefix ended in.
    assert encoded.begin < len(encoded.ids)
  assert [e.begin for e in job.from_texts(pair, ["The cat"], "", {}).encoded] == [0]
  assert [e.begin for e in job.from_ids(pair, [[5, 6, 1]], {}).encoded] == [0]
  cut = job.from_texts(pair, ["The cat"], "translate", {"max_source_len": 4}).encoded[0]
  assert cut.begin == 3 and len(cut.ids) == 4
  source = models.make_source([e.ids for e in made.encoded], rows=4,
                              begin=[e.begin for e in made.encoded])
  assert source.begin.tolist() == [e.begin for e in made.encoded] + [0]


def test_a_drafter_bounds_gamma():
  pair = tiny.pair()

  class Heads(CopyDrafter):
    max_gamma = 3

  short = dataclasses.replace(pair, drafter=dataclasses.replace(
      pair.drafter, name="heads", model=None, drafter=Heads(pair.target.scorer.vocab_size)))
  assert (pair.max_gamma, short.max_gamma) == (64, 3)
  assert job.make_settings(short, {}).gamma == 3 and job.make_settings(pair, {}).gamma == 4
  assert job.make_settings(short, {"gamma": "auto"}).paced
  assert job.make_settings(short, {"gamma": 9, "mode": "plain"}).effective_gamma == 0
  with pytest.raises(SpecdecError, match=r"gamma is 4; expected at most 3, which .* drafter heads"):
    job.make_settings(short, {"gamma": 4})


@pytest.fixture(scope="module")
def coupled():
  """What plain decoding says under coupled draws: half of the rows greedy, half sampled."""
  return _run(tiny.pair(), mode="plain")


def _run(pair, **settings):
  settings = {"verifier": "coupled", "gamma": 2, "temperature": [0.0, 1.0, 0.0, 1.0], **settings}
  return specdec.generate(pair, TEXTS, task="translate", seed=3, **settings)


@pytest.mark.parametrize("spec", [
    "copy", "uniform", "bigram", "heads", "drafter", "copy+drafter"])
def test_whatever_drafts_the_ids_are_those_of_plain_decoding(pair, coupled, spec):
  """Coupled draws make that true of sampled rows too; greedy rows need none."""
  found = _run(pair.with_drafter(spec))
  assert found.ids == coupled.ids
  assert found.drafted > 0 and found.lossless
  np.testing.assert_allclose(found.scores, coupled.scores, rtol=1e-4, atol=1e-4)


def test_lenient_outputs_are_marked(pair, coupled):
  found = specdec.generate(pair, TEXTS, task="translate", gamma=2, verifier="lenient",
                           lenience=[1.0, 1e-3, 1e-6, 1e-6])
  assert not found.lossless and not any(r.to_dict()["lossless"] for r in found.records)
  assert "NOT lossless" in str(found) and "lossless" not in str(coupled)
  # With a lenience of 1 a greedy row takes the target's favourites alone.
  assert found.ids[0] == coupled.ids[0] and found.ids[2] != coupled.ids[2]


def test_confidence_shortens_drafts_and_changes_nothing_else(pair, coupled):
  found = _run(pair, confidence=[0.0, 1.0, 1.0, 0.0])
  assert found.ids == coupled.ids
  drafted = [r.drafted for r in found.records]
  assert drafted[0] > 0 and drafted[3] > 0 and drafted[2] == 0


def test_known_names_are_those_that_can_be_typed():
  assert Known("pair", {"bigram": "x"}).names == ["copy", "uniform", "bigram"]
