"""`specdec bench`: where the time of decoding goes, on this machine."""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import sys
from typing import TYPE_CHECKING
from typing import Any

from specdec.cli import compilation
from specdec.cli import faults
from specdec.cli import gin_bindings
from specdec.cli import inputs as inputs_lib
from specdec.cli import outputs
from specdec.cli import pairs as pair_flags
from specdec.cli import progress
from specdec.cli.flags import Flags
from specdec.cli.lists import numbers
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.bench.workload import Workload

INTRO = """\
specdec bench: measures plain and speculative decoding, and the calls they consist of.

Usage
  specdec bench [--target_size=SIZE --drafter_size=SIZE] [FLAGS]
  specdec bench --pair=NAME|DIR [--drafter=SPEC] [FLAGS] [TEXT ...]
  specdec bench --pair=NAME|DIR --widen_target=SIZE [--widen_drafter=SIZE] [FLAGS] ...

Everything takes turns in one process, after warm-up and compilation. Sizes have
random weights: how long an iteration takes does not depend on how many drafts stand,
so the speed-up follows for any acceptance rate. A widened pair has the acceptance of
its own small models and the cost of those sizes."""

OUTRO = """\
Examples
  specdec bench --target_size=base --drafter_size=small
  specdec bench --pair=demo "A dog runs across the grass."
  specdec bench --pair=demo --widen_target=base --widen_drafter=small "A dog runs."
  specdec bench --target_size=small --drafter_size=tiny --batch_size=1,2,4,8,16,32
  specdec bench --target_size=base --baseline=t5x --json=record.json"""


def make_flags() -> Flags:
  """The command's flags."""
  flags = Flags("bench", INTRO, OUTRO)
  flags.group("Models")
  flags.text("target_size", "base", "SIZE", "shape of the target: tiny, small, base, large, xl "
             "or xxl")
  flags.text("drafter_size", "small", "SIZE", "shape of the drafter; or copy or uniform, which "
             "have none")
  flags.text("pair", None, "NAME|DIR", "a pair of models instead")
  flags.text("target", None, "PATH", "likewise, a large model of your own; goes with --drafter")
  flags.text("drafter", None, "SPEC", "drafter for these, as in specdec generate [the pair's]")
  flags.text("vocab", None, "FILE", "vocabulary of all models, as in specdec generate")
  flags.text("widen_target", None, "SIZE", "put the pair's target, unchanged in what it says, "
             "into the shape of this size and measure at its cost")
  flags.text("widen_drafter", None, "SIZE", "likewise its drafter, when that is a T5 [small]")
  pair_flags.add_dtype(flags)
  flags.group("Work")
  flags.whole("gamma", 4, "tokens drafted per call of the target")
  flags.number("temperature", 0.0, "of a pair's texts; 0 always takes the likeliest token")
  flags.text("batch_size", None, "N[,N]", "rows decoded together; several sizes are compared "
             "with each other, instead of calls; texts beyond are further batches [1, or all "
             "texts]")
  flags.whole("source_len", 64, "encoder tokens of random inputs")
  flags.whole("max_decode_len", 64, "tokens per row; random inputs end nowhere before")
  flags.text("task", None, "NAME", "task of the pair whose prefix goes before each text; none "
             "for no prefix [the pair's first]")
  flags.text("input_file", None, "FILE", "texts for the pair, one a line; - is standard input")
  flags.whole("seed", 0, "of random weights and inputs")
  flags.group("Measuring")
  flags.whole("repeats", 15, "rounds in which everything takes a turn")
  flags.text("alphas", "0.6,0.7,0.8,0.9", "X[,X]", "acceptance rates to work speed-ups out for")
  flags.texts("baseline", "NAME", "t5x, hf, hf_assisted, ctranslate2 or ctranslate2_int8: time "
              "that library too, on the same weights; may be given several times")
  flags.group("Output")
  flags.text("json", None, "FILE", "write everything that was measured as JSON")
  flags.text("record_task", None, "NAME", "what the record calls the task: ende and cnndm stand "
             "beside the paper's rows in specdec table [the task]")
  flags.switch("overwrite", "replace a file that exists")
  gin_bindings.add_flags(flags)
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command. What can be refused without the models is refused first."""
  gin_bindings.settings_into_flags(flags, gin_bindings.of_flags(flags))
  batches = check(flags)
  alphas = numbers("alphas", flags.alphas, float, lambda x: 0 <= x <= 1, "numbers from 0 to 1")
  texts: list[str] = []
  if args or flags.input_file is not None:
    if not _has_models(flags):
      raise SpecdecError("texts need a model that knows words; add --pair, or drop the texts")
    texts = inputs_lib.read(args, flags.input_file).texts
    if not flags.named("batch_size"):
      batches = [len(texts)]
  with contextlib.ExitStack() as stack:
    file = None
    if flags.json is not None:
      file = stack.enter_context(
          outputs.OutputFile("--json", flags.json, flags.overwrite, flags.input_file))
    from specdec.bench import peers

    baselines = [peers.find(name) for name in dict.fromkeys(flags.baseline)]
    with (faults.in_a_line("--batch_size, --source_len or --max_decode_len"),
          progress.status() as say):
      compilation.enable(flags)
      say("making the models")
      record = _measure(flags, texts, batches, alphas, baselines, say)
    if flags.record_task is not None:
      record |= {"task": flags.record_task, "note": f"task {record['task']} of the pair "
                 f"{flags.pair or flags.target}, {record['rows']} outputs"}
    if file:
      file.write(outputs.to_json(record))
  from specdec.cli import bench_report

  bench_report.show(record)
  if flags.json is not None:
    print(f"measurements written to {flags.json}", file=sys.stderr)
  return 0


def check(flags: Flags) -> list[int]:
  """Checks numbers and what goes together; returns the batch sizes."""
  from specdec.engine.settings import whole

  whole("gamma", flags.gamma, 1, 64)
  whole("source_len", flags.source_len, 1, 2**16)
  whole("max_decode_len", flags.max_decode_len, 2, 2**16)
  whole("repeats", flags.repeats, 1, 1000)
  whole("seed", flags.seed, 0, 2**32 - 1)
  batches = numbers("batch_size", flags.batch_size or "1", int, lambda n: 1 <= n <= 2**16,
                     "integers from 1 to 65536")
  sized = [name for name in ("target_size", "drafter_size") if flags.named(name)]
  if _has_models(flags) and sized:
    raise SpecdecError(f"--{'target' if flags.pair is None else 'pair'} does not go with "
                       f"--{sized[0]}: these are models of their own")
  for name in ("task", "input_file", "drafter", "vocab", "widen_target", "widen_drafter",
               "temperature", "record_task"):
    if not _has_models(flags) and flags.named(name):
      raise SpecdecError(f"--{name} belongs to --pair or --target; add one or drop it")
  for name in ("baseline", "alphas", "record_task"):
    if len(batches) > 1 and flags.named(name):
      raise SpecdecError(f"--{name} goes with a single --batch_size; give one size")
  if flags.record_task is not None and not flags.record_task.strip():
    raise SpecdecError("--record_task is empty; expected a name, such as ende")
  if flags.widen_drafter is not None and flags.widen_target is None:
    raise SpecdecError("--widen_drafter belongs to --widen_target; name the target's size too")
  if _has_models(flags):
    from specdec.engine.settings import Settings
    from specdec.models.t5 import sizes

    Settings(temperature=flags.temperature)
    for size in (flags.widen_target, flags.widen_drafter):
      if size is not None:
        sizes.load(size)
    pair_flags.check(flags)
  return batches


def _has_models(flags: Flags) -> bool:
  """Whether models are named, instead of sizes."""
  return flags.pair is not None or flags.target is not None


def _measure(flags: Flags, texts: list[str], batches: list[int], alphas: list[float],
             baselines: list[Callable], say: Callable[[str], None]) -> dict[str, Any]:
  from specdec.bench import measure
  from specdec.bench import sweep

  workload = _workload(flags, texts, max(batches))
  if len(batches) > 1:
    return sweep.sweep(workload, batches, repeats=flags.repeats, progress=say)
  return measure.measure(workload, repeats=flags.repeats, alphas=alphas, peers=baselines,
                         progress=say)


def _workload(flags: Flags, texts: list[str], batch_size: int) -> "Workload":
  from specdec.bench import workload

  dtype = pair_flags.dtype(flags)
  options = dict(gamma=flags.gamma, batch_size=batch_size, source_len=flags.source_len,
                 max_decode_len=flags.max_decode_len, seed=flags.seed)
  if not _has_models(flags):
    return workload.from_sizes(flags.target_size, flags.drafter_size, dtype=dtype, **options)
  pair = pair_flags.load(flags, dtype)
  if flags.widen_target is not None:
    from specdec.bench import widen

    if flags.widen_drafter is not None and pair.drafter.model is None:
      raise SpecdecError(f"--widen_drafter is for a drafter that is a T5, and {pair.drafter.name} "
                         "is none; drop it")
    pair = widen.widen(pair, flags.widen_target, flags.widen_drafter or "small")
  return workload.from_pair(pair, texts, task=pair_flags.task(flags),
                            temperature=flags.temperature, **options)
