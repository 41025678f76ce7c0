"""`specdec convert`: a model from one layout into another, verified."""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import sys
from typing import Any

from specdec.cli.flags import Flags
from specdec.cli.outputs import print_line
from specdec.errors import SpecdecError

INTRO = """\
specdec convert: writes a model in another layout, and verifies what it wrote.

Usage
  specdec convert [FLAGS] SRC DST

SRC is a folder of T5X (native or Orbax, layers scanned or not; gs:// too), of Hugging
Face (safetensors or pytorch_model.bin), of specdec, or a name on Hugging Face's hub.
DST is a new folder; it appears when it is complete and was read back, compared and run
once, or not at all. Arrays go one by one, so that a large model needs no large memory."""

OUTRO = """\
Examples
  specdec convert google/flan-t5-small flan-t5-small
  specdec convert --vocab=spiece.model gs://bucket/t5_1_1_base/checkpoint_1000 t5-base
  specdec convert --dtype=bfloat16 t5-base t5-base-bf16
  specdec convert --to=hf t5-base t5-base-hf"""


def make_flags() -> Flags:
  """The command's flags."""
  flags = Flags("convert", INTRO, OUTRO)
  flags.group("Layouts")
  flags.choice("from", ("auto", "bundle", "t5x", "hf"), "auto",
               "layout of SRC; auto looks at what is in it")
  flags.choice("to", ("bundle", "t5x", "hf"), "bundle", "layout of DST: specdec's own bundle, or "
               "what T5X or transformers load")
  flags.group("Contents")
  flags.choice("dtype", ("keep", "float32", "bfloat16"), "keep", "of the matrices in DST")
  flags.text("vocab", None, "FILE", "vocabulary, where SRC carries none or another is wanted: "
             "spiece.model, tokenizer.json, a folder with one, bytes, or none")
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command."""
  if len(args) != 2:
    raise SpecdecError(f"{len(args)} paths are given; expected two: specdec convert SRC DST")
  source, target = args
  from specdec.engine import convert

  with _progress() as progress:
    done = convert.convert(source, target, layout=getattr(flags, "from"), to=flags.to,
                           dtype=flags.dtype, vocabulary=flags.vocab, progress=progress)
  print_line(f"{target}: {done.target}, {done.parameters / 1e6:.4g} million parameters in "
             f"{done.arrays} arrays, {done.dtype}, {done.nbytes / 2**20:.4g} MiB")
  print_line(f"from {source}: {done.source}; vocabulary of {done.pieces} pieces" if done.pieces
             else f"from {source}: {done.source}; no vocabulary")
  print(f"verified: read back, checksums equal, one forward pass finite; {done.seconds:.1f} s",
        file=sys.stderr)
  return 0


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, str, int], None] | None]:
  """A bar on a terminal: which array is written or verified, and how fast."""
  if not sys.stderr.isatty():
    yield None
    return
  from rich.console import Console
  from rich.progress import DownloadColumn
  from rich.progress import Progress
  from rich.progress import SpinnerColumn
  from rich.progress import TextColumn
  from rich.progress import TransferSpeedColumn

  columns = (SpinnerColumn(), TextColumn("{task.description}"), DownloadColumn(binary_units=True),
             TransferSpeedColumn(), TextColumn("{task.fields[array]}"))
  with Progress(*columns, console=Console(stderr=True), transient=True,
                redirect_stdout=False) as bar:
    tasks: dict[str, Any] = {}

    def progress(stage: str, name: str, size: int) -> None:
      if stage not in tasks:
        tasks[stage] = bar.add_task(stage, total=None, array="")
      bar.update(tasks[stage], advance=size, array=name)

    yield progress
