"""`pytorch_model.bin`: pickles, of which only tensors are taken."""

import pathlib
import pickle
from typing import Any
import warnings

import numpy as np

from specdec.checkpoints.checkpoint import FLOATS
from specdec.checkpoints.checkpoint import ArrayRef
from specdec.checkpoints.checkpoint import told
from specdec.errors import SpecdecError


def open_arrays(file: pathlib.Path) -> dict[str, ArrayRef]:
  """The arrays of a file, mapped and not read.

  `weights_only` lets nothing but tensors and plain containers out of the pickle, so no
  code in it is run.

  Raises:
    SpecdecError: torch is not installed, or the file holds something else.
  """
  arrays: dict[str, ArrayRef] = {}
  for key, tensor in _load(file).items():
    if not hasattr(tensor, "untyped_storage"):
      raise SpecdecError(f"{key} in {file} is {type(tensor).__name__}; expected tensors alone")
    dtype = FLOATS.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
      raise SpecdecError(f"{key} in {file} is {tensor.dtype}; expected floating point numbers, "
                         f"one of {', '.join(FLOATS)}")

    def fetch(index, key=key):
      # Loaded anew, so that what was read does not stay mapped into memory.
      return _values(_load(file)[key])[index]

    arrays[key] = ArrayRef(tuple(tensor.shape), dtype, str(file), fetch, f"{file}:{key}")
  return _without_second_names(file, arrays)


def _without_second_names(file: pathlib.Path, arrays: dict[str, ArrayRef]) -> dict[str, ArrayRef]:
  """Leaves out an output layer that is the embedding itself under another name."""
  tensors = _load(file)
  shared, output = tensors.get("shared.weight"), tensors.get("lm_head.weight")
  if shared is None or output is None or shared.data_ptr() != output.data_ptr():
    return arrays
  return {key: array for key, array in arrays.items() if key != "lm_head.weight"}


def _load(file: pathlib.Path) -> dict[str, Any]:
  try:
    import torch
  except ImportError as error:
    raise SpecdecError(f"{file} needs torch to be read; pip install 'specdec-jax[torch]', or "
                       "save the model as safetensors") from error
  def load(mmap: bool) -> Any:
    with warnings.catch_warnings():
      # About pickles of other versions, which is told below if it matters.
      warnings.simplefilter("ignore")
      return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)

  with told(str(file), "tensors written by torch.save"):
    try:
      try:
        found = load(mmap=True)
      except RuntimeError as error:
        if "mmap can only be used" not in str(error):
          raise
        found = load(mmap=False)  # The format before torch 1.6 cannot be mapped.
    except pickle.UnpicklingError as error:
      raise SpecdecError(
          f"{file} is not a plain file of tensors: its pickle is damaged or asks for something "
          "that only running code could give, and nothing in it was run; expected tensors "
          "written by torch.save, or safetensors") from error
  if not isinstance(found, dict):
    raise SpecdecError(f"{file} holds {type(found).__name__}; expected a table of tensors")
  return found


def _values(tensor: Any) -> np.ndarray:
  """A tensor's numbers as NumPy sees them; it knows bfloat16 only as 16 bits."""
  import torch

  if tensor.dtype == torch.bfloat16:
    return tensor.view(torch.int16).numpy().view(FLOATS["bfloat16"])
  return tensor.numpy()
