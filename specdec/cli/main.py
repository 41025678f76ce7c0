"""Entry of the command line: dispatch, help, and how mistakes are told.

Nothing here imports jax, so that help, version and most mistakes are instant.
"""

from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import difflib
import importlib
import io
import logging
import os
import signal
import sys
from typing import Any
from typing import NamedTuple
import warnings

import specdec
from specdec.cli.outputs import print_text
from specdec.errors import SpecdecError


class Command(NamedTuple):
  """A command: module with `make_flags()` and `main(flags, args)`, and a summary."""

  module: str
  summary: str


COMMANDS = {
    "generate": Command("specdec.cli.generate",
                        "decode texts, or measure speculative against plain decoding"),
    "infer": Command("specdec.cli.infer",
                     "decode a file into shards; killed at any moment, it goes on where it was"),
    "eval": Command("specdec.cli.eval",
                    "metrics on a task of seqio or on local files, BLEU and ROUGE among them"),
    "distill": Command("specdec.cli.distill",
                       "train a drafter on what a target says: a small T5, or heads on the target"),
    "convert": Command("specdec.cli.convert",
                       "models of T5X and Hugging Face into specdec's layout, and back"),
    "inspect": Command("specdec.cli.inspect", "what a checkpoint is, without reading its weights"),
    "vocab": Command("specdec.cli.vocab", "how texts are tokenised"),
    "tune": Command("specdec.cli.tune",
                    "find the drafter that pays on your texts and device, as a gin file"),
    "ngram": Command("specdec.cli.ngram", "tables of n-grams that draft for a target"),
    "alpha": Command("specdec.cli.alpha", "how often drafts of a drafter would be accepted"),
    "bench": Command("specdec.cli.bench",
                     "measure where the time goes, at any T5 size or for a pair"),
    "plan": Command("specdec.cli.plan",
                    "tell what a pair takes on each device, and what fits"),
    "theory": Command("specdec.cli.theory", "what an acceptance rate is worth, by the formulas"),
    "table": Command("specdec.cli.table", "the paper's tables: its numbers, predicted, measured"),
    "figure": Command("specdec.cli.figure", "the paper's figures, with measured points"),
    "report": Command("specdec.cli.report", "all tables and figures as one HTML page"),
}

USER_ERROR = 2
INTERRUPTED = 130
# What a shell reports for a program that a closed pipe has ended.
CLOSED_PIPE = 141

HELP = """\
specdec {version}: lossless speculative decoding of T5 models.

A small model drafts a few tokens, the large one checks them all in a single call.
What comes out follows the large model's own distribution exactly, and at
temperature 0 it is the same text; there are only fewer calls of the large model.

Usage
  specdec COMMAND [FLAGS] [TEXT ...]

Commands
{commands}

Examples
  Translate a sentence with the pair of models that comes with the package:
    specdec generate "A dog runs across the grass."

  Correct a file line by line, and keep what happened to each line:
    specdec generate --task=correct --input_file=in.txt --output_file=out.jsonl

  See what speculation is worth on this machine:
    specdec generate --compare --gamma=4 "Two children are building a tower."

  See where the time goes at the shape of two T5 sizes:
    specdec bench --target_size=base --drafter_size=small

Where to go on
  specdec COMMAND --help  flags of a command, with their defaults
  specdec --version       the version
  python -c "import specdec; help(specdec)"
                          the same from Python
"""


def run(argv: Sequence[str] | None = None) -> int:
  """Runs the command line.

  Args:
    argv: arguments without the program's name; those of the process by default.

  Returns:
    The exit code: 0, 2 for a mistake of the user's, 130 after Ctrl-C or SIGTERM, 141 when the
    reader of the output went away.
  """
  if isinstance(sys.stdout, io.TextIOWrapper):
    # A letter that the locale lacks is no reason to stop.
    sys.stdout.reconfigure(errors="backslashreplace")
  try:
    with _ended_like_interrupted():
      return _dispatch(list(sys.argv[1:] if argv is None else argv))
  except SpecdecError as error:
    _complain(str(error))
    return USER_ERROR
  except KeyboardInterrupt as error:
    _complain(f"interrupted; {error}" if str(error) else "interrupted")
    return INTERRUPTED
  except BrokenPipeError:
    _drop_stdout()
    return CLOSED_PIPE


@contextlib.contextmanager
def _ended_like_interrupted() -> Iterator[None]:
  """A SIGTERM, by which machines are taken away, leaves the same behind as Ctrl-C."""

  def end(number: int, frame: Any) -> None:
    raise KeyboardInterrupt

  try:
    before = signal.signal(signal.SIGTERM, end)
  except ValueError:  # Not in the main thread: somebody else's signals.
    yield
    return
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, before)


def _dispatch(args: list[str]) -> int:
  if not args or args[0] in ("--help", "-h", "-help") or args == ["help"]:
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {c.summary}" for name, c in COMMANDS.items())
    print_text(HELP.format(version=specdec.__version__, commands=listed).rstrip())
    return 0
  if args[0] in ("--version", "-version", "version"):
    print_text(f"specdec {specdec.__version__}")
    return 0
  if args[0] == "help":
    args = [args[1], "--help"]
  name, rest = args[0], args[1:]
  if name.startswith("-"):
    raise SpecdecError(f"{name!r} stands before the command; type the command first: specdec "
                       f"generate {name} (specdec --help lists commands)")
  if name not in COMMANDS:
    near = difflib.get_close_matches(name, COMMANDS, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(COMMANDS)}"
    raise SpecdecError(f"unknown command {name!r}; {hint} (specdec --help lists commands)")
  module = importlib.import_module(COMMANDS[name].module)
  flags = module.make_flags()
  before_texts = rest[:rest.index("--")] if "--" in rest else rest
  if {"--help", "-h", "-help"} & set(before_texts):
    print_text(flags.help())
    return 0
  texts = flags.parse(rest)
  _quieten()
  return module.main(flags, texts)


def _complain(message: str) -> None:
  """Prints one line, whatever the message holds."""
  line = "".join(c if c.isprintable() else " " for c in " ".join(message.split()))
  print(f"specdec: {line}", file=sys.stderr)


def _drop_stdout() -> None:
  """Sends what is still buffered nowhere, or Python would complain at exit."""
  try:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
  except (OSError, ValueError):
    pass


def _quieten() -> None:
  """Keeps libraries from talking, except where they warn of what a user can change."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
  for name in ("absl", "orbax", "flax", "asyncio"):
    logging.getLogger(name).setLevel(logging.ERROR)
  warnings.filterwarnings("ignore", module=r"(orbax|flax|tensorstore|jax)\b")
