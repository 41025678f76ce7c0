"""--compilation_cache_dir: where compiled programs are kept."""

import os
import sys

from specdec.cli.flags import Flags


def add_flags(flags: Flags) -> None:
  """Adds the flag to the current group of a help page."""
  flags.text("compilation_cache_dir", None, "DIR", "keep compiled programs there, for later "
             "commands to read; none for not at all; JAX_COMPILATION_CACHE_DIR goes before it "
             "[SPECDEC_COMPILATION_CACHE_DIR, else ~/.cache/specdec/xla]")


def enable(flags: Flags) -> None:
  """Has programs kept where the flag, the variable or habit says. Says so when they cannot be."""
  from specdec.engine import program_cache

  typed = flags.compilation_cache_dir
  if program_cache.chosen_elsewhere():
    if flags.named("compilation_cache_dir") and typed != program_cache.folder():
      _note(f"JAX_COMPILATION_CACHE_DIR is set ({program_cache.folder()}) and goes before "
            "--compilation_cache_dir")
    return
  try:
    chosen = typed or os.environ.get(program_cache.VARIABLE) or program_cache.default_folder()
  except RuntimeError as error:
    _note(f"compiled programs are not kept: {error}; --compilation_cache_dir=DIR names a folder")
    return
  if str(chosen) == program_cache.NONE:
    return
  problem = program_cache.keep_in(chosen)
  if problem:
    _note(f"compiled programs are not kept: {problem}; --compilation_cache_dir=DIR names another "
          "folder, none says nothing of it")


def _note(text: str) -> None:
  print(f"note: {' '.join(text.split())}", file=sys.stderr)
