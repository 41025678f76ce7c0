"""Heads as they are kept: for one target, and refused for any other."""

import hashlib
import json
import pathlib
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from specdec.checkpoints import drafter_folder
from specdec.drafters.heads import HeadsDrafter
from specdec.engine.models import Model
from specdec.errors import SpecdecError

# Rows of the embedding that are looked at.
_ROWS = 64


def fingerprint(target: Model) -> str:
  """Tells targets apart by their architecture and a few of their numbers.

  The same in every dtype and layout that a model is loaded in: of its numbers it takes the
  decoder's norms, which are always float32, and some rows of the embedding in bfloat16.
  """
  config = {k: v for k, v in target.config.to_dict().items() if k not in ("dtype", "dropout_rate")}
  digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
  decoder = target.weights["decoder"]
  last = decoder[f"layers_{target.config.num_decoder_layers - 1}"]
  for norm in (decoder["decoder_norm"], last["pre_mlp_layer_norm"],
               last["pre_self_attention_layer_norm"]):
    digest.update(np.asarray(norm["scale"], np.float32).tobytes())
  rows = np.asarray(target.weights["token_embedder"]["embedding"][:_ROWS])
  digest.update(rows.astype(ml_dtypes.bfloat16).tobytes())
  return digest.hexdigest()


def of_params(target: Model, heads: dict[str, Any]) -> tuple[HeadsDrafter, dict[str, Any]]:
  """The drafter that heads make with their target, and its parameters.

  Args:
    target: M_p; its arrays are shared, not copied.
    heads: kernel [k, D, 2 D] and bias [k, D].
  """
  scorer = target.scorer
  drafter = HeadsDrafter(scorer.vocab_size, heads["bias"].shape[0], scorer.config.emb_dim, scorer)
  return drafter, {
      "target": scorer.ends(target.weights),
      # In the target's precision: a call reads all of them.
      "heads": {"kernel": jnp.asarray(heads["kernel"], scorer.config.dtype),
                "bias": jnp.asarray(heads["bias"], jnp.float32)}}


def save(path: str | pathlib.Path, target: Model, heads: dict[str, Any], source: str) -> None:
  """Writes heads for a target into a new folder.

  Raises:
    SpecdecError: the folder exists or cannot be written.
  """
  arrays = {name: np.asarray(array, np.float32) for name, array in heads.items()}
  drafter_folder.save(
      path, kind="heads", arrays=arrays, vocabulary=target.vocabulary.fingerprint,
      settings={"heads": int(arrays["bias"].shape[0]), "emb_dim": target.config.emb_dim},
      target=fingerprint(target), source=source)


def load(path: str | pathlib.Path, target: Model) -> tuple[HeadsDrafter, dict[str, Any]]:
  """Reads heads.

  Args:
    path: a folder that `save` wrote.
    target: M_p.

  Returns:
    The drafter, whose `max_gamma` is the most that it can draft, and its parameters.

  Raises:
    SpecdecError: the folder is damaged, holds another kind of drafter, or was made for
      another target.
  """
  found = drafter_folder.load(path)
  if found.kind != "heads":
    raise SpecdecError(f"{path} is a drafter of kind {found.kind!r}; expected heads")
  if found.target != fingerprint(target):
    raise SpecdecError(f"the heads in {path} were trained for another target than {target.name} "
                       f"({found.source or 'source unknown'}); expected heads of this very model: "
                       "specdec distill --kind=heads makes some")
  size, count = target.config.emb_dim, found.whole("heads", 1, 64)
  arrays = {"kernel": found.array("kernel", "f", (count, size, 2 * size)),
            "bias": found.array("bias", "f", (count, size))}
  for name, array in arrays.items():
    if not np.isfinite(array).all():
      raise SpecdecError(f"array {name!r} of {path} holds numbers that are not finite; expected "
                         "weights: train the heads again")
  return of_params(target, arrays)
