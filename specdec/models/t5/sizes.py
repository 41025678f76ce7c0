"""The public T5 v1.1 sizes, read from `configs/t5`."""

import pathlib

from specdec.errors import SpecdecError
from specdec.models.t5.config import T5Config

_PREFIX = "v1_1_"
_PACKAGE = pathlib.Path(__file__).parents[2]
# Packed into the package by setup.py; in a working copy they stand beside it.
_FOLDERS = (_PACKAGE / "configs" / "t5", _PACKAGE.parent / "configs" / "t5")


def _folder() -> pathlib.Path:
  return next((f for f in _FOLDERS if f.is_dir()), _FOLDERS[0])


def names() -> list[str]:
  """Names of the sizes, by file name without its prefix."""
  return sorted(p.stem.removeprefix(_PREFIX) for p in _folder().glob(f"{_PREFIX}*.json"))


def load(name: str) -> T5Config:
  """The architecture of a size.

  >>> load("base").emb_dim
  768

  Raises:
    SpecdecError: there is no such size.
  """
  if name not in names():
    raise SpecdecError(f"there is no T5 size {name!r}; expected one of {', '.join(names())}")
  return T5Config.from_json(_folder() / f"{_PREFIX}{name}.json")
