"""A trained pair at the cost of a larger one: real acceptance meets real cost.

What a call of a model costs follows from the shapes of its matrices, and what it says from
what is in them. A small trained model is put into the corner of larger matrices whose other
entries change nothing, so that its outputs stay what they were while every call reads and
multiplies as much as the large model would. Weights are arguments of the compiled programs, so
no compiler sees which of them are zero.

With d and D the widths of the small and of the large model:

* embedding, projections, heads, head size and feed-forward are filled up with zeros, so that
  the residual stream is 0 beyond its first d entries;
* the mean square of such a stream is d/D of what it was, so the norms' scales are multiplied
  by sqrt(d/D), which stays float32 in every dtype, and their epsilon by d/D;
* layers that are added copy the last one but for its output projections, which are 0;
* ids that are added have the output layer's column of id 0, the padding, and are masked in
  `T5Config.used_vocab_size`: their logits are -inf. A library that knows no such mask
  never prefers them either, as a tie goes to the lower id.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import numpy as np

from specdec.checkpoints import mapping
from specdec.checkpoints.checkpoint import flat
from specdec.checkpoints.checkpoint import nested
from specdec.engine import drafters
from specdec.engine import models
from specdec.engine.models import Model
from specdec.engine.pairs import Pair
from specdec.errors import SpecdecError
from specdec.models.t5 import sizes
from specdec.models.t5 import weights as weights_lib
from specdec.models.t5.config import T5Config

_SHAPE = ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers",
          "num_decoder_layers")
# A kernel between the residual stream and one of these is [D, ...], out of it [..., D].
_OUT_OF_STREAM = ("query", "key", "value")
_BLOCK_ENDS = ("/out/kernel", "/wo/kernel")


def widen(pair: Pair, target_size: str | T5Config = "base",
          drafter_size: str | T5Config = "small") -> Pair:
  """The same pair at the cost of larger models.

  Args:
    pair: trained; of any dtype, which stays.
    target_size: a public T5 v1.1 size, or the shape to take.
    drafter_size: likewise; not looked at for a drafter that is no T5.

  Returns:
    A pair whose models are `Model.widened` and named after the sizes. Drafters that live on a
    model's insides, which heads do, and cascades cannot be widened.

  Raises:
    SpecdecError: there is no such size, a model does not fit into it, or the drafter is of
      a kind that cannot be widened.
  """
  target_shape, drafter = _shape(target_size), pair.drafter
  fitting(pair.target, target_shape, target_size)
  if drafter.model is not None:
    drafter_shape = _shape(drafter_size)
    fitting(drafter.model, drafter_shape, drafter_size)
  elif hasattr(drafter.drafter, "scorer") or hasattr(drafter.drafter, "ends"):
    raise SpecdecError(f"the drafter {drafter.name} cannot be widened: it has parts of a model's "
                       "shape; expected a T5, copy, uniform or n-gram tables")
  target = widen_model(pair.target, target_size)
  width = target.scorer.vocab_size
  if drafter.model is not None:
    widened = drafters.of_model(widen_model(drafter.model, drafter_size), width)
  else:
    widened = dataclasses.replace(
        drafter, drafter=dataclasses.replace(drafter.drafter, vocab_size=width))
  return dataclasses.replace(pair, target=target, drafter=widened,
                             name=f"{pair.name} widened to {target.name} / {widened.name}")


def widen_model(model: Model, size: str | T5Config) -> Model:
  """One model of a pair; see `widen`."""
  config = fitting(model, _shape(size), size)
  old = {name: np.asarray(x) for name, x in flat(
      weights_lib.restore(model.weights, model.config)).items()}
  params = nested({name: _Leaf(shape, _maker(name, shape, old, model.config, config))
                   for name, shape in mapping.parameter_shapes(config.to_dict()).items()})
  name = f"t5_1_1_{size}" if isinstance(size, str) else model.name
  made = models.make_model(name, config, params, model.vocabulary, model.mesh,
                           model.scorer.split)
  return dataclasses.replace(made, widened=True)


def fitting(model: Model, shape: T5Config, size: str | T5Config) -> T5Config:
  """The architecture of a model at a larger shape.

  Raises:
    SpecdecError: something of the model is larger, or, at a size that is named, its
      architecture is not that of the size.
  """
  small = model.config
  named = size if isinstance(size, str) else "the shape"
  larger = [f"{name} {getattr(small, name)} against {getattr(shape, name)}"
            for name in _SHAPE if getattr(small, name) > getattr(shape, name)]
  if larger:
    raise SpecdecError(f"{model.name} does not fit into {named}: {', '.join(larger)}; expected a "
                       "size that is as large in everything")
  for name in ("mlp_activations", "logits_via_embedding") if isinstance(size, str) else ():
    if getattr(small, name) != getattr(shape, name):
      raise SpecdecError(f"{model.name} has {name} {getattr(small, name)!r} and {named} has "
                         f"{getattr(shape, name)!r}, so it would not cost as much; expected a "
                         "T5 v1.1")
  ratio = small.emb_dim / shape.emb_dim
  used = small.vocab_size if small.used_vocab_size is None else small.used_vocab_size
  return small.replace(
      layer_norm_epsilon=small.layer_norm_epsilon * ratio,
      used_vocab_size=None if used == shape.vocab_size else used,
      **{name: getattr(shape, name) for name in _SHAPE})


def _shape(size: str | T5Config) -> T5Config:
  return sizes.load(size) if isinstance(size, str) else size


@dataclasses.dataclass(frozen=True, eq=False)
class _Leaf:
  """A parameter that is made when it is read, so that few are held twice."""

  shape: tuple[int, ...]
  make: Callable[[], np.ndarray]

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    return self.make().astype(dtype or np.float32, copy=False)


def _maker(name: str, shape: tuple[int, ...], old: dict[str, np.ndarray], small: T5Config,
           large: T5Config) -> Callable[[], np.ndarray]:
  """What makes a parameter of the large model."""
  source, added = _source(name, small)
  if added and name.endswith(_BLOCK_ENDS):
    return lambda: np.zeros(shape, np.float32)
  return lambda: _filled(name, old[source], shape, small, large)


def _source(name: str, small: T5Config) -> tuple[str, bool]:
  """The small model's parameter that a large one's is made of; whether its layer is added."""
  stack, layer, *rest = name.split("/")
  if not layer.startswith("layers_"):
    return name, False
  last = getattr(small, f"num_{stack}_layers") - 1
  index = int(layer.removeprefix("layers_"))
  return "/".join([stack, f"layers_{min(index, last)}", *rest]), index > last


def _filled(name: str, x: np.ndarray, shape: tuple[int, ...], small: T5Config,
            large: T5Config) -> np.ndarray:
  """A parameter with zeros, or what does not matter, around it."""
  parts = name.split("/")
  if parts[-1] == "scale":
    factor = (small.emb_dim / large.emb_dim) ** 0.5
    if name == "decoder/decoder_norm/scale" and small.scaled_logits:
      # The network divides by sqrt(D) now, where it divided by sqrt(d).
      factor = 1.0
    return _corner(x * np.float32(factor), shape)
  if parts[-2] in _OUT_OF_STREAM:
    heads = _corner(x.reshape((x.shape[0], small.num_heads, small.head_dim)),
                    (shape[0], large.num_heads, large.head_dim))
    return heads.reshape(shape)
  if parts[-2] == "out":
    heads = _corner(x.reshape((small.num_heads, small.head_dim, x.shape[1])),
                    (large.num_heads, large.head_dim, shape[1]))
    return heads.reshape(shape)
  out = _corner(x, shape)
  if name == mapping.OUTPUT:
    out[:, x.shape[1]:] = out[:, :1]
  elif name == mapping.EMBEDDING and small.logits_via_embedding:
    out[x.shape[0]:] = out[:1]
  return out


def _corner(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  """An array in the corner of a larger one of zeros."""
  out = np.zeros(shape, x.dtype)
  out[tuple(map(slice, x.shape))] = x
  return out

