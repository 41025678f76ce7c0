"""What a user types for a drafter, and each way to get it wrong."""

import os

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from specdec.checkpoints import drafter_folder
from specdec.drafters import copy
from specdec.engine import drafter_specs
from specdec.engine.drafter_specs import Known
from specdec.engine.drafter_specs import Part
from specdec.errors import SpecdecError

_NAMES = st.one_of(
    st.sampled_from(["copy", "uniform", "t5-small", "google/t5-small", "gs://bucket/model", "./a"]),
    st.text("ab_./-é ", min_size=1).map(str.strip).filter(bool))
_PARTS = st.builds(Part, _NAMES, st.dictionaries(
    st.text("abc_", min_size=1), st.integers(-99, 99), max_size=3).map(
        lambda options: tuple(options.items())))


@given(st.lists(_PARTS, min_size=1, max_size=4))
def test_what_is_written_is_read(parts):
  assert drafter_specs.parse("+".join(map(str, parts))) == tuple(parts)


def test_spaces_around_a_plus_are_of_no_account():
  assert drafter_specs.parse(" copy + drafter ") == drafter_specs.parse("copy+drafter")


@given(st.text("ab+:,=/0-9 \0\n", max_size=12))
def test_whatever_is_typed_is_read_or_refused_in_one_line(text):
  for read in (drafter_specs.parse, lambda text: drafter_specs.plan(text, Known())):
    try:
      read(text)
    except SpecdecError as error:
      assert "expected" in str(error) or "drop" in str(error)
      assert str(error).isprintable()


@pytest.fixture(scope="module")
def known(tmp_path_factory):
  """A pair with drafters of every kind; only what is looked at before loading is there."""
  root = tmp_path_factory.mktemp("pair")
  for kind in drafter_folder.KINDS:
    drafter_folder.save(root / kind, kind=kind, arrays={"a": np.zeros(1)}, settings={},
                        vocabulary="")
  for name in ("target", "small", "tiny"):
    (root / name).mkdir()
  os.symlink(root / "small", root / "again")
  folders = {"bigram": root / "ngram", "heads": root / "heads", "drafter": root / "small",
             "smaller": root / "tiny", "again": root / "again"}
  return Known("pair", folders, root / "target")


def kinds(text, known):
  return [(planned.kind, dict(planned.options)) for planned in drafter_specs.plan(text, known)]


def test_names_are_looked_up(known, tmp_path, monkeypatch):
  assert kinds("copy", known) == [("copy", {})]
  assert kinds("copy:min_match=0,max_match=4", known) == [
      ("copy", {"min_match": 0, "max_match": 4})]
  assert kinds("uniform", known) == [("uniform", {})]
  assert kinds("bigram", known) == [("ngram", {})]
  assert kinds("heads", known) == [("heads", {})]
  assert kinds("drafter", known) == [("t5", {})]
  assert kinds(str(known.folders["bigram"]), Known()) == [("ngram", {})]
  assert kinds("google/t5-efficient-tiny", Known()) == [("t5", {})]
  # A folder that lies there is one without a slash too, but names of the pair go first.
  monkeypatch.chdir(tmp_path)
  for name in ("mine", "bigram"):
    (tmp_path / name).mkdir()
  assert kinds("mine", known) == [("t5", {})]
  assert kinds("bigram", known) == [("ngram", {})]
  assert kinds("./bigram", known) == [("t5", {})]


def test_a_folder_with_a_plus_or_a_colon_in_its_name_is_one_drafter(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for name in ("a+b", "a:gamma=2"):
    (tmp_path / name).mkdir()
    (planned,) = drafter_specs.plan(name, Known())
    assert (planned.kind, planned.path) == ("t5", name)


def test_cascades_have_a_gamma_for_every_part_but_the_last(known):
  assert kinds("copy+drafter", known) == [("copy", {"gamma": 2}), ("t5", {})]
  assert kinds("bigram:gamma=3+drafter", known) == [("ngram", {"gamma": 3}), ("t5", {})]
  assert kinds("copy:max_match=2,gamma=5+smaller:gamma=4+drafter", known) == [
      ("copy", {"gamma": 5, "max_match": 2}), ("t5", {"gamma": 4}), ("t5", {})]


def test_limits_are_those_of_the_drafters():
  assert drafter_specs.MAX_MATCH == copy.MAX_MATCH


@pytest.mark.parametrize("text, words", [
    ("", "the drafter '' is empty; expected a name such as copy"),
    (" ", "is empty"), ("copy++drafter", "has an empty part"), ("+drafter", "an empty part"),
    ("drafter+", "an empty part"),
    ("bigrm", "there is no drafter 'bigrm'; did you mean bigram? (expected one of copy, uniform, "
     "bigram, heads, drafter, smaller, again, or a folder"),
    ("zzz", "there is no drafter 'zzz' (expected one of"),
    ("x\0y", "there is no drafter"), ("x" * 300, "there is no drafter"),
    ("copy:", "option '' of the drafter 'copy:' is not understood; expected OPTION=N"),
    ("copy:max_match", "is not understood"), ("copy:max_match=", "is not understood"),
    ("copy:max_match=1_0", "is not understood"), ("copy:max_match=\u0663", "is not understood"),
    ("copy:max_match=x", "option 'max_match=x'"), ("copy:max_match=1.5", "with an integer N"),
    ("copy:=3", "is not understood"), (":gamma=3", "no name before the colon"),
    ("copy:max_match=3,max_match=3", "option max_match is given twice"),
    ("copy:max_mach=3", "copy has no option 'max_mach'; did you mean max_match? (it takes "
     "max_match, min_match)"),
    ("uniform:size=3", "uniform has no option 'size' (it takes none)"),
    ("drafter:min_match=1", "drafter has no option 'min_match' (it takes none)"),
    ("copy:max_match=0", "option max_match of copy is 0; expected an integer from 1 to 63"),
    ("copy:max_match=64", "from 1 to 63"), ("copy:min_match=-1", "from 0 to 63"),
    ("copy:min_match=4", "copy has min_match 4 and max_match 3; expected min_match to be at most"),
    ("copy:min_match=2,max_match=1", "min_match 2 and max_match 1"),
    ("drafter:gamma=3", "option gamma of drafter:gamma=3 is for a part that drafts for another "
     "one; what is drafted for the target is the setting gamma: --gamma=3"),
    ("copy+drafter:gamma=3", "--gamma=3"),
    ("copy:gamma=0+drafter", "option gamma of copy is 0; expected an integer from 1 to 64"),
    ("copy:gamma=65+drafter", "from 1 to 64"),
    ("drafter+copy", "copy is the copy drafter and cannot be drafted for, which only a T5 can: "
     "expected a T5 behind the + after drafter"),
    ("copy+bigram", "bigram is a folder of n-gram tables and cannot be drafted for"),
    ("drafter+uniform+smaller", "uniform is the uniform drafter"),
    ("heads+drafter", "heads holds heads, which see the target's own states"),
    ("copy+heads", "heads is a folder of heads and cannot be drafted for"),
    ("drafter+drafter", "drafter is drafter once more"),
    ("drafter+again", "again is drafter once more"),
    ("drafter+smaller+drafter", "drafter is drafter once more"),
    ("copy+{target}", "is the target once more"),
    ("{target}+drafter", "is the target once more"),
])
def test_mistakes(known, text, words):
  with pytest.raises(SpecdecError) as info:
    drafter_specs.plan(text.format(target=known.target), known)
  assert words in str(info.value) and "\n" not in str(info.value)


def test_a_folder_that_says_it_is_a_drafter_must_be_one(tmp_path):
  (tmp_path / "drafter.json").write_text("{")
  with pytest.raises(SpecdecError, match="is not JSON"):
    drafter_specs.plan(str(tmp_path), Known())


@pytest.mark.parametrize("name, words", [
    ("copy", "means something already"), ("a+b", "could not be typed"), ("", "could not be typed"),
    ("a:b", "could not be typed"), ("a/b", "could not be typed")])
def test_names_that_a_pair_may_not_give(name, words):
  with pytest.raises(SpecdecError, match=words):
    drafter_specs.check_names({name: "folder"}, "pair.json")
