"""The one place where TensorFlow and seqio come in, when a task is asked for.

Other modules take them from here: `from specdec.data.tasks.extra import seqio`. Importing
this module where they are not installed is a `SpecdecError` that says what to type.
"""

from collections.abc import Iterator
import contextlib
import os

from specdec.errors import SpecdecError


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
  """Keeps what TensorFlow says while it starts from standard error, where its own level says so.

  It writes past Python, and before it heeds that level.
  """
  if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") < "2":
    yield
    return
  try:
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
  except OSError:  # There is no standard error.
    yield
    return
  try:
    os.dup2(nowhere, 2)
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)
    os.close(nowhere)


try:
  with _hushed():
    import tensorflow as tf
except ImportError as error:
  raise SpecdecError(f"seqio tasks need TensorFlow ({error}); type: pip install "
                     "'specdec-jax[seqio]'") from error

try:
  # Reading and tokenising texts is all it does here: the accelerator's memory is jax's. Before
  # seqio, so that nothing can have started a device.
  with _hushed():
    for _kind in ("GPU", "TPU"):
      tf.config.set_visible_devices([], _kind)
except RuntimeError:
  pass  # The program has used TensorFlow before, and decided for itself.

try:
  with _hushed():
    import seqio
except ImportError as error:
  raise SpecdecError(f"tasks need seqio ({error}); type: pip install 'specdec-jax[seqio]'"
                     ) from error

__all__ = ["seqio", "tf"]
