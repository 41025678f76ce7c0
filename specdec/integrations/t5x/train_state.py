"""Where the drafter's weights enter a T5X job: its train state.

T5X hands `train_state.params` to every program that it builds, sharded as its partitioner
says. So both models are in there, the drafter below `drafter`: weights in a closure would be
embedded in the program. Every way that T5X has of restoring a checkpoint ends in
`train_state.restore_state`; the state that this initializer shows to the checkpointers knows
the target alone, and adds the drafter, read from a checkpoint of its own, at that place.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import flax.core
from flax.linen import partitioning as flax_partitioning
import flax.struct
import jax
import numpy as np
from t5x import train_state as t5x_train_state
from t5x import utils

from specdec.checkpoints.checkpoint import flat
from specdec.checkpoints.checkpoint import nested
from specdec.errors import SpecdecError
from specdec.integrations.t5x.drafter import OpenDrafter
from specdec.integrations.t5x.model import SpeculativeModel
from specdec.integrations.t5x.target import DRAFTER

PyTree = Any
PartitionSpec = jax.sharding.PartitionSpec


class _TargetState(t5x_train_state.InferenceState):
  """The target's train state, which is restored together with the drafter.

  Attributes:
    drafter: reads the drafter's parameters in a dtype.
  """

  drafter: Callable[[np.dtype], PyTree] | None = flax.struct.field(
      pytree_node=False, default=None)

  def restore_state(self, state_dict: Mapping[str, Any]) -> t5x_train_state.InferenceState:
    target = t5x_train_state.InferenceState(
        step=None, params=self.params, params_axes=self.params_axes).restore_state(state_dict)
    dtypes = {x.dtype for x in jax.tree.leaves(target.params) if hasattr(x, "dtype")}
    # T5X restores all parameters in one dtype: the drafter's are kept in it as well.
    dtype = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float32)
    return target.replace(params=_with(target.params, self.drafter(dtype)))


class TrainStateInitializer(utils.TrainStateInitializer):
  """Bind `evaluate.train_state_initializer_cls` or `infer.train_state_initializer_cls` to it."""

  def __init__(self, optimizer_def: Any, init_fn: Callable[..., Any],
               input_shapes: Mapping[str, Any], partitioner: Any,
               input_types: Mapping[str, Any] | None = None):
    model = getattr(init_fn, "__self__", None)
    if not isinstance(model, SpeculativeModel):
      raise SpecdecError(f"the model of this job is a {type(model).__name__}; expected a "
                         "SpeculativeModel: add MODEL = @speculative.SpeculativeModel() after "
                         "the file that sets MODEL")
    if optimizer_def is not None:
      raise SpecdecError("SpeculativeModel decodes and is not trained: train its baseline, "
                         "t5x.models.EncoderDecoderModel, and then decode with the checkpoint")
    super().__init__(optimizer_def, init_fn, input_shapes, partitioner, input_types)
    opened = model.drafter
    opened.check(type(model.module).__name__, model.output_vocabulary)
    self._target_axes = self.train_state_axes
    specs = _mesh_axes(opened, partitioner)
    self.train_state_axes = self._target_axes.replace(
        params=_with(self._target_axes.params, nested(specs)))
    loaded: dict[np.dtype, PyTree] = {}

    def load(dtype: np.dtype) -> PyTree:
      # Several checkpoints of a target may be restored one after the other.
      if dtype not in loaded:
        loaded.clear()
        loaded[dtype] = _read(opened, specs, partitioner.mesh, dtype)
      return loaded[dtype]

    shape = self.global_train_state_shape
    self.global_train_state_shape = _TargetState(
        step=shape.step, params=shape.params, params_axes=shape.params_axes,
        flax_mutables=shape.flax_mutables, flax_mutables_axes=shape.flax_mutables_axes,
        drafter=load)

  def from_scratch(self, init_rng: jax.Array) -> t5x_train_state.InferenceState:
    """The target alone: what T5X falls back on for what its checkpoint lacks."""
    whole, self.train_state_axes = self.train_state_axes, self._target_axes
    try:
      return super().from_scratch(init_rng)
    finally:
      self.train_state_axes = whole


def _with(params: Mapping[str, Any], drafter: PyTree) -> Any:
  """Parameters of the target with those of the drafter, if it has any, beside them."""
  params = flax.core.unfreeze(params)
  if DRAFTER in params:
    raise SpecdecError(f"the target has parameters named {DRAFTER!r} itself; expected those of a "
                       "T5 alone")
  return flax.core.freeze({**params, DRAFTER: drafter} if drafter else params)


def _mesh_axes(opened: OpenDrafter, partitioner: Any) -> dict[str, PartitionSpec]:
  """How the partitioner lays out each parameter of the drafter, by name.

  What its mesh does not divide evenly is held whole by every device: a drafter is small.
  """
  if not opened.arrays:
    return {}
  axes = {f"{name}_axes": flax_partitioning.AxisMetadata(names)
          for name, names in opened.axes().items()}
  state = t5x_train_state.InferenceState.create(flax.core.freeze(
      {"params": opened.shapes(), "params_axes": nested(axes)}))
  found = flat(flax.core.unfreeze(partitioner.get_mesh_axes(state).params))
  return {name: _even(found[name], array.shape, partitioner.mesh)
          for name, array in opened.arrays.items()}


def _even(spec: PartitionSpec | None, shape: tuple[int, ...], mesh: Any) -> PartitionSpec:
  sharding = jax.sharding.NamedSharding(mesh, spec or PartitionSpec())
  try:
    sharding.shard_shape(shape)
  except ValueError:
    return PartitionSpec()
  return sharding.spec


def _read(opened: OpenDrafter, specs: Mapping[str, PartitionSpec], mesh: Any,
          dtype: np.dtype) -> PyTree:
  """Reads the drafter onto the devices of a mesh."""
  out = {}
  for name, array in opened.arrays.items():
    values = array.read(dtype=dtype)
    out[name] = jax.make_array_from_callback(
        values.shape, jax.sharding.NamedSharding(mesh, specs[name]),
        lambda index, values=values: values[index])
  return nested(out)
