"""Drafters of every kind, with what they need to draft for a target."""

import dataclasses
from typing import Any

from specdec.core.contracts import Drafter
from specdec.data.base import BaseVocabulary
from specdec.drafters.transformer import TransformerDrafter
from specdec.engine.models import Model
from specdec.errors import SpecdecError


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedDrafter:
  """A drafter that is ready to draft.

  Attributes:
    name: as it was asked for, or where it was loaded from.
    drafter: static settings.
    params: what `drafter` takes; an empty tree for one that has learned nothing.
    model: the T5 it consists of; None for every other kind, cascades included.
  """

  name: str
  drafter: Drafter
  params: Any
  model: Model | None = None


def of_model(model: Model, vocab_size: int) -> LoadedDrafter:
  """A T5 as the drafter of a target whose logits are `vocab_size` wide."""
  return LoadedDrafter(model.name, TransformerDrafter(model.scorer, vocab_size), model.weights,
                       model)


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
