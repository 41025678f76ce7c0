"""What a measurement must carry to mean anything later."""

import datetime
import os
import pathlib
import platform
import subprocess
from typing import Any

import jax

import specdec
from specdec.engine.pairs import ASSETS


def environment() -> dict[str, Any]:
  """Device, versions, commit and date, JSON-ready."""
  device = jax.devices()[0]
  return {
      "specdec": specdec.__version__,
      "commit": _commit(),
      "jax": jax.__version__,
      "backend": jax.default_backend(),
      "device": device.device_kind,
      "cpu": _cpu(),
      "devices": jax.device_count(),
      "cpu_cores": os.cpu_count(),
      "python": platform.python_version(),
      "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
  }


def device(environment: dict[str, Any]) -> str:
  """What measurements are told apart by: the accelerator, or which processor it was."""
  cpu = environment["cpu"] if environment["backend"] == "cpu" else None
  return cpu or environment["device"]


def model_name(path: str) -> str:
  """What a model is called in a record: those of the package by the pair that they are of.

  >>> model_name(str(ASSETS / "demo" / "target"))
  'demo/target'
  """
  below = pathlib.Path(path)
  return below.relative_to(ASSETS).as_posix() if below.is_relative_to(ASSETS) else path


def _cpu() -> str | None:
  """Model name of the processor, where the system tells it."""
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
  except OSError:
    return platform.processor() or None
  names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
  return names[0] if names else None


def _commit() -> str | None:
  """Commit of the working copy that the package runs from, None outside of one."""
  root = pathlib.Path(__file__).parents[2]
  # An installed package may lie inside somebody else's repository.
  if not (root / ".git").exists():
    return None
  try:
    done = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty"],
                          capture_output=True, text=True, timeout=10, check=True)
  except (OSError, subprocess.SubprocessError):
    return None
  return done.stdout.strip()
