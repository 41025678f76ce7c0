"""What training needs beyond what every user installs."""

import importlib.util

from specdec.errors import SpecdecError


def check() -> None:
  """Says what to install where the optimizers are missing; before they are imported.

  Raises:
    SpecdecError: optax is not installed.
  """
  if importlib.util.find_spec("optax") is None:
    raise SpecdecError("training needs optax, which is not installed; type: pip install "
                       "'specdec-jax[train]'")
