"""The one place where TensorFlow and seqio come in, when a task is asked for.

Other modules take them from here: `from specdec.data.tasks.extra import seqio`. Importing
this module where they are not installed is a `SpecdecError` that says what to type.
"""

from specdec.errors import SpecdecError

try:
  import tensorflow as tf
except ImportError as error:
  raise SpecdecError(f"seqio tasks need TensorFlow ({error}); type: pip install "
                     "'specdec-jax[seqio]'") from error

try:
  # Reading and tokenising texts is all it does here: the accelerator's memory is jax's. Before
  # seqio, so that nothing can have started a device.
  for _kind in ("GPU", "TPU"):
    tf.config.set_visible_devices([], _kind)
except RuntimeError:
  pass  # The program has used TensorFlow before, and decided for itself.

try:
  import seqio
except ImportError as error:
  raise SpecdecError(f"tasks need seqio ({error}); type: pip install 'specdec-jax[seqio]'"
                     ) from error

__all__ = ["seqio", "tf"]
