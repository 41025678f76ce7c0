"""Models by their name on Hugging Face's hub."""

import pathlib

from specdec.errors import SpecdecError

_ABOUT = ["config.json", "spiece.model", "tokenizer.json", "tokenizer_config.json"]
_SAFE = ["*.safetensors", "*.safetensors.index.json"]
_TORCH = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]


def fetch(name: str) -> pathlib.Path:
  """Downloads a model, or finds it in the cache, and returns its folder.

  Weights come as safetensors where the hub has them.

  Args:
    name: `owner/name`.

  Raises:
    SpecdecError: huggingface_hub is not installed, or there is no such model or network.
  """
  try:
    import huggingface_hub
  except ImportError as error:
    raise SpecdecError(f"there is no folder {name}, and a name on the hub needs huggingface_hub; "
                       "pip install 'specdec-jax[hf]'") from error
  try:
    folder = pathlib.Path(huggingface_hub.snapshot_download(
        name, allow_patterns=_ABOUT + _SAFE))
    if not any(folder.glob("*.safetensors")):
      huggingface_hub.snapshot_download(name, allow_patterns=_ABOUT + _TORCH)
  except Exception as error:
    # Whatever the network, the hub or its client says; it fills a screen.
    first = next((line for line in str(error).splitlines() if line.strip()),
                 type(error).__name__)
    raise SpecdecError(f"there is no folder {name}, and the hub did not give it "
                       f"({first.strip()[:200]}); expected a local folder, or the name of a "
                       "model there and a network") from error
  return folder
