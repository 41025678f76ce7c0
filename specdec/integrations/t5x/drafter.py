"""The drafter of a T5X job: looked at when the job is set up, read when the target is."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import flax.core
import jax
import numpy as np

from specdec.checkpoints import mapping
from specdec.checkpoints.checkpoint import ArrayRef
from specdec.checkpoints.checkpoint import nested
from specdec.core.contracts import Drafter
from specdec.data import make
from specdec.data.base import BaseVocabulary
from specdec.data.ids_only import IdsOnly
from specdec.drafters.transformer import TransformerDrafter
from specdec.engine import drafter_specs
from specdec.engine import drafters
from specdec.engine.models import open_model
from specdec.errors import SpecdecError
from specdec.models.t5.config import T5Config
from specdec.models.t5.scorer import T5Scorer

PyTree = Any

# Logical axes of T5X's own network, by the last names of a parameter.
_AXES = {
    "embedding": ("vocab", "embed"),
    "rel_embedding": ("heads", "relpos_buckets"),
    "scale": ("embed",),
    "query/kernel": ("embed", "joined_kv"),
    "key/kernel": ("embed", "joined_kv"),
    "value/kernel": ("embed", "joined_kv"),
    "out/kernel": ("joined_kv", "embed"),
    "wi/kernel": ("embed", "mlp"),
    "wi_0/kernel": ("embed", "mlp"),
    "wi_1/kernel": ("embed", "mlp"),
    "wo/kernel": ("mlp", "embed"),
    "logits_dense/kernel": ("embed", "vocab"),
}


@dataclasses.dataclass(frozen=True, eq=False)
class OpenDrafter:
  """A drafter that was looked at.

  Attributes:
    part: what was asked for.
    arrays: parameters on disk by name; none for a drafter that has learned nothing.
    config: the architecture of a T5, None for other kinds.
    vocabulary: of a T5 whose folder has one.
  """

  part: drafter_specs.Planned
  arrays: Mapping[str, ArrayRef]
  config: T5Config | None = None
  vocabulary: BaseVocabulary | None = None

  def ready(self, params: PyTree, vocab_size: int, dtype: str) -> tuple[Drafter, PyTree]:
    """The drafter of a target, and its weights, within a program that has `params`.

    Args:
      params: tree in T5X's layout; not looked at where there are no arrays.
      vocab_size: the target's logits width.
      dtype: the target's.
    """
    if self.config is None:
      found = drafters.without_weights(self.part, vocab_size)
      return found.drafter, found.params
    scorer = T5Scorer(self.config.replace(dtype=dtype))
    return TransformerDrafter(scorer, vocab_size), scorer.prepare(flax.core.unfreeze(params))

  def shapes(self) -> PyTree:
    """Shapes of the parameters, float32."""
    return nested({name: jax.ShapeDtypeStruct(array.shape, np.float32)
                   for name, array in self.arrays.items()})

  def axes(self) -> dict[str, tuple[str, ...]]:
    """Logical axes of each parameter by name, those that T5X's network gives its own."""
    return {name: logical_axes(name) for name in self.arrays}

  def check(self, name: str, vocabulary: Any) -> None:
    """Compares its pieces with those of a seqio vocabulary, where both can be told.

    Raises:
      SpecdecError: they differ.
    """
    ours = None if self.vocabulary is None else _from_seqio(vocabulary)
    if ours is not None:
      drafters.check_vocabularies(name, ours, str(self.part.part), self.vocabulary)


def open_drafter(spec: str) -> OpenDrafter:
  """Looks up what a job names as its drafter, reading no weights.

  Args:
    spec: the folder of a T5 of any layout that specdec reads, "copy" or "uniform" (see
      `engine.drafter_specs` for their options).

  Raises:
    SpecdecError: there is no such drafter, or one of a kind that does not run in T5X.
  """
  parts = drafter_specs.plan(spec, drafter_specs.Known())
  if len(parts) > 1 or parts[0].kind not in ("t5", "copy", "uniform"):
    kind = "a cascade" if len(parts) > 1 else {"ngram": "n-gram tables"}.get(
        parts[0].kind, parts[0].kind)
    raise SpecdecError(f"the drafter {spec!r} is {kind}, which T5X's train state has no place "
                       "for; expected the folder of a T5, copy or uniform")
  part = parts[0]
  if part.kind != "t5":
    return OpenDrafter(part, {})
  opened = open_model(part.path)
  vocabulary = None if isinstance(opened.vocabulary, IdsOnly) else opened.vocabulary
  wanted = mapping.parameter_shapes(opened.config.to_dict())
  return OpenDrafter(part, {name: opened.checkpoint.arrays[name] for name in wanted},
                     opened.config, vocabulary)


def logical_axes(name: str) -> tuple[str, ...]:
  """T5X's logical axes of a parameter by our name.

  >>> logical_axes("decoder/layers_0/mlp/wo/kernel")
  ('mlp', 'embed')
  """
  *_, parent, last = name.split("/")
  return _AXES.get(f"{parent}/{last}") or _AXES[last]


def _from_seqio(vocabulary: Any) -> BaseVocabulary | None:
  """A seqio vocabulary as one of ours; None for kinds that have no counterpart."""
  kind = type(vocabulary).__name__
  if kind == "SentencePieceVocabulary":
    return make.make("sentencepiece", vocabulary.sp_model, vocabulary.extra_ids)
  return make.make("bytes", b"") if kind == "ByteVocabulary" else None
