"""`specdec warmup`: compiles what a job will need, into the cache that it will read."""

from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from specdec.cli import decoding
from specdec.cli import faults
from specdec.cli import gin_bindings
from specdec.cli import lists
from specdec.cli import outputs
from specdec.cli import pairs
from specdec.cli import progress
from specdec.cli.flags import Flags
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.engine.job import Job
  from specdec.engine.warmup import Warmed

INTRO = """\
specdec warmup: compiles what specdec generate and infer will need, and keeps it.

Usage
  specdec warmup [FLAGS]
  specdec warmup [FLAGS] --input_file=FILE

Type the flags of the job. Without a file all source widths up to max_source_len are
compiled at batch_size, as a job of any texts may need them; with one, those of its
lines and batches. A later command reads the programs instead of compiling them."""

OUTRO = """\
Examples
  specdec warmup --gamma=4 --batch_size=8
  specdec warmup --batch_size=32 --widths=32,64
  specdec warmup --input_file=in.jsonl --shard_size=1000 --gamma=auto
  specdec warmup --mode=plain --max_decode_len=64"""


def make_flags() -> Flags:
  """The command's flags. Defaults of settings are those of `Settings`."""
  flags = Flags("warmup", INTRO, OUTRO)
  flags.group("What is compiled")
  flags.text("widths", None, "N,...", "tokens of the longest input of a batch, prefix and EOS "
             "included [all up to max_source_len]")
  flags.text("input_file", None, "FILE", "the job's texts: compile what they need and no more")
  flags.text("format", None, "text|tsv|jsonl", "see specdec infer")
  flags.text("field", None, "NAME", "likewise")
  flags.whole("shard_size", None, "likewise; the last batch of a shard may be smaller [one shard]")
  flags.switch("trace", "for specdec generate --trace")
  flags.group("Model")
  pairs.add_flags(flags)
  pairs.add_run_flags(flags)
  decoding.add_flags(flags, per_input=False)
  gin_bindings.add_flags(flags)
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command. What can be refused without the models is refused first."""
  from specdec.engine.settings import whole

  bound = gin_bindings.of_flags(flags)
  given = decoding.settings(flags, bound)
  if args:
    raise SpecdecError(f"there are texts ({args[0]!r}); specdec warmup decodes nothing and reads "
                       "an --input_file")
  if flags.input_file is None:
    for name in ("format", "field", "shard_size"):
      if flags.named(name):
        raise SpecdecError(f"--{name} says something about an --input_file; name it, or drop "
                           f"--{name}")
  elif flags.widths is not None:
    raise SpecdecError("--widths does not go with --input_file, whose lines say what they need; "
                       "drop one of the two")
  widths = None
  if flags.widths is not None:
    widths = lists.numbers("widths", flags.widths, int, lambda n: 1 <= n <= 2**20,
                           "integers from 1 up")
  if flags.shard_size is not None:
    whole("shard_size", flags.shard_size, 1, 2**31)
  allowed = decoding.read_allowed(flags)
  pairs.check(flags)
  with faults.in_a_line(faults.DECODING), progress.status() as say:
    jobs = _jobs(flags, bound, given, widths, allowed, say)
    from specdec.engine import warmup

    done = warmup.warm(jobs, lambda shape: say(
        f"compiling for batches of {shape.size}, {shape.width} tokens wide"))
  report(done)
  return 0


def _jobs(flags: Flags, bound: gin_bindings.Bound, given: dict[str, Any],
          widths: Sequence[int] | None, allowed: list[str] | None, say: Any) -> "list[Job]":
  from specdec.data import lines
  from specdec.engine import job
  from specdec.engine import warmup

  file = lines.LineFile(flags.input_file, flags.format, flags.field) if flags.input_file else None
  say("loading the models")
  pair = pairs.load(flags, pairs.dtype(flags))
  options = {"prompt": flags.prompt, "costs": bound.costs, "trace": flags.trace}
  if allowed is not None:
    options["logits_fn"] = decoding.allowed_sequences(pair, allowed, flags.allowed_file, given)
  if file is None:
    return list(warmup.empty_jobs(pair, given, widths, **options))
  size = flags.shard_size or file.count
  found = []
  for begin in range(0, file.count, size):
    texts = [line.text for line in file.read(begin, min(begin + size, file.count))
             if line.error is None]
    if texts:
      found.append(job.from_texts(pair, texts, pairs.task(flags), given, **options))
  return found


def report(done: "Warmed") -> None:
  """Prints how many shapes and programs there are, how long it took, and where they are."""
  from specdec.engine import program_cache

  sizes = ", ".join(str(n) for n in sorted({shape.size for shape in done.shapes}))
  widths = ", ".join(str(n) for n in sorted({shape.width for shape in done.shapes}))
  kept = program_cache.folder()
  where = f"kept in {kept}" if kept else "and not kept: --compilation_cache_dir names no folder"
  outputs.print_line(f"{len(done.shapes)} shapes: batches of {sizes or 'nothing'}, sources "
                     f"{widths or 'nothing'} wide")
  outputs.print_line(f"{done.programs - done.read} programs compiled, {done.read} read, in "
                     f"{done.seconds:.1f} s; {where}")
