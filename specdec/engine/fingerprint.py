"""Telling models apart without reading all of their weights."""

import hashlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec.engine.pairs import Pair

# Of each array: any training step changes nearly all numbers.
_SAMPLE = 64
# What stands behind its neighbour where the two are one kernel, which they are on a single
# device: the sample is of the first.
_BEHIND = re.compile(r"decoder/.*(self_attention/(key|value)|mlp/wi_[1-9])/kernel")


def fingerprint(pair: Pair) -> dict[str, str]:
  """Checksums of a sample of each array of target and drafter, on the host.

  The same weights have the same one on every device, in the same precision and version.
  """
  weights = pair.weights()
  return {role: hashlib.sha256(_sample(tree).tobytes()).hexdigest()[:16]
          for role, tree in (("target", weights.target), ("drafter", weights.drafter))}


def _sample(tree: Any) -> np.ndarray:
  leaves = [leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
            if leaf.size and not _BEHIND.search(_name(path))]
  if not leaves:
    return np.zeros(0, np.float32)
  return np.asarray(_gather(leaves))


def _name(path: Any) -> str:
  return jax.tree_util.keystr(path, simple=True, separator="/")


@jax.jit
def _gather(leaves: list[jax.Array]) -> jax.Array:
  return jnp.concatenate([_first(leaf).astype(jnp.float32) for leaf in leaves])


def _first(leaf: jax.Array) -> jax.Array:
  # Rows first: an array that several devices share is not to be gathered.
  rows = -(-_SAMPLE // max(leaf[:1].size, 1)) if leaf.ndim else 1
  return (leaf[:rows] if leaf.ndim else leaf).reshape(-1)[:_SAMPLE]
