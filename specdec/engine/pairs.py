"""Pairs of a target and a drafter, by name, by folder or put together."""

import dataclasses
import json
import os
import pathlib
from typing import Any

from jax.sharding import Mesh

from specdec.core import verify
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.data.base import BaseVocabulary
from specdec.engine import drafter_specs
from specdec.engine import drafters
from specdec.engine import mesh as mesh_lib
from specdec.engine.drafter_specs import Known
from specdec.engine.drafter_specs import Part
from specdec.engine.drafters import LoadedDrafter
from specdec.engine.drafters import check_vocabularies
from specdec.engine.models import Model
from specdec.engine.models import open_model
from specdec.engine.settings import MAX_GAMMA
from specdec.engine.settings import whole
from specdec.errors import SpecdecError

ASSETS = pathlib.Path(__file__).parent.parent / "assets"


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
  """A target and the drafter that speeds it up.

  Attributes:
    name: as given to `load_pair`.
    target: M_p.
    drafter: M_q, of any kind. A `Model` that is given is wrapped.
    tasks: prefixes by task name.
    max_source_len: encoder tokens beyond this are cut, EOS kept.
    max_decode_len: default limit of generated tokens.
    known: what `with_drafter` may be given beside kinds and paths.
    drafter_layout: of a T5 drafter on several devices, one of `mesh.DRAFTER_LAYOUTS`.
  """

  name: str
  target: Model
  drafter: LoadedDrafter
  tasks: dict[str, str] = dataclasses.field(default_factory=dict)
  max_source_len: int = 512
  max_decode_len: int = 128
  known: Known = dataclasses.field(default_factory=Known, repr=False)
  drafter_layout: str = "split"

  def __post_init__(self):
    width, drafter = self.target.scorer.vocab_size, self.drafter
    model = drafter if isinstance(drafter, Model) else drafter.model
    if model is not None:
      check_vocabularies(self.target.name, self.target.vocabulary, model.name, model.vocabulary)
    if isinstance(drafter, Model):
      object.__setattr__(self, "drafter", drafters.of_model(drafter, width))
    elif drafter.drafter.vocab_size != width:
      raise SpecdecError(f"the drafter {drafter.name} is for {drafter.drafter.vocab_size} "
                         f"logits, and {self.target.name} has {width}; expected a drafter that "
                         "was loaded for this target")

  @property
  def vocabulary(self) -> BaseVocabulary:
    """Of the target's ids, and so of all outputs."""
    return self.target.vocabulary

  @property
  def drafter_names(self) -> list[str]:
    """What `with_drafter` may be given without a path: its own, its others, and copy."""
    return list(dict.fromkeys([self.drafter.name, *self.known.folders, "copy"]))

  @property
  def max_gamma(self) -> int:
    """The most tokens that the drafter can draft at a time."""
    return min(getattr(self.drafter.drafter, "max_gamma", MAX_GAMMA), MAX_GAMMA)

  def with_drafter(self, drafter: str | pathlib.Path) -> "Pair":
    """The same target with another drafter.

    Args:
      drafter: see `engine.drafter_specs`.

    Returns:
      Another pair; this one stays as it is.

    Raises:
      SpecdecError: it cannot be loaded, or is not for this target.
    """
    parts = drafter_specs.plan(str(drafter), self.known)
    opened = drafters.open_parts(parts, self.target, self.known.vocabulary)
    return dataclasses.replace(
        self, drafter=drafters.load(parts, opened, self.target, self.drafter_layout),
        name=f"{self.known.pair or self.name} with {drafter}")

  def method(self, gamma: int, trace: bool = False, *, verifier: str = "token",
             watch: bool = False, with_drafter: bool | None = None) -> Method:
    """The decoding method at a gamma.

    Args:
      gamma: tokens drafted per iteration; 0 is plain decoding with the target.
      trace: keep what happened in every iteration.
      verifier: a name out of `core.verify.VERIFIERS`.
      watch: see `core.state.Method`.
      with_drafter: carry the drafter along, which a run of several gammas must do in each
        of them, 0 included; by default with a gamma of 1 or more.

    Returns:
      Static settings for `core.loop`.
    """
    wanted = gamma > 0 if with_drafter is None else with_drafter
    chosen = verify.VERIFIERS[verifier]
    if not gamma and not chosen.coupled:
      # They all draw the same from p itself: one program for all of them.
      chosen = verify.TokenVerifier()
    return Method(self.target.scorer, self.drafter.drafter if wanted else None, gamma, chosen,
                  trace=trace, watch=watch)

  def weights(self, with_drafter: bool = True) -> Weights:
    """The weights that `method` takes.

    Args:
      with_drafter: as the method has one.

    Returns:
      Prepared weights of the target, and what the drafter takes.
    """
    return Weights(self.target.weights, self.drafter.params if with_drafter else None)


def pair_names() -> list[str]:
  """Names of the pairs that come with the package."""
  return sorted(p.parent.name for p in ASSETS.glob("*/pair.json"))


def load_pair(pair: str | pathlib.Path = "demo", dtype: str | None = None, *,
              target: str | pathlib.Path | None = None,
              drafter: str | pathlib.Path | None = None,
              vocabulary: str | pathlib.Path | None = None,
              mesh: str | Mesh | None = None, drafter_layout: str = "split") -> Pair:
  """Loads a pair by name, from a folder with a `pair.json`, or from a target and a drafter.

  Args:
    pair: a name out of `pair_names()` or a path; not looked at when a target is named.
    dtype: see `load_model`.
    target: a model of any layout that `load_model` reads; needs a `drafter`.
    drafter: in place of the pair's own: a T5 with the target's pieces, "copy", "uniform",
      n-gram tables, heads or a cascade; see `engine.drafter_specs`.
    vocabulary: of all models; see `load_model`.
    mesh: all devices as sizes by axis, such as "data:4,model:2": batches are split over
      `data`, heads, feed-forward and vocabulary over `model`. What does not divide is held
      whole by every device, and a log line says so.
    drafter_layout: of T5 drafters on a mesh: "split" as the target, or "whole" on every
      device, which saves a small one its communication.

  Returns:
    The pair, on the first device or on the mesh. With a target of your own it has no tasks:
    texts get no prefix.

  Raises:
    SpecdecError: there is no such pair or drafter, vocabularies differ, or the mesh does not
      fit the devices.

  >>> import specdec
  >>> folder = specdec.engine.pairs.ASSETS / "demo"
  >>> pair = specdec.load_pair(target=folder / "target", drafter=folder / "drafter")
  >>> pair.tasks
  {}
  """
  mesh_lib.check(None, drafter_layout)
  devices = mesh_lib.make(mesh)
  chosen = _choose(pair, target, drafter, vocabulary)
  large = open_model(chosen.target, vocabulary)
  # Nothing is read for long before all of it is known to go together.
  parts = drafter_specs.plan(chosen.drafter, chosen.known)
  opened = drafters.open_parts(parts, large, vocabulary)
  model = large.load(dtype, devices)
  return Pair(chosen.name, model, drafters.load(parts, opened, model, drafter_layout),
              known=chosen.known, drafter_layout=drafter_layout, **chosen.about)


def check_pair(pair: str | pathlib.Path = "demo", *,
               target: str | pathlib.Path | None = None,
               drafter: str | pathlib.Path | None = None,
               mesh: str | None = None, drafter_layout: str = "split") -> None:
  """Refuses what `load_pair` would, as far as it shows without opening a model.

  Raises:
    SpecdecError: there is no such pair, the drafter is misspelt, or the mesh does not fit the
      devices.
  """
  mesh_lib.check(mesh, drafter_layout)
  chosen = _choose(pair, target, drafter, None)
  drafter_specs.plan(chosen.drafter, chosen.known)


def pair_vocabulary(pair: str | pathlib.Path = "demo", *,
                    target: str | pathlib.Path | None = None,
                    drafter: str | pathlib.Path | None = None,
                    vocabulary: str | pathlib.Path | None = None) -> BaseVocabulary:
  """The vocabulary of what `load_pair` would load, without reading weights.

  Raises:
    SpecdecError: there is no such pair, or its vocabularies differ.
  """
  chosen = _choose(pair, target, drafter, vocabulary)
  large = open_model(chosen.target, vocabulary, verify=False)
  drafters.open_parts(drafter_specs.plan(chosen.drafter, chosen.known), large, vocabulary,
                      verify=False)
  return large.vocabulary


def pair_target(pair: str | pathlib.Path = "demo"
                ) -> tuple[str | pathlib.Path, str | pathlib.Path, dict[str, Any]]:
  """Paths of a pair's target and of its own drafter, and what its file says besides.

  Raises:
    SpecdecError: there is no such pair.
  """
  choice = _choose(pair, None, None, None)
  return choice.target, choice.known.folders[choice.drafter[0].name], choice.about


@dataclasses.dataclass(frozen=True)
class _Choice:
  """What is to be loaded.

  Attributes:
    name: of the pair.
    target: path of the target.
    drafter: a spec, or its parts.
    known: what the spec may name.
    about: other fields of `Pair`.
  """

  name: str
  target: str | pathlib.Path
  drafter: str | tuple[Part, ...]
  known: Known
  about: dict[str, Any]


def _choose(pair: str | pathlib.Path, target: str | pathlib.Path | None,
            drafter: str | pathlib.Path | None,
            vocabulary: str | pathlib.Path | None) -> _Choice:
  if target is not None:
    if drafter is None:
      raise SpecdecError("a target needs a drafter, and only the target is named; expected the "
                         "drafter too: copy, uniform, or a model with the target's pieces")
    known = Known(str(target), {}, target, vocabulary)
    return _Choice(f"{target} with {drafter}", target, str(drafter), known, {})
  folder = find_pair(pair)
  about = _read_pair(folder / "pair.json")
  path, own = _member(folder, about.pop("target")), about.pop("drafter")
  folders = {name: _member(folder, named) for name, named in about.pop("drafters", {}).items()}
  known = Known(str(pair), {own: _member(folder, own), **folders}, path, vocabulary)
  if drafter is None:
    return _Choice(str(pair), path, (Part(own),), known, about)
  return _Choice(f"{pair} with {drafter}", path, str(drafter), known, about)


def _member(folder: pathlib.Path, named: str) -> str | pathlib.Path:
  """A model that a pair file names: below the file's folder, anywhere, or on the hub."""
  below = folder / named
  return named if "/" in named and not os.path.lexists(below) else below


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
  """Reads a pair.json: folders of target and drafters, and settings of `Pair`."""
  try:
    about = json.loads(path.read_text(encoding="utf-8"))
  except OSError as error:
    raise SpecdecError(f"cannot read {path}: {error.strerror}") from error
  except (ValueError, RecursionError) as error:
    raise SpecdecError(f"{path} is not JSON: {error}") from error
  fields = dict(about) if isinstance(about, dict) else {}
  fields = {k: v for k, v in fields.items() if k in (
      "target", "drafter", "drafters", "tasks", "max_source_len", "max_decode_len")}
  for role in ("target", "drafter"):
    if not isinstance(fields.get(role), str):
      raise SpecdecError(f"{path} names no {role}; expected JSON with the folders of "
                         '"target" and "drafter"')
  named = fields.get("drafters", {})
  if not isinstance(named, dict) or not all(isinstance(v, str) for v in named.values()):
    raise SpecdecError(f'"drafters" in {path} is {named!r}; expected folders by name')
  drafter_specs.check_names(named, str(path))
  tasks = fields.get("tasks", {})
  if not isinstance(tasks, dict) or not all(isinstance(v, str) for v in tasks.values()):
    raise SpecdecError(f'"tasks" in {path} is {tasks!r}; expected prefixes by task name')
  for name, low in (("max_source_len", 2), ("max_decode_len", 1)):
    if name in fields:
      whole(f'"{name}" in {path}', fields[name], low, 2**20)
  return fields
