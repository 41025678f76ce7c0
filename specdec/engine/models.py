"""Models, loaded and ready to decode."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import pathlib
from typing import Any

import jax
from jax.sharding import Mesh
import numpy as np

from specdec.checkpoints import detect
from specdec.checkpoints import vocabularies
from specdec.checkpoints.checkpoint import ArrayRef
from specdec.checkpoints.checkpoint import Checkpoint
from specdec.checkpoints.checkpoint import in_memory
from specdec.checkpoints.checkpoint import nested
from specdec.checkpoints.checkpoint import taken_once
from specdec.checkpoints.streaming import in_file_order
from specdec.data.base import BaseVocabulary
from specdec.data.ids_only import IdsOnly
from specdec.data.make import make as make_vocabulary
from specdec.engine import exhausted
from specdec.engine import mesh as mesh_lib
from specdec.engine import precision
from specdec.engine import shapes
from specdec.errors import SpecdecError
from specdec.models.t5 import sharding
from specdec.models.t5 import weights as weights_lib
from specdec.models.t5.config import T5Config
from specdec.models.t5.scorer import T5Scorer
from specdec.types import Source


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
  """A T5 with its decode weights.

  Attributes:
    name: where it was loaded from.
    scorer: static settings of the network.
    weights: decode weights, see `models.t5.weights.prepare`.
    vocabulary: of its ids.
    widened: a smaller model inside of larger matrices, see `bench.widen`: what it says is
      the smaller one's, what it costs the larger one's.
    mesh: of the devices that the weights are on; None for the first device alone.
  """

  name: str
  scorer: T5Scorer
  weights: Any
  vocabulary: BaseVocabulary
  widened: bool = False
  mesh: Mesh | None = None

  @contextlib.contextmanager
  def scope(self) -> Iterator[None]:
    """In which the model's programs are traced and run: its precision and its devices."""
    with precision.matmul_precision(self.config.dtype), mesh_lib.scope(self.mesh):
      yield

  @property
  def config(self) -> T5Config:
    """The architecture."""
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
    shapes.enter((self.scorer, source.ids.shape, decoder_ids.shape))
    with self.scope():
      out = _logits(self.scorer, self.weights, source, decoder_ids.astype(np.int32))
    return np.asarray(out)


_logits = shapes.bounded(jax.jit(
    lambda scorer, weights, source, ids: scorer.logits(weights, source, ids), static_argnums=0))


def make_source(encoder_ids: Any, vocabulary: BaseVocabulary | None = None,
                width: int | None = None, rows: int | None = None,
                begin: Sequence[int] | None = None) -> Source:
  """Pads ids to a `Source`.

  Args:
    encoder_ids: int [B, S] or B sequences; trailing zeros are padding.
    vocabulary: unused ids are not checked when None.
    width: columns to pad to; the longest row by default.
    rows: rows to pad to; by default none are added.
    begin: of each row, the first id of the text itself; None for no prefixes.

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
  if begin is not None:
    begin = np.pad(np.asarray(begin, np.int32), (0, ids.shape[0] - len(lists)))
  return Source(ids=ids, length=length, begin=begin)


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


def make_model(name: str, config: T5Config, params: Any, vocabulary: BaseVocabulary,
               mesh: Mesh | None = None, split: bool = True) -> Model:
  """Prepares a model from parameters in T5X's layout.

  Args:
    name: for messages.
    config: the architecture.
    params: tree of arrays, or of `ArrayRef`s, which are read one at a time.
    vocabulary: of its ids.
    mesh: of the devices to put it on; None for the first device alone.
    split: over the mesh's axis `model`; False puts all of it on every device.

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
  if mesh is None:
    scorer, places = T5Scorer(config), None
  else:
    scorer = T5Scorer(config, split=split and mesh_lib.is_split(mesh))
    places = sharding.places(config, mesh, scorer.split)
    if scorer.split:
      mesh_lib.tell(name, config, mesh)
  with exhausted.told(lambda: exhausted.while_loading(
      name, weights_lib.count(config), config.dtype)):
    weights = jax.block_until_ready(scorer.prepare(params, places))
  return Model(name, scorer, weights, vocabulary, mesh=mesh)


@dataclasses.dataclass(frozen=True, eq=False)
class Opened:
  """A model that was looked at: its weights are not read yet.

  Attributes:
    name: where it was found.
    checkpoint: its arrays, by name.
    config: the architecture, in the dtype of the checkpoint.
    vocabulary: of its ids.
  """

  name: str
  checkpoint: Checkpoint
  config: T5Config
  vocabulary: BaseVocabulary

  def params(self) -> Any:
    """Reads the parameters in T5X's layout, float32."""
    arrays = finite(self.checkpoint).arrays
    return jax.tree.map(lambda x: np.asarray(x, np.float32), nested(dict(arrays)))

  def load(self, dtype: str | None = None, mesh: Mesh | None = None,
           split: bool = True) -> Model:
    """Reads the weights; see `load_model` and `make_model`."""
    config = self.config.replace(dtype=dtype or precision.default_dtype())
    # Each device takes its part of what was stacked.
    keep = taken_once if mesh is None else in_memory
    with exhausted.told(lambda: exhausted.while_loading(
        self.name, weights_lib.count(config), config.dtype)):
      params = nested(_unstacked_first(finite(self.checkpoint), config, keep))
    return make_model(self.name, config, params, self.vocabulary, mesh, split)


def finite(found: Checkpoint) -> Checkpoint:
  """A checkpoint whose arrays must hold numbers as they are read: no NaN, nothing infinite."""
  return dataclasses.replace(found, arrays={
      name: array.finite(name) for name, array in found.arrays.items()})


def open_model(path: str | pathlib.Path,
               vocabulary: BaseVocabulary | str | pathlib.Path | None = None,
               verify: bool = True) -> Opened:
  """Looks at a model without reading its weights; see `load_model`.

  Args:
    path: a folder, local or gs://, or a name on Hugging Face's hub.
    vocabulary: in place of the one that the folder carries.
    verify: whether a bundle's files are compared with their checksums.
  """
  found = detect.open_checkpoint(path, verify=verify)
  if not isinstance(vocabulary, BaseVocabulary):
    vocabulary = vocabulary_of(found, vocabulary)
  return Opened(str(path), found, config_of(found), vocabulary)


def load_model(path: str | pathlib.Path, dtype: str | None = None,
               vocabulary: BaseVocabulary | str | pathlib.Path | None = None,
               mesh: str | Mesh | None = None) -> Model:
  """Loads a model of any layout: a specdec bundle, T5X's, or Hugging Face's.

  Args:
    path: a folder, local or gs://, or a name on Hugging Face's hub.
    dtype: "float32" or "bfloat16"; by default what suits the device: float32 on
      CPU, bfloat16 on TPU and GPU.
    vocabulary: in place of the one that the folder carries: a sentencepiece model, a
      tokenizer.json, a folder with one of them, or "bytes". A T5X checkpoint carries
      none; without one a model takes ids and no text.
    mesh: devices to split it over, such as "data:4,model:2"; see `load_pair`.

  Returns:
    The model, on the first device or on the mesh.

  Raises:
    SpecdecError: the folder is incomplete or damaged, or of another family of models.
  """
  devices = mesh_lib.make(mesh)
  return open_model(path, vocabulary).load(dtype, devices)


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
  width = config_of(found).vocab_size
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


def _unstacked_first(found: Checkpoint, config: T5Config,
                     keep: Callable[[np.ndarray], ArrayRef]) -> dict[str, Any]:
  """Arrays by name; those that several share on disk are read now, each file once.

  Layers that are stacked on disk would otherwise be read, whole, for every layer. They
  are kept in the dtype they are wanted in; `keep` makes a leaf of each.
  """
  shared: dict[str, int] = {}
  for array in found.arrays.values():
    shared[array.source] = shared.get(array.source, 0) + 1
  arrays = dict(found.arrays)
  for name, array in in_file_order(found.arrays):
    if shared[array.source] > 1:
      matrix = name.endswith(("/kernel", "/embedding"))
      arrays[name] = keep(array.read(dtype=config.dtype if matrix else "float32"))
  return arrays
