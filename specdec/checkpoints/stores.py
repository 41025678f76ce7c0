"""Arrays and files of a checkpoint through tensorstore: local folders and gs:// alike."""

import math
import os
import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np

from specdec.checkpoints.checkpoint import FLOATS
from specdec.checkpoints.checkpoint import ArrayRef
from specdec.checkpoints.checkpoint import told
from specdec.errors import SpecdecError

GCS = "gs://"
# Chunks of this size need no reason.
_CHUNK_BYTES = 64 * 2**20
# Half a minute of trying again; tensorstore's own default would be a quarter of an hour, which
# is long to wait for a bucket that cannot be reached at all.
_RETRIES = {"gcs_request_retries": {"max_retries": 6, "max_delay": "8s"}}


def is_remote(path: str | pathlib.Path) -> bool:
  """Whether a path is on Google Cloud Storage."""
  return str(path).startswith(GCS)


def kvstore(path: str | pathlib.Path) -> dict[str, Any]:
  """tensorstore's spec of a folder."""
  if is_remote(path):
    bucket, _, rest = str(path).removeprefix(GCS).partition("/")
    return {"driver": "gcs", "bucket": bucket, "path": rest.rstrip("/") + "/" if rest else "",
            "context": _RETRIES}
  return {"driver": "file", "path": os.path.abspath(path) + "/"}


def join(path: str | pathlib.Path, *parts: str) -> str:
  """A path below a folder, local or remote."""
  return "/".join([str(path).rstrip("/"), *parts])


def names(path: str | pathlib.Path) -> list[str]:
  """Files and folders directly in a folder, sorted; [] when there is none.

  Raises:
    SpecdecError: it cannot be listed.
  """
  if not is_remote(path):
    try:
      return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
      return []
    except OSError as error:
      raise SpecdecError(f"cannot look into {path}: {error.strerror}") from error
  import tensorstore as ts

  with told(str(path), "a bucket that can be read; log in with gcloud auth application-default "
            "login, or copy the folder here"):
    found = ts.KvStore.open(kvstore(path)).result().list().result()
  return sorted({key.decode().split("/")[0] for key in found})


def read_file(path: str | pathlib.Path, name: str, expected: str = "") -> bytes | None:
  """Content of a file in a folder; None when there is none.

  Args:
    path: of the folder, local or gs://.
    name: of the file.
    expected: what to say where it cannot be read; by default that the checkpoint is damaged.

  Raises:
    SpecdecError: it cannot be read.
  """
  if not is_remote(path):
    try:
      return (pathlib.Path(path) / name).read_bytes()
    except FileNotFoundError:
      return None
    except OSError as error:
      raise SpecdecError(f"cannot read {join(path, name)}: {error.strerror}") from error
  import tensorstore as ts

  with told(join(path, name), expected):
    found = ts.KvStore.open(kvstore(path)).result().read(name).result()
  return found.value if found.state == "value" else None


class ZarrPlace(NamedTuple):
  """Where a zarr array is.

  Attributes:
    store: tensorstore's spec of its folder.
    where: its path, for error messages.
    zarr3: whether it is of version 3 of zarr.
  """

  store: dict[str, Any]
  where: str
  zarr3: bool = False


def zarr_arrays(places: dict[str, ZarrPlace]) -> dict[str, ArrayRef]:
  """Arrays stored as zarr, opened together and not read.

  A chunk that is not there is an error; zarr by itself would read zeros.

  Raises:
    SpecdecError: an array is not there, or holds no floating point numbers.
  """
  import tensorstore as ts

  context = ts.Context()  # One for all, so that a database is opened once.
  opened = {}
  for name, place in places.items():
    spec = {"driver": "zarr3" if place.zarr3 else "zarr", "kvstore": place.store,
            "fill_missing_data_reads": False}
    with told(place.where):
      opened[name] = ts.open(spec, open=True, read=True, context=context)
  return {name: _zarr_array(opened[name], place.where) for name, place in places.items()}


def _zarr_array(opening: Any, where: str) -> ArrayRef:
  with told(where, "an array of this checkpoint"):
    array = opening.result()
  dtype = FLOATS.get(array.dtype.name)
  if dtype is None:
    raise SpecdecError(f"{where} holds {array.dtype.name}; expected floating point numbers, "
                       f"one of {', '.join(FLOATS)}")
  # A chunk on disk is decoded as a whole, in memory that tensorstore cannot do without: where
  # there is not as much, it ends the process.
  chunk = array.chunk_layout.read_chunk.shape
  size, most = math.prod(chunk) * dtype.itemsize, 2 * math.prod(array.shape) * dtype.itemsize
  if size > max(most, _CHUNK_BYTES):
    raise SpecdecError(f"{where} declares chunks of {size} bytes for an array of {most // 2}; "
                       "expected the chunks of this array: the checkpoint is damaged, copy it "
                       "again")
  return ArrayRef(tuple(array.shape), dtype, where,
                  lambda index: np.asarray(array[index].read().result()),
                  blocks=(0, max(1, chunk[0])) if array.ndim and chunk[0] else None)
