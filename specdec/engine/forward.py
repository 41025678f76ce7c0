"""One forward pass with one layer's weights in memory at a time.

A conversion ends with it, so that a model which does not compute is found before its
folder gets a name; it must not need more memory than the conversion did.
"""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec.checkpoints import mapping
from specdec.checkpoints.checkpoint import nested
from specdec.errors import SpecdecError
from specdec.models.t5 import layers
from specdec.models.t5 import network
from specdec.models.t5 import relpos
from specdec.models.t5.config import T5Config

Read = Callable[[str], np.ndarray]


def logits(config: T5Config, read: Read, encoder_ids: np.ndarray,
           decoder_ids: np.ndarray) -> np.ndarray:
  """Teacher-forced logits in float32.

  Args:
    config: the architecture.
    read: gives a parameter by our name; called once for each, and once more for an
      embedding that is the output layer too.
    encoder_ids: int [B, S], without padding.
    decoder_ids: int [B, T].

  Returns:
    float32 [B, T, V].

  Raises:
    SpecdecError: numbers stop being finite; says where.
  """
  config = config.replace(dtype="float32", dropout_rate=0.0)
  stacks = _Layers(config, read)
  table = read(mapping.EMBEDDING)
  x, y = (jnp.asarray(table[ids], jnp.float32) for ids in (encoder_ids, decoder_ids))
  del table

  encode = jax.jit(lambda p, x, bias: network.EncoderLayer(config).apply({"params": p}, x, bias))
  for i, (layer, bias) in enumerate(stacks.of("encoder", x.shape[1])):
    x = encode(layer, x, bias)
    _check(x, f"encoder layer {i}")
  encoded = stacks.norm("encoder", x)

  causal = layers.mask_bias(jnp.tril(jnp.ones((y.shape[1],) * 2, bool)))

  @jax.jit
  def decode(p, y, bias, encoded):
    module = network.DecoderLayer(config)
    cross = module.apply({"params": p}, encoded, method="cross_kv")
    return module.apply({"params": p}, y, bias + causal, jnp.zeros((1, 1, 1, 1)), *cross)[0]

  for i, (layer, bias) in enumerate(stacks.of("decoder", y.shape[1])):
    y = decode(layer, y, bias, encoded)
    _check(y, f"decoder layer {i}")
  hidden = np.asarray(stacks.norm("decoder", y))
  if config.scaled_logits:
    hidden = hidden * np.float32(config.emb_dim ** -0.5)
  output = (read(mapping.EMBEDDING).T if config.logits_via_embedding else read(mapping.OUTPUT))
  found = hidden @ np.asarray(output, np.float32)
  _check(found, "the output layer")
  return found


class _Layers:
  """Gives the weights of one layer after the other, and its position bias."""

  def __init__(self, config: T5Config, read: Read):
    self._config, self._read = config, read
    self._names = list(mapping.parameter_shapes(config.to_dict()))

  def _params(self, prefix: str) -> dict[str, Any]:
    return nested({name.removeprefix(prefix): jnp.asarray(self._read(name), jnp.float32)
                   for name in self._names if name.startswith(prefix)})

  def of(self, stack: str, size: int) -> Iterator[tuple[dict[str, Any], jax.Array]]:
    """Parameters and bias [1, H, size, size] of every layer of a stack."""
    module = relpos.RelativePositionBias(self._config, bidirectional=stack == "encoder")
    shared = self._params(f"{stack}/relpos_bias/")
    for i in range(getattr(self._config, f"num_{stack}_layers")):
      layer = self._params(f"{stack}/layers_{i}/")
      own = layer.get("relpos_bias", shared)
      yield layer, module.apply({"params": own}, size, method="square")

  def norm(self, stack: str, x: jax.Array) -> jax.Array:
    """The norm at the end of a stack."""
    params = self._params(f"{stack}/{stack}_norm/")
    return layers.RMSNorm(self._config).apply({"params": params}, x)


def _check(values: Any, where: str) -> None:
  if not np.isfinite(np.asarray(values)).all():
    raise SpecdecError(f"a forward pass is not finite from {where} on; expected weights that "
                       "compute: the checkpoint is damaged, or was trained to no good end")
