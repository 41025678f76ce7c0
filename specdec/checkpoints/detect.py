"""Which layout a path holds, and the checkpoint in it."""

import os
import pathlib
import re

from specdec.checkpoints import bundle
from specdec.checkpoints import hf
from specdec.checkpoints import hub
from specdec.checkpoints import stores
from specdec.checkpoints import t5x
from specdec.checkpoints.checkpoint import Checkpoint
from specdec.errors import SpecdecError

LAYOUTS = ("auto", "bundle", "t5x", "hf")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
EXPECTED = ("expected a specdec bundle (model.json), a T5X checkpoint (checkpoint, _METADATA or "
            "checkpoint_N), or a Hugging Face model (config.json with its weights)")


def open_checkpoint(path: str | pathlib.Path, layout: str = "auto",
                    verify: bool = True) -> Checkpoint:
  """Looks at a checkpoint of any layout without reading its arrays.

  Args:
    path: a local folder, a gs:// folder, or the name of a model on Hugging Face's hub
      (`owner/name`) where there is no such folder.
    layout: one of `LAYOUTS`.
    verify: whether a bundle's files are compared with their checksums.

  Raises:
    SpecdecError: there is nothing there, or it is no T5 or damaged.
  """
  path = str(path)
  if not stores.is_remote(path) and not os.path.lexists(path):
    if _HUB_NAME.fullmatch(path) and layout in ("auto", "hf"):
      return hf.open_checkpoint(hub.fetch(path))
    raise SpecdecError(f"there is no folder {path}; {EXPECTED}")
  if layout == "auto":
    layout = _layout(path)
  if layout == "bundle":
    return bundle.open_checkpoint(path, verify)
  if not stores.is_remote(path) and not os.path.isdir(path):
    raise SpecdecError(f"{path} is a file; {EXPECTED}, each of them a folder")
  return (hf if layout == "hf" else t5x).open_checkpoint(path)


def _layout(path: str) -> str:
  if not stores.is_remote(path) and not os.path.isdir(path):
    raise SpecdecError(f"{path} is a file; {EXPECTED}, each of them a folder")
  names = set(stores.names(path))
  if not names:
    raise SpecdecError(f"{path} is empty; {EXPECTED}")
  if "model.json" in names:
    return "bundle"
  if hf.looks_like(names):
    return "hf"
  if t5x.looks_like(path):
    return "t5x"
  if "pair.json" in names:
    raise SpecdecError(f"{path} is a pair of models; name one of its two folders, or give it as "
                       "--pair")
  if "config.json" in names:
    return "hf"
  if "params" in names:
    return "bundle"
  raise SpecdecError(f"{path} holds no model ({', '.join(sorted(names)[:4])}); {EXPECTED}")
