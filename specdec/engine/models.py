"""Models and pairs, loaded and ready to decode."""

import dataclasses
import json
import pathlib
from typing import Any

import jax
import numpy as np

from specdec.checkpoints import bundle as bundle_lib
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.data.vocabulary import Vocabulary
from specdec.drafters.transformer import TransformerDrafter
from specdec.engine import precision
from specdec.models.t5 import weights as weights_lib
from specdec.models.t5.config import T5Config
from specdec.models.t5.scorer import T5Scorer
from specdec.types import Source
from specdec.types import SpecdecError

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
  vocabulary: Vocabulary

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
    """
    source = make_source(encoder_ids, self.vocabulary)
    with precision.matmul_precision(self.config.dtype):
      out = _logits(self.scorer, self.weights, source, np.asarray(decoder_ids, np.int32))
    return np.asarray(out)


_logits = jax.jit(lambda scorer, weights, source, ids: scorer.logits(weights, source, ids),
                  static_argnums=0)


def make_source(encoder_ids: Any, vocabulary: Vocabulary | None = None,
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
  lists = [np.trim_zeros(np.asarray(row, np.int32), "b") for row in encoder_ids]
  for i, row in enumerate(lists):
    if not row.size:
      raise SpecdecError(f"encoder_ids row {i} is empty; expected at least the EOS id")
    if row.min() < 0:
      raise SpecdecError(f"encoder_ids row {i} holds the negative id {row.min()}")
    if vocabulary is not None and row.max() >= len(vocabulary):
      raise SpecdecError(f"encoder_ids row {i} holds the id {row.max()}; expected less than "
                         f"the {len(vocabulary)} pieces of the vocabulary")
  ids = np.zeros((rows or len(lists), width or max(map(len, lists))), np.int32)
  # Rows that only fill the batch have one token, so that attention has a key.
  length = np.ones((ids.shape[0],), np.int32)
  for i, row in enumerate(lists):
    ids[i, :len(row)] = row
    length[i] = len(row)
  return Source(ids=ids, length=length)


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
    ours, theirs = self.target.vocabulary, self.drafter.vocabulary
    if ours.fingerprint != theirs.fingerprint:
      raise SpecdecError(
          f"target {self.target.name} and drafter {self.drafter.name} have different "
          f"vocabularies ({len(ours)} pieces, fingerprint {ours.fingerprint[:12]}, against "
          f"{len(theirs)} pieces, fingerprint {theirs.fingerprint[:12]}); speculative "
          "decoding needs a drafter with the target's own pieces")

  @property
  def vocabulary(self) -> Vocabulary:
    return self.target.vocabulary

  def method(self, gamma: int) -> Method:
    """The decoding method at a gamma; 0 is plain decoding with the target."""
    if gamma == 0:
      return Method(self.target.scorer)
    return Method(self.target.scorer,
                  TransformerDrafter(self.drafter.scorer, self.target.scorer.vocab_size), gamma)

  def weights(self, gamma: int) -> Weights:
    """The weights that `method(gamma)` takes."""
    return Weights(self.target.weights, self.drafter.weights if gamma else None)


def make_model(name: str, config: T5Config, params: Any, vocabulary: Vocabulary) -> Model:
  """Prepares a model from parameters in T5X's layout.

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


def load_model(path: str | pathlib.Path, dtype: str | None = None) -> Model:
  """Loads a specdec model folder.

  Args:
    path: folder with model.json, params/ and vocab.model.
    dtype: "float32" or "bfloat16"; by default what suits the device: float32 on
      CPU, bfloat16 on TPU and GPU.

  Raises:
    SpecdecError: the folder is incomplete or damaged.
  """
  stored = bundle_lib.load(path)
  name = str(path)
  try:
    config = T5Config.from_dict(stored.config)
    config = config.replace(dtype=dtype or precision.default_dtype())
  except (TypeError, ValueError) as error:
    raise SpecdecError(f"{name}: {error}") from error
  vocabulary = Vocabulary(stored.vocabulary)
  if vocabulary.fingerprint != stored.fingerprint:
    raise SpecdecError(f"{name}: vocab.model is not the vocabulary that model.json names; "
                       "copy the folder again")
  return make_model(name, config, stored.params, vocabulary)


def pair_names() -> list[str]:
  """Names of the pairs that come with the package."""
  return sorted(p.parent.name for p in ASSETS.glob("*/pair.json"))


def load_pair(pair: str | pathlib.Path = "demo", dtype: str | None = None) -> Pair:
  """Loads a pair by name or from a folder with a `pair.json`.

  Args:
    pair: a name out of `pair_names()` or a path.
    dtype: see `load_model`.

  Returns:
    The pair, on the first device.

  Raises:
    SpecdecError: there is no such pair, or its vocabularies differ.
  """
  folder = ASSETS / str(pair)
  if str(pair) not in pair_names():
    folder = pathlib.Path(pair)
    if not (folder / "pair.json").is_file():
      raise SpecdecError(f"there is no pair {str(pair)!r}; expected one of "
                         f"{', '.join(pair_names())}, or a folder with a pair.json")
  try:
    about = json.loads((folder / "pair.json").read_text(encoding="utf-8"))
    settings = {k: about[k] for k in ("tasks", "max_source_len", "max_decode_len") if k in about}
    paths = [folder / about[role] for role in ("target", "drafter")]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise SpecdecError(f"{folder / 'pair.json'} cannot be used: {error!r}; expected JSON with "
                       '"target" and "drafter" folders') from error
  target, drafter = (load_model(path, dtype) for path in paths)
  return Pair(str(pair), target, drafter, **settings)
