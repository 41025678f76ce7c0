"""The paper's numbers, read from `configs/paper`; each file says what its fields mean."""

import json
import pathlib
from typing import Any

TITLE = "Fast Inference from Transformers via Speculative Decoding"
SOURCE = "arXiv 2211.17192"

_PACKAGE = pathlib.Path(__file__).parents[1]
# Packed into the package by setup.py; in a working copy they stand beside it.
_FOLDERS = (_PACKAGE / "configs" / "paper", _PACKAGE.parent / "configs" / "paper")

_NAMES = {
    "ende": "EnDe", "cnndm": "CNN/DM", "lm1b": "lm1b", "dialog": "dialog",
    "t5_1_1_xxl": "T5-XXL", "t5_1_1_large": "T5-large", "t5_1_1_base": "T5-base",
    "t5_1_1_small": "T5-small", "gpt_97m": "GPT-like 97M", "gpt_6m": "GPT-like 6M",
    "lamda_137b": "LaMDA 137B", "lamda_8b": "LaMDA 8B", "lamda_2b": "LaMDA 2B",
    "lamda_100m": "LaMDA 100M",
}


def read(table: str) -> dict[str, Any]:
  """A table by name: `rows`, their `fields`, and under which setup they were measured.

  >>> read("operations")["rows"][0]
  {'alpha': 0.6, 'gamma': 2, 'operations': 1.53, 'speed_up': 1.96}
  """
  folder = next((f for f in _FOLDERS if f.is_dir()), _FOLDERS[0])
  return json.loads((folder / f"{table}.json").read_text(encoding="utf-8"))


def cost_ratios() -> dict[str, float]:
  """c of each drafter beside T5-XXL, from table 4.

  >>> cost_ratios()["t5_1_1_small"]
  0.02
  """
  return {row["drafter"]: row["cost_ratio"] for row in read("expected")["rows"]}


def display(name: str) -> str:
  """A model or task as the paper writes it; another name as it is.

  >>> display("t5_1_1_small"), display("demo")
  ('T5-small', 'demo')
  """
  return _NAMES.get(name, name)
