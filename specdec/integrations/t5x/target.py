"""The target out of a T5X job: its architecture, and its parameters as decode weights.

Called while T5X's own program is traced: the parameters are its arguments. So weights are
fused, and on a CPU turned, in the program, once per batch and ahead of its loop.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import flax.core
import jax
import jax.numpy as jnp

from specdec.checkpoints import architecture
from specdec.checkpoints.checkpoint import flat
from specdec.checkpoints.checkpoint import nested
from specdec.errors import SpecdecError
from specdec.models.t5.config import T5Config
from specdec.models.t5.scorer import T5Scorer

Array = jax.Array
PyTree = Any

DRAFTER = "drafter"
# Fields of T5X's configurations that say what shapes cannot, or can contradict them.
_CHECKED = ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers",
            "num_decoder_layers", "mlp_activations", "logits_via_embedding")


@dataclasses.dataclass(frozen=True)
class _Traced:
  """A parameter of a program, handled as an array on disk is when its name is looked up."""

  value: Array
  where: str = "the train state"

  @property
  def shape(self) -> tuple[int, ...]:
    return self.value.shape

  @property
  def ndim(self) -> int:
    return self.value.ndim

  def unstacked(self, axis: int) -> list["_Traced"]:
    layers = jnp.moveaxis(self.value, axis, 0)
    return [_Traced(layer) for layer in layers]

  def reshaped(self, shape: tuple[int, ...]) -> "_Traced":
    return _Traced(self.value.reshape(shape))


def without_drafter(params: Mapping[str, Any]) -> Mapping[str, Any]:
  """The parameters that T5X's own module knows."""
  return {name: value for name, value in params.items() if name != DRAFTER}


def dtype_of(module: Any) -> str:
  """Name of the dtype that a T5X module computes in.

  Raises:
    SpecdecError: the module has no configuration, or computes in another dtype than ours can.
  """
  config = getattr(module, "config", None)
  if config is None:
    raise SpecdecError(f"the module {type(module).__name__} has no config; expected T5X's T5: "
                       "t5x.examples.t5 or t5x.examples.scalable_t5, network.Transformer")
  name = jnp.dtype(getattr(config, "dtype", jnp.float32)).name
  if name not in ("float32", "bfloat16"):
    raise SpecdecError(f"network.T5Config.dtype is {name}; expected float32 or bfloat16")
  return name


def of(params: Mapping[str, Any], module: Any) -> tuple[T5Scorer, PyTree]:
  """The scorer of a T5X model and its weights.

  Args:
    params: of the train state, layers one by one or stacked (scanned).
    module: of the T5X model.

  Raises:
    SpecdecError: they are not those of a T5, or contradict the module's configuration.
  """
  dtype, config = dtype_of(module), module.config
  axis = getattr(config, "param_scan_axis", 1)
  if getattr(config, "scan_layers", False) and axis != 1:
    raise SpecdecError(f"network.T5Config.param_scan_axis is {axis}; expected 1, T5X's default")
  about = {name: getattr(config, name) for name in _CHECKED if hasattr(config, name)}
  arrays = {name: _Traced(value) for name, value in
            flat(flax.core.unfreeze(without_drafter(params))).items()}
  fields, arrays, _ = architecture.infer(
      arrays, {**about, "file": "network.T5Config"}, "this T5X job")
  try:
    scorer = T5Scorer(T5Config.from_dict({**fields, "dtype": dtype}))
  except (TypeError, ValueError) as error:
    raise SpecdecError(f"this T5X job: {error}") from error
  return scorer, scorer.prepare(nested({name: a.value for name, a in arrays.items()}))
