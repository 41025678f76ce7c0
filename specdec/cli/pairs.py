"""The flags that name a pair of models, for every command that takes one."""

from typing import TYPE_CHECKING

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
  flags.text("drafter", None, "PATH", "small model with the same pieces, likewise")
  flags.text("vocab", None, "FILE", "vocabulary of both, where a T5X checkpoint carries none: "
             "spiece.model, tokenizer.json, a folder with one, or the word bytes")


def check(flags: Flags) -> None:
  """Refuses what does not go together, before anything is loaded.

  Raises:
    SpecdecError: two pairs are named, or half of one.
  """
  from specdec.engine import pairs

  named = [name for name in ("target", "drafter") if getattr(flags, name) is not None]
  if not named:
    pairs.find_pair(flags.pair)
    return
  if len(named) == 1:
    other = "drafter" if named == ["target"] else "target"
    raise SpecdecError(f"--{named[0]} needs --{other}: a pair is two models with one vocabulary")
  if flags.given("pair"):
    raise SpecdecError("--pair does not go with --target and --drafter; drop one of the two")


def load(flags: Flags, dtype: str | None) -> "Pair":
  """Loads the pair that the flags name.

  Raises:
    SpecdecError: it cannot be loaded, or is no pair.
  """
  from specdec.engine import pairs

  check(flags)
  if flags.target is None and flags.vocab is None:
    return pairs.load_pair(flags.pair, dtype)
  return pairs.load_pair(flags.pair, dtype, target=flags.target, drafter=flags.drafter,
                          vocabulary=flags.vocab)


def vocabulary(flags: Flags) -> "BaseVocabulary":
  """The vocabulary of the pair that the flags name; no weights are read.

  Raises:
    SpecdecError: a model cannot be looked at, or the two have different pieces.
  """
  from specdec.engine import pairs

  check(flags)
  return pairs.pair_vocabulary(flags.pair, target=flags.target, drafter=flags.drafter,
                                vocabulary=flags.vocab)
