"""The checkpoints that T5X wrote, beside the project where they are at hand."""

import pathlib

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parents[3] / "shared" / "data" / "t5x_checkpoints"
NAMES = ("t5_1_1_tiny", "t5_1_1_tiny_scanned", "t5_1_1_tiny_orbax")

needed = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="T5X's checkpoints are not beside the project")


def golden(name: str) -> dict[str, np.ndarray]:
  """T5X's own inputs and outputs for one of the checkpoints."""
  with np.load(FOLDER / name / "golden.npz") as found:
    return dict(found)


def greedy(name: str) -> list[list[int]]:
  """The ids that T5X decodes greedily, each row up to its EOS."""
  rows = golden(name)["greedy"].tolist()
  return [row[:row.index(1) + 1] if 1 in row else row for row in rows]
