"""Pairs of a target and a drafter, by name, by folder or put together."""

import dataclasses
import json
import pathlib
from typing import Any

from specdec.core import verify
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.data.base import BaseVocabulary
from specdec.engine import drafters
from specdec.engine.drafters import LoadedDrafter
from specdec.engine.drafters import check_vocabularies
from specdec.engine.models import Model
from specdec.engine.models import open_model
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
  """

  name: str
  target: Model
  drafter: LoadedDrafter
  tasks: dict[str, str] = dataclasses.field(default_factory=dict)
  max_source_len: int = 512
  max_decode_len: int = 128

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
    return self.target.vocabulary

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
    """
    wanted = gamma > 0 if with_drafter is None else with_drafter
    chosen = verify.VERIFIERS[verifier]
    if not gamma and not chosen.coupled:
      # They all draw the same from p itself: one program for all of them.
      chosen = verify.TokenVerifier()
    return Method(self.target.scorer, self.drafter.drafter if wanted else None, gamma, chosen,
                  trace=trace, watch=watch)

  def weights(self, with_drafter: bool = True) -> Weights:
    """The weights that `method` takes, which must be with or without a drafter as well."""
    return Weights(self.target.weights, self.drafter.params if with_drafter else None)


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
  >>> folder = specdec.engine.pairs.ASSETS / "demo"
  >>> pair = specdec.load_pair(target=folder / "target", drafter=folder / "drafter")
  >>> pair.tasks
  {}
  """
  members, about = _members(pair, target, drafter)
  large, small = (open_model(path, vocabulary) for path in members)
  # Before any weights are read.
  check_vocabularies(large.name, large.vocabulary, small.name, small.vocabulary)
  name = str(pair) if target is None else f"{target} with {drafter}"
  return Pair(name, large.load(dtype), small.load(dtype), **about)


def pair_vocabulary(pair: str | pathlib.Path = "demo", *,
                    target: str | pathlib.Path | None = None,
                    drafter: str | pathlib.Path | None = None,
                    vocabulary: str | pathlib.Path | None = None) -> BaseVocabulary:
  """The vocabulary of what `load_pair` would load, without reading weights.

  Raises:
    SpecdecError: there is no such pair, or its vocabularies differ.
  """
  members, _ = _members(pair, target, drafter)
  large, small = (open_model(path, vocabulary, verify=False) for path in members)
  check_vocabularies(large.name, large.vocabulary, small.name, small.vocabulary)
  return large.vocabulary


def pair_members(pair: str | pathlib.Path = "demo"
                 ) -> tuple[str | pathlib.Path, str | pathlib.Path, dict[str, Any]]:
  """Paths of the target and the drafter of a pair, and what its file says besides.

  Raises:
    SpecdecError: there is no such pair.
  """
  (target, drafter), about = _members(pair, None, None)
  return target, drafter, about


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
