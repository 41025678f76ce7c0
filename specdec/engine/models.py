"""Models and pairs, loaded and ready to decode."""

import dataclasses
import json
import pathlib
from typing import Any

import jax
import numpy as np

from specdec.checkpoints import detect
from specdec.checkpoints import vocabularies
from specdec.checkpoints.checkpoint import Checkpoint
from specdec.checkpoints.checkpoint import nested
from specdec.checkpoints.checkpoint import taken_once
from specdec.checkpoints.streaming import in_file_order
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.data.base import BaseVocabulary
from specdec.data.ids_only import IdsOnly
from specdec.data.make import make as make_vocabulary
from specdec.drafters.transformer import TransformerDrafter
from specdec.engine import precision
from specdec.engine.settings import whole
from specdec.errors import SpecdecError
from specdec.models.t5 import weights as weights_lib
from specdec.models.t5.config import T5Config
from specdec.models.t5.scorer import T5Scorer
from specdec.types import Source

ASSETS = pathlib.Path(__file__).parent.parent / "assets"


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A T5 with its decode weights.

  Attributes:
    name: where it was loaded from.
    scorer: static settings of the network.
    weights: decode weights, see `models.t5.weights.prepare`.
    vocabulary: of its ids.
  """

  name: str
  scorer: T5Scorer
  weights: Any
  vocabulary: BaseVocabulary

  @property
  def config(self) -> T5Config:
    return self.scorer.config

  @property
  def num_params(self) -> int:
    """Number of parameters of the network in T5X's layout."""
    return weights_lib.count(self.config)

  def logits(self, encoder_ids: Any, decoder_ids: Any) -> np.ndarray:
    """Teacher-forced logits.

    Args:
      encoder_ids: int [B, S], or B lists of ids; 0 at the end is padding.
      decoder_ids: int [B, T], the decoder's inputs, beginning with the start id 0.

    Returns:
      float32 [B, T, V]; position t scores the token after `decoder_ids[:, t]`.

    Raises:
      SpecdecError: ids are out of range, or the two do not have as many rows.
    """
    source = make_source(encoder_ids, self.vocabulary)
    try:
      decoder_ids = np.asarray(decoder_ids)
    except ValueError:
      raise SpecdecError("decoder_ids have rows of different lengths; expected int [B, T]: pad "
                         "them, what stands behind a position does not change it") from None
    batch, width = source.ids.shape[0], self.config.vocab_size
    if decoder_ids.dtype.kind not in "iu" or decoder_ids.shape[:1] != (batch,) \
        or decoder_ids.ndim != 2 or not decoder_ids.size:
      raise SpecdecError(f"decoder_ids are {decoder_ids.dtype} of shape {decoder_ids.shape}; "
                         f"expected integers of shape ({batch}, T), a row per encoder row")
    if decoder_ids.min() < 0 or decoder_ids.max() >= width:
      raise SpecdecError(f"decoder_ids hold ids from {decoder_ids.min()} to "
                         f"{decoder_ids.max()}; expected 0 to {width - 1}")
    with precision.matmul_precision(self.config.dtype):
      out = _logits(self.scorer, self.weights, source, decoder_ids.astype(np.int32))
    return np.asarray(out)


_logits = jax.jit(lambda scorer, weights, source, ids: scorer.logits(weights, source, ids),
                  static_argnums=0)


def make_source(encoder_ids: Any, vocabulary: BaseVocabulary | None = None,
                width: int | None = None, rows: int | None = None) -> Source:
  """Pads ids to a `Source`.

  Args:
    encoder_ids: int [B, S] or B sequences; trailing zeros are padding.
    vocabulary: unused ids are not checked when None.
    width: columns to pad to; the longest row by default.
    rows: rows to pad to; by default none are added.

  Raises:
    SpecdecError: a row is empty or holds ids outside the vocabulary.
  """
  lists = id_rows(encoder_ids, vocabulary)
  if not lists:
    raise SpecdecError("encoder_ids have no rows; expected one or more")
  ids = np.zeros((rows or len(lists), width or max(map(len, lists))), np.int32)
  # Rows that only fill the batch have one token, so that attention has a key.
  length = np.ones((ids.shape[0],), np.int32)
  for i, row in enumerate(lists):
    ids[i, :len(row)] = row
    length[i] = len(row)
  return Source(ids=ids, length=length)


def id_rows(encoder_ids: Any, vocabulary: BaseVocabulary | None = None) -> list[np.ndarray]:
  """Checks ids and returns an int32 array a row, without padding.

  Args:
    encoder_ids: int [B, S] or B sequences; trailing zeros are padding.
    vocabulary: ids outside it are refused; None checks for negative ids alone.

  Raises:
    SpecdecError: a row is empty, is not a row of integers, or holds ids outside
      the vocabulary.
  """
  try:
    rows = [np.asarray(row) for row in encoder_ids]
  except (TypeError, ValueError):
    raise SpecdecError("encoder_ids are not rows of ids; expected int [B, S], or lists of "
                       "ids") from None
  for i, row in enumerate(rows):
    row = np.trim_zeros(row, "b") if row.ndim == 1 and row.dtype.kind in "iu" else row
    if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
      raise SpecdecError(f"encoder_ids row {i} is {row.dtype} of shape {row.shape}; expected "
                         "a list of integers")
    if not row.size:
      raise SpecdecError(f"encoder_ids row {i} is empty; expected at least the EOS id")
    if row.min() < 0:
      raise SpecdecError(f"encoder_ids row {i} holds the negative id {row.min()}")
    if vocabulary is not None and row.max() >= len(vocabulary):
      raise SpecdecError(f"encoder_ids row {i} holds the id {row.max()}; expected less than "
                         f"the {len(vocabulary)} pieces of the vocabulary")
    rows[i] = row.astype(np.int32)
  return rows


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
  """A target and the drafter that speeds it up.

  Attributes:
    name: as given to `load_pair`.
    target: M_p.
    drafter: M_q.
    tasks: prefixes by task name.
    max_source_len: encoder tokens beyond this are cut, EOS kept.
    max_decode_len: default limit of generated tokens.
  """

  name: str
  target: Model
  drafter: Model
  tasks: dict[str, str] = dataclasses.field(default_factory=dict)
  max_source_len: int = 512
  max_decode_len: int = 128

  def __post_init__(self):
    check_vocabularies(self.target.name, self.target.vocabulary,
                       self.drafter.name, self.drafter.vocabulary)

  @property
  def vocabulary(self) -> BaseVocabulary:
    return self.target.vocabulary

  def method(self, gamma: int, trace: bool = False) -> Method:
    """The decoding method at a gamma; 0 is plain decoding with the target."""
    if gamma == 0:
      return Method(self.target.scorer, trace=trace)
    drafter = TransformerDrafter(self.drafter.scorer, self.target.scorer.vocab_size)
    return Method(self.target.scorer, drafter, gamma, trace=trace)

  def weights(self, gamma: int) -> Weights:
    """The weights that `method(gamma)` takes."""
    return Weights(self.target.weights, self.drafter.weights if gamma else None)


def check_vocabularies(target: str, ours: BaseVocabulary, drafter: str,
                       theirs: BaseVocabulary) -> None:
  """Compares the vocabularies of a target and a drafter, which are named for messages.

  Pieces count, not widths: padding and sentinels come and go with the same pieces.

  Raises:
    SpecdecError: they differ; says where.
  """
  difference = ours.difference(theirs)
  if difference:
    raise SpecdecError(
        f"target {target} and drafter {drafter} have different vocabularies ({len(ours)} "
        f"pieces, fingerprint {ours.fingerprint[:12]}, against {len(theirs)} pieces, "
        f"fingerprint {theirs.fingerprint[:12]}: {difference}); speculative decoding needs a "
        "drafter with the target's own pieces")


def make_model(name: str, config: T5Config, params: Any, vocabulary: BaseVocabulary) -> Model:
  """Prepares a model from parameters in T5X's layout.

  Args:
    name: for messages.
    config: the architecture.
    params: tree of arrays, or of `ArrayRef`s, which are read one at a time.
    vocabulary: of its ids.

  Raises:
    SpecdecError: names or shapes do not fit, or the logits are narrower than the
      vocabulary.
  """
  problem = weights_lib.mismatch(params, config)
  if problem:
    raise SpecdecError(f"the parameters of {name} do not fit its architecture; {problem}")
  if config.vocab_size < len(vocabulary):
    raise SpecdecError(f"{name} has {config.vocab_size} logits for a vocabulary of "
                       f"{len(vocabulary)} pieces; expected at least as many")
  scorer = T5Scorer(config)
  return Model(name, scorer, jax.block_until_ready(scorer.prepare(params)), vocabulary)


def load_model(path: str | pathlib.Path, dtype: str | None = None,
               vocabulary: BaseVocabulary | str | pathlib.Path | None = None) -> Model:
  """Loads a model of any layout: a specdec bundle, T5X's, or Hugging Face's.

  Args:
    path: a folder, local or gs://, or a name on Hugging Face's hub.
    dtype: "float32" or "bfloat16"; by default what suits the device: float32 on
      CPU, bfloat16 on TPU and GPU.
    vocabulary: in place of the one that the folder carries: a sentencepiece model, a
      tokenizer.json, a folder with one of them, or "bytes". A T5X checkpoint carries
      none; without one a model takes ids and no text.

  Raises:
    SpecdecError: the folder is incomplete or damaged, or of another family of models.
  """
  found = detect.open_checkpoint(path)
  name = str(path)
  config = config_of(found)
  config = config.replace(dtype=dtype or precision.default_dtype())
  if not isinstance(vocabulary, BaseVocabulary):
    vocabulary = vocabulary_of(found, vocabulary)
  return make_model(name, config, nested(_unstacked_first(found, config)), vocabulary)


def config_of(found: Checkpoint) -> T5Config:
  """The architecture of a checkpoint.

  Raises:
    SpecdecError: it has unknown fields, or values that make no T5.
  """
  try:
    return T5Config.from_dict(found.config)
  except (TypeError, ValueError) as error:
    raise SpecdecError(f"{found.path}: {error}") from error


def vocabulary_of(found: Checkpoint,
                  named: str | pathlib.Path | None = None) -> BaseVocabulary:
  """The vocabulary of a checkpoint, or the one that a user names instead.

  Raises:
    SpecdecError: it cannot be read, or is not the one that the checkpoint was saved with.
  """
  width = int(found.config["vocab_size"])
  file = vocabularies.given(str(named), width) if named is not None else found.vocabulary
  if file is None:
    return IdsOnly(width)
  try:
    vocabulary = make_vocabulary(file.kind, file.content, file.extra_ids)
  except SpecdecError as error:
    raise SpecdecError(f"{named or found.path}: {error}") from error
  if named is None and found.fingerprint not in ("", vocabulary.fingerprint):
    raise SpecdecError(f"{found.path}: its vocabulary is not the vocabulary that model.json "
                       "names; copy the folder again")
  return vocabulary


def _unstacked_first(found: Checkpoint, config: T5Config) -> dict[str, Any]:
  """Arrays by name; those that several share on disk are read now, each file once.

  Layers that are stacked on disk would otherwise be read, whole, for every layer. They
  are kept in the dtype they are wanted in, and let go of one by one as they are used.
  """
  shared: dict[str, int] = {}
  for array in found.arrays.values():
    shared[array.source] = shared.get(array.source, 0) + 1
  arrays = dict(found.arrays)
  for name, array in in_file_order(found.arrays):
    if shared[array.source] > 1:
      matrix = name.endswith(("/kernel", "/embedding"))
      arrays[name] = taken_once(array.read(dtype=config.dtype if matrix else "float32"))
  return arrays


def pair_names() -> list[str]:
  """Names of the pairs that come with the package."""
  return sorted(p.parent.name for p in ASSETS.glob("*/pair.json"))


def load_pair(pair: str | pathlib.Path = "demo", dtype: str | None = None, *,
              target: str | pathlib.Path | None = None,
              drafter: str | pathlib.Path | None = None,
              vocabulary: str | pathlib.Path | None = None) -> Pair:
  """Loads a pair by name, from a folder with a `pair.json`, or from two models.

  Args:
    pair: a name out of `pair_names()` or a path; not looked at when models are named.
    dtype: see `load_model`.
    target: a model of any layout that `load_model` reads; goes with `drafter`.
    drafter: likewise; must have the target's pieces.
    vocabulary: of both; see `load_model`.

  Returns:
    The pair, on the first device. One of two models has no tasks: texts get no prefix.

  Raises:
    SpecdecError: there is no such pair, or its vocabularies differ.

  >>> import specdec
  >>> folder = specdec.engine.models.ASSETS / "demo"
  >>> pair = specdec.load_pair(target=folder / "target", drafter=folder / "drafter")
  >>> pair.tasks
  {}
  """
  members, about = _members(pair, target, drafter)
  large, small = (load_model(path, dtype, vocabulary) for path in members)
  name = str(pair) if target is None else f"{target} with {drafter}"
  return Pair(name, large, small, **about)


def pair_vocabulary(pair: str | pathlib.Path = "demo", *,
                    target: str | pathlib.Path | None = None,
                    drafter: str | pathlib.Path | None = None,
                    vocabulary: str | pathlib.Path | None = None) -> BaseVocabulary:
  """The vocabulary of what `load_pair` would load, without reading weights.

  Raises:
    SpecdecError: there is no such pair, or its vocabularies differ.
  """
  members, _ = _members(pair, target, drafter)
  found = [vocabulary_of(detect.open_checkpoint(path, verify=False), vocabulary)
           for path in members]
  check_vocabularies(str(members[0]), found[0], str(members[1]), found[1])
  return found[0]


def _members(pair: str | pathlib.Path, target: str | pathlib.Path | None,
             drafter: str | pathlib.Path | None
             ) -> tuple[tuple[str | pathlib.Path, str | pathlib.Path], dict[str, Any]]:
  """Paths of target and drafter, and what a pair file says besides."""
  if target is None and drafter is None:
    folder = find_pair(pair)
    about = _read_pair(folder / "pair.json")
    return (_member(folder, about.pop("target")), _member(folder, about.pop("drafter"))), about
  if target is None or drafter is None:
    raise SpecdecError("a pair of two models needs both, a target and a drafter; only the "
                       f"{'drafter' if target is None else 'target'} is named")
  return (target, drafter), {}


def _member(folder: pathlib.Path, named: str) -> str | pathlib.Path:
  """A model that a pair file names: below the file's folder, anywhere, or on the hub."""
  below = folder / named
  return named if "/" in named and not below.exists() else below


def find_pair(pair: str | pathlib.Path) -> pathlib.Path:
  """Folder of a pair, without loading it.

  Raises:
    SpecdecError: there is no such pair.
  """
  if str(pair) in pair_names():
    return ASSETS / str(pair)
  folder = pathlib.Path(pair)
  try:
    found = (folder / "pair.json").is_file()
  except (OSError, ValueError):
    # Names that no file can have: too long, or with a NUL in them.
    found = False
  if not found:
    raise SpecdecError(f"there is no pair {str(pair)!r}; expected a name "
                       f"({', '.join(pair_names()) or 'none is installed'}) or a folder with "
                       "a pair.json")
  return folder


def _read_pair(path: pathlib.Path) -> dict[str, Any]:
  """Reads a pair.json: folders of the two models, and settings of `Pair`."""
  try:
    about = json.loads(path.read_text(encoding="utf-8"))
  except OSError as error:
    raise SpecdecError(f"cannot read {path}: {error.strerror}") from error
  except ValueError as error:
    raise SpecdecError(f"{path} is not JSON: {error}") from error
  fields = dict(about) if isinstance(about, dict) else {}
  fields = {k: v for k, v in fields.items() if k in (
      "target", "drafter", "tasks", "max_source_len", "max_decode_len")}
  for role in ("target", "drafter"):
    if not isinstance(fields.get(role), str):
      raise SpecdecError(f"{path} names no {role}; expected JSON with the folders of "
                         '"target" and "drafter"')
  tasks = fields.get("tasks", {})
  if not isinstance(tasks, dict) or not all(isinstance(v, str) for v in tasks.values()):
    raise SpecdecError(f'"tasks" in {path} is {tasks!r}; expected prefixes by task name')
  for name, low in (("max_source_len", 2), ("max_decode_len", 1)):
    if name in fields:
      whole(f'"{name}" in {path}', fields[name], low, 2**20)
  return fields
