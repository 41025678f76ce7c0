"""Speculative decoding in a T5X job; see docs/t5x.md.

A gin file includes `gin/t5x/eval.gin` or `gin/t5x/infer.gin` and names a drafter. T5X is
imported when one of the two classes is asked for.
"""

from typing import Any

__all__ = ["SpeculativeModel", "TrainStateInitializer"]


def __getattr__(name: str) -> Any:
  if name not in __all__:
    raise AttributeError(f"module {__name__} has no attribute {name}")
  try:
    import t5x  # noqa: F401
  except ImportError as error:
    raise ImportError(f"{__name__}.{name} needs T5X, which cannot be imported ({error}); "
                      "docs/t5x.md says how it is installed") from error
  from specdec.integrations.t5x import model
  from specdec.integrations.t5x import train_state

  return {"SpeculativeModel": model.SpeculativeModel,
          "TrainStateInitializer": train_state.TrainStateInitializer}[name]
