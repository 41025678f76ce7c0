"""T5X's parameters of `decoding.temperature_sample`, read as T5X reads them, or refused.

Values may be traced. What they mean is in `t5x/decoding.py`; specdec's filters have the same
meanings (`core.probs`), so that reading is all there is to do.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec.errors import SpecdecError

Array = jax.Array

# What cannot be done, and what can be done instead.
_REFUSED = {
    "alpha": "belongs to beam search, and speculative decoding samples: drop it",
    "max_decode_len": "belongs to beam search: bound the output by max_decode_steps or by "
                      "TASK_FEATURE_LENGTHS",
    "state_callback_fn": "is called with T5X's state of a loop over single tokens, which there "
                         "is not: drop it",
    "logit_callback_fn": "is called with T5X's state of a loop over single tokens, which there "
                         "is not: bind SpeculativeModel.logits_fn to a function of (logits, ids, "
                         "lengths)",
    "initial_index": "goes with a cache that T5X filled: prompts are read in by specdec, with "
                     "prompt_with_targets",
}


@dataclasses.dataclass(frozen=True)
class Knobs:
  """Parameters of `temperature_sample` with its defaults.

  Attributes:
    temperature: a number, or one per input [B]; 1e-4 and below is greedy.
    topk: keep the k likeliest ids, ties included; 0 is off. Likewise.
    topp: keep the likeliest ids of this joint mass; 0 is off. Likewise.
    max_decode_steps: most tokens after the prompt; None for as many as fit.
    max_decode_steps_hard_limit: bounds it; None and 0 for no bound.
    rescale_log_probs: scores are those of the adjusted distribution.
  """

  temperature: Any = 1.0
  topk: Any = 1
  topp: Any = 0.0
  max_decode_steps: Any = None
  max_decode_steps_hard_limit: int | None = None
  rescale_log_probs: bool = True

  def __post_init__(self):
    if _known(self.topk) and _known(self.topp) and np.any(self.topk) and np.any(self.topp):
      raise SpecdecError(f"topk is {self.topk} and topp is {self.topp}; expected one of them to "
                         "be 0, as in T5X, whose default topk is 1: add topk = 0")
    steps = self.max_decode_steps
    if steps is not None and _known(steps) and steps < 1:
      raise SpecdecError(f"max_decode_steps is {steps}; expected at least 1")

  def limit(self, width: int, prompt: Array) -> Array:
    """Most tokens of each row, prompt included, int32 [B].

    Args:
      width: columns of the output.
      prompt: int32 [B], tokens of each prompt.

    Raises:
      SpecdecError: more steps are asked for than there are columns.
    """
    steps, hard = self.max_decode_steps, self.max_decode_steps_hard_limit
    if steps is None:
      return jnp.full(prompt.shape, width, jnp.int32)
    if hard:
      steps = jnp.minimum(steps, hard) if not _known(steps) else min(steps, hard)
    if _known(steps) and steps > width:
      raise SpecdecError(f"max_decode_steps is {steps}, and the targets of this job are {width} "
                         "wide; expected at most that: raise TASK_FEATURE_LENGTHS")
    return jnp.minimum(prompt + steps, width).astype(jnp.int32)


def read(given: Mapping[str, Any]) -> Knobs:
  """Reads what is bound to the decoding function and what comes with a call.

  Raises:
    SpecdecError: something among it is not supported; it is named.
  """
  fields = {f.name for f in dataclasses.fields(Knobs)}
  for name, value in given.items():
    if name in fields or (name in _REFUSED and value is None):
      continue
    reason = _REFUSED.get(name, "is not a parameter of t5x.decoding.temperature_sample; expected "
                          f"some of {', '.join(sorted(fields))}")
    raise SpecdecError(f"decoder parameter {name} {reason}")
  return Knobs(**{name: value for name, value in given.items() if name in fields})


def per_row(name: str, value: Any, batch: int, copies: int) -> Array:
  """A number, or one per input, as one per row: `copies` rows per input.

  Raises:
    SpecdecError: it has another shape.
  """
  value = jnp.asarray(value)
  if value.shape not in ((), (batch,)):
    raise SpecdecError(f"{name} has the shape {value.shape}; expected a number, or one for each "
                       f"of the {batch} inputs of a batch")
  return jnp.repeat(jnp.broadcast_to(value, (batch,)), copies)


def _known(value: Any) -> bool:
  return not isinstance(value, jax.core.Tracer)
