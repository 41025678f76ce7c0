"""Telling models apart without reading all of their weights."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec.engine.pairs import Pair

# Of each array: any training step changes nearly all numbers.
_SAMPLE = 64


def fingerprint(pair: Pair) -> dict[str, str]:
  """Checksums of a sample of each array of target and drafter, on the host.

  The same weights have the same one on every device, in the same precision and version.
  """
  weights = pair.weights()
  return {role: hashlib.sha256(_sample(tree).tobytes()).hexdigest()[:16]
          for role, tree in (("target", weights.target), ("drafter", weights.drafter))}


def _sample(tree: Any) -> np.ndarray:
  leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.size]
  if not leaves:
    return np.zeros(0, np.float32)
  return np.asarray(_gather(leaves))


@jax.jit
def _gather(leaves: list[jax.Array]) -> jax.Array:
  return jnp.concatenate([leaf.reshape(-1)[:_SAMPLE].astype(jnp.float32) for leaf in leaves])
