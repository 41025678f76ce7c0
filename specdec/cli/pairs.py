"""The flags that name a pair of models, for every command that takes one."""

from typing import TYPE_CHECKING

from specdec.cli import compilation
from specdec.cli.flags import Flags
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.data.base import BaseVocabulary
  from specdec.engine.pairs import Pair


def add_flags(flags: Flags) -> None:
  """Adds --pair, --target, --drafter and --vocab to the current group of a help page."""
  flags.text("pair", "demo", "NAME|DIR", "pair of models: a name, or a folder with a pair.json")
  flags.text("target", None, "PATH", "large model of a pair of your own: a folder of specdec, T5X "
             "or Hugging Face, or a name on its hub; goes with --drafter")
  flags.text("drafter", None, "SPEC", DRAFTER + " [the pair's]")
  flags.text("vocab", None, "FILE", "vocabulary of all models, where a T5X checkpoint carries "
             "none: spiece.model, tokenizer.json, a folder with one, or the word bytes")


def add_run_flags(flags: Flags) -> None:
  """Adds --task, --dtype and what `add_mesh` does; see `task` and `dtype`."""
  flags.text("task", None, "NAME", "task whose prefix goes before each text, such as translate "
             "or correct; none for no prefix [the pair's first]")
  add_dtype(flags)
  add_mesh(flags)


def add_dtype(flags: Flags) -> None:
  """Adds --dtype, and where the programs are kept that weights are run with."""
  flags.choice("dtype", ("auto", "float32", "bfloat16"), "auto",
               "precision of the weights; auto is float32 on CPU, else bfloat16")
  compilation.add_flags(flags)


def add_mesh(flags: Flags) -> None:
  """Adds --mesh and --drafter_layout."""
  flags.text("mesh", None, "AXES", "all devices, such as data:4,model:2: batches are split over "
             "data, the models over model [the first device alone]")
  flags.text("drafter_layout", None, "split|whole", "on a mesh: split T5 drafters as the target, "
             "or put all of them on every device [split]")


def task(flags: Flags) -> str | None:
  """The task in the engine's terms: None for the pair's first, "" for no prefix."""
  return "" if flags.task == "none" else flags.task


def dtype(flags: Flags) -> str | None:
  """The precision in the engine's terms: None for what suits the device."""
  return None if flags.dtype == "auto" else flags.dtype


DRAFTER = ("what drafts: a T5 with the target's pieces (a path or a name likewise), copy or "
           "copy:max_match=3,min_match=1 (from the input and the output), uniform (at random), a "
           "drafter of the pair by its name, a folder of n-gram tables or of heads; or A+B, where "
           "A drafts for the T5 B (A:gamma=2+B: 2 tokens at a time)")


def check(flags: Flags) -> None:
  """Refuses what does not go together, before anything is loaded.

  Raises:
    SpecdecError: two pairs are named, half of one, or a drafter that there is not.
  """
  from specdec.engine import pairs

  if flags.target is not None:
    if flags.given("pair"):
      raise SpecdecError("--pair does not go with --target: a pair has a target of its own; drop "
                         "one of the two")
    if flags.drafter is None:
      raise SpecdecError("--target needs --drafter: copy, uniform, or a model with the target's "
                         "pieces")
  pairs.check_pair(flags.pair, target=flags.target, drafter=flags.drafter, **_devices(flags))


def _devices(flags: Flags) -> dict[str, str]:
  """Arguments of `load_pair`, for commands that have the flags."""
  return {name: getattr(flags, name) for name in ("mesh", "drafter_layout")
          if name in flags.names() and getattr(flags, name) is not None}


def load(flags: Flags, dtype: str | None) -> "Pair":
  """Loads the pair that the flags name.

  Raises:
    SpecdecError: it cannot be loaded, or is no pair.
  """
  from specdec.engine import pairs

  check(flags)
  if "compilation_cache_dir" in flags.names():
    compilation.enable(flags)
  return pairs.load_pair(flags.pair, dtype, target=flags.target, drafter=flags.drafter,
                         vocabulary=flags.vocab, **_devices(flags))


def vocabulary(flags: Flags) -> "BaseVocabulary":
  """The vocabulary of the pair that the flags name; no weights are read.

  Raises:
    SpecdecError: a model cannot be looked at, or the two have different pieces.
  """
  from specdec.engine import pairs

  check(flags)
  return pairs.pair_vocabulary(flags.pair, target=flags.target, drafter=flags.drafter,
                               vocabulary=flags.vocab)
