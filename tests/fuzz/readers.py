"""Every reader of what comes from outside, with valid files of its kind and ways to damage them.

Whatever is read, the outcome is a result, or a `SpecdecError` of one line. Nothing else is
raised, nothing hangs, and no file makes a process ask for memory because a number in it says so.

Long because it is a table: a reader that is left out shows where all of them stand together.
"""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import dataclasses
import faulthandler
import functools
import gzip
import hashlib
import io
import json
import pathlib
import resource
import shutil
import struct
import time
from typing import Any
import zipfile

from hypothesis import strategies as st
import numpy as np

from specdec.checkpoints import bundle
from specdec.checkpoints import drafter_folder
from specdec.checkpoints import hf
from specdec.checkpoints import t5x
from specdec.checkpoints.checkpoint import Checkpoint
from specdec.cli import gin_bindings
from specdec.cli import inputs
from specdec.data import lines
from specdec.data.tasks.local import LocalTask
from specdec.data.tokenizer_json import TokenizerVocabulary
from specdec.data.vocabulary import Vocabulary
from specdec.drafters.ngram import Tables
from specdec.engine import drafter_specs
from specdec.engine import models
from specdec.engine import ngrams
from specdec.engine import pairs
from specdec.errors import SpecdecError
from specdec.testing import tiny
from tests.checkpoints import small
from tests.fuzz.mutations import as_json
from tests.fuzz.mutations import damaged
from tests.fuzz.mutations import damaged_json
from tests.fuzz.mutations import damaged_tree

# Seconds of CPU that no small file takes to read, and bytes that none needs.
SECONDS = 10.0
ROOM_BYTES = 2 * 2**30

Files = dict[str, bytes]


@dataclasses.dataclass(frozen=True)
class Reader:
  """A reader under test.

  Attributes:
    make: writes a valid folder, once.
    damages: out of that folder's files, a strategy of those to replace; None removes one.
    read: reads the folder.
  """

  make: Callable[[pathlib.Path], Any]
  damages: Callable[[pathlib.Path], st.SearchStrategy[dict[str, bytes | None]]]
  read: Callable[[pathlib.Path], Any]


class Bench:
  """A folder in which a reader reads one example after the other."""

  def __init__(self, reader: Reader, folder: pathlib.Path):
    self._reader, self.folder = reader, folder / "x"
    reader.make(self.folder)
    self.damages = reader.damages(self.folder)

  def check(self, files: dict[str, bytes | None]) -> str:
    """What became of an example: "read" or "refused".

    Raises:
      AssertionError: it took too long, or the message is more than a line.
      Exception: whatever was raised that should not have been.
    """
    kept = {name: self._content(name) for name in files}
    for name, content in files.items():
      self._write(name, content)
    begin = time.process_time()
    try:
      self._reader.read(self.folder)
      found = "read"
    except SpecdecError as error:
      message = str(error)
      assert message and len(message.splitlines()) == 1 and message.isprintable(), repr(message)
      found = "refused"
    finally:
      for name, content in kept.items():
        self._write(name, content)
    assert time.process_time() - begin < SECONDS
    return found

  def _content(self, name: str) -> bytes | None:
    path = self.folder / name
    return path.read_bytes() if path.exists() else None

  def _write(self, name: str, content: bytes | None) -> None:
    if content is None:
      (self.folder / name).unlink(missing_ok=True)
    else:
      (self.folder / name).write_bytes(content)


@contextlib.contextmanager
def limits(hang_s: int = 300) -> Iterator[None]:
  """Little room for memory, and an end to what hangs."""
  soft, hard = resource.getrlimit(resource.RLIMIT_AS)
  pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
  resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM_BYTES, hard))
  faulthandler.dump_traceback_later(hang_s, exit=True)
  try:
    yield
  finally:
    faulthandler.cancel_dump_traceback_later()
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _one_of_files(*names: str, json_too: bool = True) -> Callable:
  """Damages one of some files."""
  def damages(folder: pathlib.Path) -> st.SearchStrategy[dict[str, bytes | None]]:
    found = []
    for name in names:
      content = (folder / name).read_bytes()
      way = damaged_json(content) if json_too and name.endswith(
          (".json", "_METADATA", ".zarray")) else damaged(content)
      found.append(way.map(lambda data, name=name: {name: data}))
    return st.one_of(*found)
  return damages


def _read_all(found: Checkpoint, arrays: int = 1000) -> None:
  """Reads what a checkpoint has, as loading does; of its arrays so many."""
  models.config_of(found)
  models.vocabulary_of(found)
  for array in list(models.finite(found).arrays.values())[:arrays]:
    np.asarray(array)


# Checkpoints of Hugging Face.


def _safetensors(folder: pathlib.Path) -> st.SearchStrategy[dict[str, bytes | None]]:
  content = (folder / "model.safetensors").read_bytes()
  size, = struct.unpack("<Q", content[:8])
  header, data = json.loads(content[8:8 + size]), content[8 + size:]

  def packed(tree: Any, declared: int | None = None) -> dict[str, bytes | None]:
    text = as_json(tree)
    return {"model.safetensors": struct.pack("<Q", declared if declared is not None
                                             else len(text)) + text + data}

  return st.one_of(
      damaged_tree(header).map(packed), damaged_tree(header).map(packed),
      st.integers(0, 2**64 - 1).map(lambda n: packed(header, n)),
      damaged(content).map(lambda d: {"model.safetensors": d}))


def _save_torch(path: pathlib.Path) -> None:
  import torch

  small.save_hf(path)
  arrays = hf._open_safetensors(path / "model.safetensors")
  torch.save({k: torch.from_numpy(np.array(v)) for k, v in arrays.items()},
             path / "pytorch_model.bin")
  (path / "model.safetensors").unlink()


# Checkpoints of T5X, and bundles.


def _save_t5x(path: pathlib.Path) -> None:
  small.save_t5x(path)


def _msgpack(folder: pathlib.Path) -> st.SearchStrategy[dict[str, bytes | None]]:
  import msgpack

  name = "checkpoint_0/checkpoint"
  content = (folder / name).read_bytes()
  tree = msgpack.unpackb(content, strict_map_key=False, raw=False)

  def packed(changed: Any) -> bytes:
    try:
      return msgpack.packb(changed, unicode_errors="surrogatepass")
    except (OverflowError, ValueError):
      return b"\xc1"  # A number that msgpack has no room for; that byte stands for nothing.

  return st.one_of(damaged_tree(tree).map(packed), damaged(content)).map(lambda d: {name: d})


_ARRAY = "checkpoint_0/target.decoder.logits_dense.kernel"


def _save_bundle(path: pathlib.Path) -> None:
  bundle.save(path, bundle.Bundle(tiny.config().to_dict(), tiny.params(tiny.config()),
                                  tiny.vocabulary().model, tiny.vocabulary().fingerprint))


def _bundle(folder: pathlib.Path) -> st.SearchStrategy[dict[str, bytes | None]]:
  about = json.loads((folder / "model.json").read_text())
  plain = {k: v for k, v in about.items() if k not in ("files", "sha256")}
  # Without its checksums, as version 1 had none, what lies below is looked at.
  vocabulary = damaged((folder / "vocab.model").read_bytes())
  return st.one_of(
      damaged_json(about).map(lambda d: {"model.json": d}),
      damaged_json(plain).map(lambda d: {"model.json": d}),
      vocabulary.map(lambda d: {"model.json": as_json(plain), "vocab.model": d}))


# Drafters.


def _tables() -> Tables:
  return ngrams.count([[5, 6, 7, 1], [5, 6, 8, 1], [6, 7, 5, 1]], 3, 40)


def _save_tables(path: pathlib.Path) -> None:
  ngrams.save(path, _tables(), tiny.vocabulary())


def _with_arrays(about: dict[str, Any], content: bytes) -> dict[str, bytes | None]:
  """The folder's two files, in agreement about sizes and checksums."""
  about = {**about, "files": {"arrays.npz": len(content)},
           "sha256": {"arrays.npz": hashlib.sha256(content).hexdigest()}}
  return {"drafter.json": as_json(about), "arrays.npz": content}


def _drafter_folder(folder: pathlib.Path) -> st.SearchStrategy[dict[str, bytes | None]]:
  about = json.loads((folder / "drafter.json").read_text())
  content = (folder / "arrays.npz").read_bytes()

  def member(ops_on: bytes, name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
      for entry in old.namelist():
        new.writestr(entry, ops_on if entry == name else old.read(entry))
    return out.getvalue()

  with zipfile.ZipFile(io.BytesIO(content)) as old:
    members = {name: old.read(name) for name in old.namelist()}
  inside = st.sampled_from(sorted(members)).flatmap(
      lambda name: damaged(members[name]).map(
          lambda data: _with_arrays(about, member(data, name))))
  return st.one_of(damaged_json(about).map(lambda d: {"drafter.json": d}),
                   damaged(content).map(lambda d: {"arrays.npz": d}),
                   damaged(content).map(lambda d: _with_arrays(about, d)), inside)


def _ngram_tables(folder: pathlib.Path) -> st.SearchStrategy[dict[str, bytes | None]]:
  """Sound files with unsound tables in them."""
  about = json.loads((folder / "drafter.json").read_text())
  with np.load(folder / "arrays.npz") as found:
    arrays = {name: found[name] for name in found.files}
  names = sorted(arrays)

  def changed(which: int, kind: int, at: int, value: float, order: Any) -> dict[str, bytes | None]:
    new = dict(arrays)
    name = names[which % len(names)]
    array = new[name].copy()
    if kind == 0 and array.size:
      with np.errstate(all="ignore"):
        array.reshape(-1)[at % array.size] = (
            value if array.dtype.kind == "f" else np.int64(np.clip(np.nan_to_num(value), -2**31,
                                                                   2**31 - 1)))
    elif kind == 1:
      array = array[:at % (len(array) + 1)]
    elif kind == 2:
      array = array.astype(("f2", "i8", "?", "u1", "f8")[at % 5])
    elif kind == 3:
      array = array.reshape((-1, 1))
    elif kind == 4:
      array = array[::-1]
    elif kind == 5:
      array = np.zeros((0,) * (at % 3), array.dtype)
    new[name] = array
    if kind == 6:
      del new[name]
    out = io.BytesIO()
    np.savez(out, **new)
    outline = {n: f"{a.dtype.name}[{','.join(map(str, a.shape))}]" for n, a in new.items()}
    settings = about["settings"] if order is None else {**about["settings"], **order}
    return _with_arrays({**about, "arrays": outline, "settings": settings}, out.getvalue())

  settings = st.one_of(st.none(), st.fixed_dictionaries({}, optional={
      "order": st.integers(-1, 5), "width": st.sampled_from([0, 1, 2, 2**31, 2**40, -1, None]),
      "pieces": st.sampled_from(["", None, 3])}))
  return st.builds(changed, st.integers(0, 9), st.integers(0, 7), st.integers(0, 99),
                   st.floats(), settings)


# Text files.

_GIN = b"""# A job of ours.
import math
include 'decode/greedy.gin'
GAMMA = 4
Settings.gamma = %GAMMA
Settings.temperature = [0.5, 1.0]
Settings.forbidden_ids = (3, (4, 0, 2))
Settings.verifier = 'token'
load_pair.pair = 'demo'
load_pair.target = None
Costs.iteration = (1.0, 1.2)
Costs.alpha = 0.7
Costs.sizes = (0, 1)
generate.input_file = \\
    'in.txt'
"""
_TEXT = "A boat.\r\n\nZwei Kinder\tbauen.\n\u00e9\u2028x\n".encode()
_TSV = b"id\ttext\n1\tone\n2\ttwo words\n\n3\t\n"
_JSONL = (b'{"input": "one", "inputs": "a", "targets": ["x", "y"]}\n{"input": "two"}\n'
          b'{"input": 3, "inputs": null}\n[1]\n')


def _write(files: Files) -> Callable[[pathlib.Path], None]:
  def make(folder: pathlib.Path) -> None:
    folder.mkdir()
    for name, content in files.items():
      (folder / name).write_bytes(content)
  return make


def _read_gin(folder: pathlib.Path) -> None:
  from specdec.engine.settings import Settings

  bound = gin_bindings.read([str(folder / "x.gin")], [])
  given = {k: v for k, v in bound.settings.items() if not hasattr(v, "name")}
  Settings(**given)


def _gin(folder: pathlib.Path) -> st.SearchStrategy[dict[str, bytes | None]]:
  lines_of = _GIN.split(b"\n")
  line = st.sampled_from(lines_of).flatmap(damaged)
  return st.one_of(damaged(_GIN), st.lists(line, min_size=1, max_size=3).map(b"\n".join)).map(
      lambda d: {"x.gin": d})


def _read_lines(folder: pathlib.Path) -> None:
  problem: SpecdecError | None = None
  for name, field in (("x.txt", None), ("x.tsv", None), ("x.tsv", "text"), ("x.jsonl", None),
                      ("x.jsonl", "inputs")):
    try:
      found = lines.LineFile(folder / name, field=field)
      for line in found.read(0, found.count):
        assert line.error is None or len(line.error.splitlines()) <= 1, line.error
    except SpecdecError as error:
      problem = error
  for call in (lambda: inputs.read_lines("--input_file", str(folder / "x.txt")),
               lambda: LocalTask(data_file=str(folder / "x.tsv")).read("test"),
               lambda: LocalTask(data_file=str(folder / "x.jsonl")).read("test"),
               lambda: LocalTask(data_file=str(folder / "x.jsonl.gz"),
                                 targets_field="targets.0").read("test")):
    try:
      call()
    except SpecdecError as error:
      problem = error
  if problem:
    raise problem


def _spec_texts(folder: pathlib.Path) -> st.SearchStrategy[dict[str, bytes | None]]:
  words = st.sampled_from(["copy", "uniform", "bigram", "drafter", "+", ":", ",", "=", "max_match",
                           "min_match", "gamma", "1", "64", "-3", "9" * 5000, "/", "gs://", "..",
                           "./x", "\0", "\n", "\u0663", " ", "a" * 300, "\ud800"])
  joined = st.lists(words, max_size=9).map("".join)
  valid = "copy:max_match=2,gamma=3+drafter"
  return st.one_of(joined, st.text(max_size=20), damaged(valid.encode()).map(
      lambda d: d.decode("utf-8", "surrogateescape")[:5000])).map(
          lambda text: {"spec": text.encode("utf-8", "surrogatepass")})


def _read_spec(folder: pathlib.Path) -> None:
  text = (folder / "spec").read_bytes().decode("utf-8", "surrogatepass")
  if text.startswith("gs:") or "+gs:" in text:
    return  # Would be looked for.
  known = drafter_specs.Known("p", {"drafter": folder, "bigram": folder / "b"}, folder / "t")
  drafter_specs.plan(text, known)


# Vocabularies.


def _read_sentencepiece(folder: pathlib.Path) -> None:
  _use(Vocabulary((folder / "x.model").read_bytes(), 3))


def _use(vocabulary: Any) -> None:
  ids = vocabulary.encode("The caf\u00e9 <extra_id_0> opens.\u2028")
  vocabulary.decode(ids)
  vocabulary.pieces([*range(min(len(vocabulary), 300)), len(vocabulary) + 3])
  assert isinstance(vocabulary.fingerprint, str)


@functools.cache
def _tokenizer() -> bytes:
  import tokenizers
  from tokenizers import models as tokenizer_models

  pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -10.0), ("\u2581The", -2.0), ("\u2581", -3.0),
            ("a", -3.5), ("caf", -4.0), ("\u00e9", -4.5)]
  tokenizer = tokenizers.Tokenizer(tokenizer_models.Unigram(pieces, 2, False))
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
  tokenizer.decoder = tokenizers.decoders.Metaspace()
  tokenizer.add_special_tokens(["<pad>", "</s>", "<extra_id_0>"])
  return tokenizer.to_str().encode()


READERS: dict[str, Reader] = {
    "safetensors": Reader(small.save_hf, _safetensors,
                          lambda f: _read_all(hf.open_checkpoint(f))),
    "hf_config": Reader(small.save_hf, _one_of_files("config.json"),
                        lambda f: _read_all(hf.open_checkpoint(f))),
    "hf_index": Reader(functools.partial(small.save_hf, shards=2),
                       _one_of_files("model.safetensors.index.json"),
                       lambda f: _read_all(hf.open_checkpoint(f))),
    "torch_bin": Reader(_save_torch, _one_of_files("pytorch_model.bin"),
                        # Every read loads the whole file.
                        lambda f: _read_all(hf.open_checkpoint(f), 3)),
    "t5x_index": Reader(_save_t5x, _msgpack, lambda f: _read_all(t5x.open_checkpoint(f))),
    "t5x_config": Reader(_save_t5x, _one_of_files("config.json"),
                         lambda f: _read_all(t5x.open_checkpoint(f))),
    "zarr": Reader(_save_t5x, _one_of_files(f"{_ARRAY}/.zarray", f"{_ARRAY}/0.0"),
                   lambda f: _read_all(t5x.open_checkpoint(f))),
    "orbax": Reader(_save_bundle, _one_of_files("params/_METADATA"),
                    lambda f: _read_all(t5x.open_checkpoint(f / "params"))),
    "bundle": Reader(_save_bundle, _bundle, lambda f: _read_all(bundle.open_checkpoint(f))),
    "drafter_folder": Reader(_save_tables, _drafter_folder, lambda f: (
        drafter_folder.is_drafter_folder(f), ngrams.tables_of(drafter_folder.load(f)))),
    "ngram_tables": Reader(_save_tables, _ngram_tables, lambda f: ngrams.tables_of(
        drafter_folder.load(f))),
    "pair_json": Reader(
        _write({"pair.json": as_json({
            "target": "target", "drafter": "drafter", "drafters": {"bigram": "bigram"},
            "tasks": {"translate": "translate: "}, "max_source_len": 64, "max_decode_len": 12})}),
        _one_of_files("pair.json"), lambda f: pairs.check_pair(f)),
    "gin": Reader(_write({"x.gin": _GIN}), _gin, _read_gin),
    "lines": Reader(
        _write({"x.txt": _TEXT, "x.tsv": _TSV, "x.jsonl": _JSONL,
                "x.jsonl.gz": gzip.compress(_JSONL, mtime=0)}),
        _one_of_files("x.txt", "x.tsv", "x.jsonl", "x.jsonl.gz"), _read_lines),
    "drafter_spec": Reader(_write({"spec": b"copy"}), _spec_texts, _read_spec),
    "sentencepiece": Reader(_write({"x.model": tiny.vocabulary().model}),
                            _one_of_files("x.model"), _read_sentencepiece),
    "tokenizer_json": Reader(
        lambda f: _write({"tokenizer.json": _tokenizer()})(f), _one_of_files("tokenizer.json"),
        lambda f: _use(TokenizerVocabulary((f / "tokenizer.json").read_bytes()))),
}


def remove(folder: pathlib.Path) -> None:
  """Removes a reader's folder."""
  shutil.rmtree(folder, ignore_errors=True)
