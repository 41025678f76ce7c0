"""T5X: its own network and `decoding.temperature_sample`.

What lies between the two is that of `t5x.models.EncoderDecoderModel.predict_batch_with_aux`,
whose module cannot be imported beside current versions of JAX: encode once, lay the cache
out, and give the sampler a function from a token to logits.
"""

import importlib.util
import pathlib
import subprocess
import sys
import time
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec.bench.workload import Workload
from specdec.engine import precision
from specdec.errors import SpecdecError
from specdec.models.t5 import weights as weights_lib

# T5X compares with it to end a row; no id is negative.
_NO_EOS = -1


class T5X:
  """Greedy decoding as T5X does it natively: no prompt, `topk=1`.

  Its parameters are named as ours are before `prepare`, so they go in as they are.

  Raises:
    ImportError: there is no T5X.
  """

  name = "t5x"

  def __init__(self, workload: Workload):
    folder = _decoding_modules_only()
    from t5x import decoding
    from t5x.examples.t5 import network

    config = workload.target.scorer.config
    if config.relpos_per_layer or config.scaled_logits != config.logits_via_embedding:
      raise SpecdecError("T5X's network has one relative position bias per stack, and scales "
                         "the logits where they are tied; this target differs")
    fields = {name: getattr(config, name) for name in (
        "vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers",
        "num_decoder_layers", "mlp_activations", "logits_via_embedding")}
    module = network.Transformer(config=network.T5Config(
        **fields, dtype=jnp.dtype(config.dtype), dropout_rate=0.0))
    eos = workload.eos_ids[0] if workload.eos_ids else _NO_EOS
    steps = workload.max_decode_len
    self.version = _version(folder)
    self.dtype = config.dtype
    self.ids: list[list[int]] = []
    self._eos = eos
    self._params = weights_lib.restore(workload.target.weights, config)
    self._sources = [jnp.asarray(source.ids) for source in workload.sources]

    def decode(params: Any, source: jax.Array) -> jax.Array:
      encoded = module.apply({"params": params}, source, enable_dropout=False,
                             method=module.encode)
      targets = jnp.ones((source.shape[0], steps), jnp.int32)
      _, variables = module.apply(
          {"params": params}, encoder_input_tokens=jnp.ones_like(source),
          decoder_input_tokens=targets, decoder_target_tokens=targets, mutable=["cache"],
          decode=True, enable_dropout=False)

      def logits(state: Any) -> tuple[jax.Array, Any]:
        out, new = module.apply(
            {"params": params, "cache": state.cache}, encoded, source, state.cur_token,
            state.cur_token, enable_dropout=False, decode=True, max_decode_length=steps,
            mutable=["cache"], method=module.decode)
        return jnp.squeeze(out, axis=1), new["cache"]

      ids, _ = decoding.temperature_sample(
          jnp.zeros_like(targets), variables["cache"], logits, eos, topk=1, temperature=0.0)
      return ids[:, -1]

    with precision.matmul_precision(config.dtype):
      self._program = jax.jit(decode).lower(self._params, self._sources[0]).compile()

  def whole(self) -> float:
    """Decodes the workload once; seconds that it took."""
    begin = time.perf_counter()
    ids = jax.block_until_ready(
        [self._program(self._params, source) for source in self._sources])
    seconds = time.perf_counter() - begin
    self.ids = [_until(row.tolist(), self._eos) for batch in ids for row in np.asarray(batch)]
    return seconds


def _until(row: list[int], eos: int) -> list[int]:
  return row[:row.index(eos) + 1] if eos in row else row


def _decoding_modules_only() -> pathlib.Path:
  """Makes `t5x` importable without its training stack; returns its folder.

  The package imports all of its modules when it is imported, and with them libraries
  that no package index offers. What decodes needs none of those.
  """
  spec = importlib.util.find_spec("t5x")
  if spec is None or not spec.submodule_search_locations:
    raise ImportError("t5x is not a package")
  folder = pathlib.Path(next(iter(spec.submodule_search_locations)))
  if "t5x" not in sys.modules:
    package = types.ModuleType("t5x")
    package.__path__ = [str(folder)]
    package.__spec__ = spec
    sys.modules["t5x"] = package
  return folder


def _version(folder: pathlib.Path) -> str:
  """Commit of the clone that T5X is imported from; it has no releases."""
  try:
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "--short", "HEAD"],
                          capture_output=True, text=True, timeout=10, check=True)
  except (OSError, subprocess.SubprocessError):
    return "unknown"
  return done.stdout.strip()
