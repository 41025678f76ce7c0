"""Drafters of every kind, with what they need to draft for a target."""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any

from specdec.core.contracts import Drafter
from specdec.data.base import BaseVocabulary
from specdec.drafters.transformer import TransformerDrafter
from specdec.engine import mesh as mesh_lib
from specdec.engine.drafter_specs import WORDS
from specdec.engine.drafter_specs import Planned
from specdec.engine.models import Model
from specdec.engine.models import Opened
from specdec.engine.models import open_model
from specdec.errors import SpecdecError


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedDrafter:
  """A drafter that is ready to draft.

  Attributes:
    name: as it was asked for.
    drafter: static settings.
    params: what `drafter` takes; an empty tree for one that has learned nothing.
    model: the T5 it consists of; None for every other kind, cascades included.
  """

  name: str
  drafter: Drafter
  params: Any
  model: Model | None = None


def of_model(model: Model, vocab_size: int, name: str | None = None) -> LoadedDrafter:
  """A T5 as the drafter of a target whose logits are `vocab_size` wide."""
  return LoadedDrafter(name or model.name, TransformerDrafter(model.scorer, vocab_size),
                       model.weights, model)


def open_parts(parts: Sequence[Planned], target: Model | Opened,
               vocabulary: str | pathlib.Path | None = None,
               verify: bool = True) -> list[Opened | None]:
  """Looks at the T5s among the parts of a spec, reading no weights.

  Args:
    parts: from `drafter_specs.plan`.
    target: what is drafted for.
    vocabulary: of all of them, as a user named it.
    verify: see `open_model`.

  Returns:
    One entry per part, None for what is no T5.

  Raises:
    SpecdecError: there is no such T5, or its pieces are not the target's.
  """
  found = []
  for part in parts:
    opened = open_model(part.path, vocabulary, verify) if part.kind == "t5" else None
    if opened is not None:
      check_vocabularies(target.name, target.vocabulary, opened.name, opened.vocabulary)
    found.append(opened)
  return found


def load(parts: Sequence[Planned], opened: Sequence[Opened | None], target: Model,
         layout: str = "split") -> LoadedDrafter:
  """Loads what a spec names.

  Args:
    parts: from `drafter_specs.plan`.
    opened: from `open_parts`.
    target: what is drafted for; its dtype and its devices are theirs.
    layout: one of `mesh.DRAFTER_LAYOUTS`, for T5s on several devices.

  Raises:
    SpecdecError: a folder is damaged, or was made for another target.
  """
  loaded = _load_one(parts[0], opened[0], target, layout)
  for inner, part, found in zip(parts, parts[1:], opened[1:]):
    loaded = _cascade(loaded, inner.options["gamma"], _load_one(part, found, target, layout),
                      target)
  return dataclasses.replace(loaded, params=mesh_lib.replicate(loaded.params, target.mesh))


def _load_one(part: Planned, opened: Opened | None, target: Model, layout: str) -> LoadedDrafter:
  name, width = str(part.part), target.scorer.vocab_size
  if opened is not None:
    model = opened.load(target.config.dtype, target.mesh, layout == "split")
    return of_model(model, width, name)
  if part.kind in WORDS:
    return without_weights(part, width)
  if part.kind == "ngram":
    from specdec.engine import ngrams

    return LoadedDrafter(name, *ngrams.load(part.path, target.vocabulary, width))
  from specdec.engine import heads

  return LoadedDrafter(name, *heads.load(part.path, target))


def without_weights(part: Planned, vocab_size: int) -> LoadedDrafter:
  """A drafter that has learned nothing, for a target whose logits are `vocab_size` wide."""
  from specdec.drafters.copy import CopyDrafter
  from specdec.drafters.uniform import UniformDrafter

  if part.kind == "copy":
    match = {k: v for k, v in part.options.items() if k != "gamma"}
    return LoadedDrafter(str(part.part), CopyDrafter(vocab_size, **match), ())
  return LoadedDrafter(str(part.part), UniformDrafter(vocab_size), ())


def _cascade(inner: LoadedDrafter, gamma: int, outer: LoadedDrafter,
             target: Model) -> LoadedDrafter:
  """A T5 that drafts with the help of another drafter."""
  from specdec.drafters.cascade import CascadeDrafter
  from specdec.drafters.cascade import CascadeParams

  drafter = CascadeDrafter(outer.model.scorer, inner.drafter, target.scorer.vocab_size, gamma)
  return LoadedDrafter(f"{inner.name}+{outer.name}", drafter,
                       CascadeParams(outer.params, inner.params))


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
