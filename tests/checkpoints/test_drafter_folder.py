"""The folder of a drafter: round trip, damage, and that nothing in it is ever run."""

import hashlib
import io
import json
import pickle
import zipfile

import numpy as np
import pytest

from specdec.checkpoints import drafter_folder
from specdec.errors import SpecdecError

ARRAYS = {"tokens": np.arange(6, dtype=np.int32).reshape(2, 3),
          "log_probs": np.array([[-0.5, -np.inf]], np.float32), "empty": np.zeros((0, 2), bool)}
ABOUT = {"kind": "ngram", "settings": {"order": 2}, "vocabulary": "ab" * 32,
         "target": None, "source": "three lines"}


@pytest.fixture
def saved(tmp_path):
  path = tmp_path / "drafter"
  drafter_folder.save(path, arrays=ARRAYS, **ABOUT)
  return path


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("target", [None, "cd" * 32])
def test_round_trip_is_exact(tmp_path, compress, target):
  path = tmp_path / "drafter"
  about = {**ABOUT, "target": target}
  drafter_folder.save(path, arrays=ARRAYS, compress=compress, **about)
  back = drafter_folder.load(path)
  assert {name: getattr(back, name) for name in about} == about
  assert back.arrays.keys() == ARRAYS.keys()
  for name, array in ARRAYS.items():
    np.testing.assert_array_equal(back.arrays[name], array)
    assert back.arrays[name].dtype == array.dtype
  assert sorted(p.name for p in path.iterdir()) == ["arrays.npz", "drafter.json"]


def test_the_same_drafter_is_the_same_bytes(saved, tmp_path):
  drafter_folder.save(tmp_path / "again", arrays=ARRAYS, **ABOUT)
  for name in ("arrays.npz", "drafter.json"):
    assert (saved / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_folder_is_known_by_its_index(saved, tmp_path):
  assert drafter_folder.is_drafter_folder(saved)
  assert not drafter_folder.is_drafter_folder(tmp_path)
  assert not drafter_folder.is_drafter_folder(tmp_path / "nothing")


def test_an_existing_folder_is_not_written_over(saved):
  with pytest.raises(SpecdecError, match="exists; give a new folder"):
    drafter_folder.save(saved, arrays=ARRAYS, **ABOUT)


def test_a_save_that_fails_leaves_nothing(tmp_path, monkeypatch):
  def fail(*_, **__):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(drafter_folder.np, "savez", fail)
  with pytest.raises(SpecdecError, match="No space left"):
    drafter_folder.save(tmp_path / "drafter", arrays=ARRAYS, **ABOUT)
  assert list(tmp_path.iterdir()) == []


def test_what_would_need_a_pickle_is_not_written(tmp_path):
  with pytest.raises(ValueError, match="plain numbers"):
    drafter_folder.save(tmp_path / "x", arrays={"a": np.array([{}], object)}, **ABOUT)
  with pytest.raises(ValueError, match="kind is"):
    drafter_folder.save(tmp_path / "x", arrays=ARRAYS, **{**ABOUT, "kind": "oracle"})
  assert list(tmp_path.iterdir()) == []


class Bomb:
  """What a pickle may hold: a call that loading would make."""

  def __reduce__(self):
    return (pytest.fail, ("a pickle was run",))


def edit(**changes):
  def apply(path):
    about = json.loads((path / "drafter.json").read_text())
    (path / "drafter.json").write_text(json.dumps({**about, **changes}))
  return apply


def drop(name):
  def apply(path):
    about = json.loads((path / "drafter.json").read_text())
    del about[name]
    (path / "drafter.json").write_text(json.dumps(about))
  return apply


def content(make):
  """Replaces the arrays by other bytes, which the index vouches for."""
  def apply(path):
    data = make()
    (path / "arrays.npz").write_bytes(data)
    edit(files={"arrays.npz": len(data)},
         sha256={"arrays.npz": hashlib.sha256(data).hexdigest()})(path)
  return apply


def npz(**arrays):
  file = io.BytesIO()
  np.savez(file, **arrays)
  return file.getvalue()


def zipped(name, data):
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w") as z:
    z.writestr(name, data)
  return file.getvalue()


def bare():
  file = io.BytesIO()
  np.save(file, ARRAYS["tokens"])
  return file.getvalue()


def huge():
  header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000000,), }"
  header = header.ljust(117) + b"\n"
  return zipped("tokens.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def flip(path):
  data = bytearray((path / "arrays.npz").read_bytes())
  data[len(data) // 3] ^= 1
  (path / "arrays.npz").write_bytes(data)


def cut(path):
  file = path / "arrays.npz"
  file.write_bytes(file.read_bytes()[:-7])


DAMAGE = {
    "no index": (lambda p: (p / "drafter.json").unlink(), "is not a drafter's folder"),
    "no folder": (lambda p: p.rename(p.with_name("gone")), "is not a drafter's folder"),
    "no arrays": (lambda p: (p / "arrays.npz").unlink(), "is missing; the folder is incomplete"),
    "cut short": (cut, "bytes; expected .* damaged"),
    "a bit flipped": (flip, "SHA-256 .* damaged"),
    "not JSON": (lambda p: (p / "drafter.json").write_text("{"), "is not JSON"),
    "not UTF-8": (lambda p: (p / "drafter.json").write_bytes(b"\xff\xfe{"), "is not JSON"),
    "a list": (lambda p: (p / "drafter.json").write_text("[]"), "is not of format"),
    "another format": (edit(format="specdec-bundle"), "is not of format"),
    "a later version": (edit(version=99), "install a newer one"),
    "a version that is no number": (edit(version=True), "install a newer one"),
    "an unknown kind": (edit(kind="oracle"), "kind 'oracle'.* install a newer one"),
    "settings that are none": (edit(settings=3), '"settings" .* expected a table'),
    "a vocabulary that is none": (edit(vocabulary=None), '"vocabulary" .* expected text'),
    "a target that is none": (edit(target=3), '"target" .* expected text or null'),
    "no checksums": (drop("sha256"), '"sha256" .* is missing'),
    "a file unnoted": (edit(files={}), "expected None"),
    "a checksum unnoted": (edit(sha256={}), "SHA-256"),
    "not a zip": (content(lambda: b"PK and so on"), "is not a zip file"),
    "a single array": (content(bare), "is not a zip file"),
    "a pickle": (content(lambda: pickle.dumps(Bomb())), "is not a zip file"),
    "a pickle inside": (content(lambda: zipped("tokens.npy", pickle.dumps(Bomb()))),
                        "something else than plain arrays|expected an array"),
    "an object array": (content(lambda: npz(tokens=np.array([Bomb()], object))),
                        "something else than plain arrays"),
    "text": (content(lambda: npz(tokens=np.array(["a"]))), "expected an array of plain numbers"),
    "another file inside": (content(lambda: zipped("readme.txt", b"hello")),
                            "expected an array of plain numbers"),
    "a size beyond all memory": (content(huge), "something else than plain arrays"),
    "an array missing": (content(lambda: npz(tokens=ARRAYS["tokens"])),
                         "'empty' .* is missing; expected bool"),
    "an array of another shape": (content(lambda: npz(**{**ARRAYS, "tokens": np.zeros(3)})),
                                  r"'tokens' .* float64\[3\]; expected int32\[2,3\]"),
    "an array too many": (content(lambda: npz(**ARRAYS, more=np.zeros(3))), "'more' .* none"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_told_in_one_line(saved, damage):
  harm, words = DAMAGE[damage]
  harm(saved)
  with pytest.raises(SpecdecError, match=words) as caught:
    drafter_folder.load(saved)
  assert "\n" not in str(caught.value)
  assert str(saved) in str(caught.value)


def test_without_the_checksum_a_zip_still_notices(saved):
  data = (saved / "arrays.npz").read_bytes()
  tokens = ARRAYS["tokens"].tobytes()
  assert tokens in data
  (saved / "arrays.npz").write_bytes(data.replace(tokens, tokens[::-1]))
  with pytest.raises(SpecdecError, match=r"CRC.* damaged"):
    drafter_folder.load(saved, verify=False)


def test_what_a_drafter_needs_is_asked_for_by_name(saved):
  found = drafter_folder.load(saved)
  np.testing.assert_array_equal(found.array("tokens", "i", (None, 3)), ARRAYS["tokens"])
  assert found.whole("order", 1, 3) == 2
  for ask, words in ((lambda: found.array("rows", "i", (2,)), "has no array 'rows'"),
                     (lambda: found.array("tokens", "i", (2, 4)), r"expected \(2, 4\)"),
                     (lambda: found.array("tokens", "i", (None,)), r"expected \(any\)"),
                     (lambda: found.array("tokens", "f", (2, 3)), "is int32"),
                     (lambda: found.whole("order", 3, 4), "from 3 to 4"),
                     (lambda: found.whole("depth"), 'setting "depth" .* is None')):
    with pytest.raises(SpecdecError, match=words) as caught:
      ask()
    assert str(saved) in str(caught.value)
