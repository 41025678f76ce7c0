"""The speculative program compiled for one TPU-v4 chip, on a machine without a TPU.

libtpu holds the whole TPU compiler, and compiles for a chip that is described to it. Weights
and inputs are shapes only, so T5-XXL needs no memory. What the program does with memory is
then read off the compiled modules: that it fits, and that an iteration reads each of the
target's weights once and copies neither weights nor caches.
"""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
import importlib.util
import math
import os
import re
import time
from typing import Any

import jax
from jax.experimental import topologies
import jax.numpy as jnp

from specdec.bench import hlo
from specdec.bench import traffic
from specdec.core import keys
from specdec.core import loop
from specdec.core import rules as rules_lib
from specdec.core.state import Exits
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.core.state import capacity_for
from specdec.drafters.transformer import TransformerDrafter
from specdec.engine import precision
from specdec.errors import SpecdecError
from specdec.models.t5 import weights as weights_lib
from specdec.models.t5.config import T5Config
from specdec.models.t5.scorer import T5Scorer
from specdec.types import Rules
from specdec.types import Source

PyTree = Any

HBM_BYTES = 32 * 2**30
# Google's system documentation of TPU v4: 32 GiB of HBM2 at 1228 GB/s per chip.
HBM_BYTES_PER_S = 1228e9
# What the loop may read per iteration, over the decoder's weights and the caches.
MOST_READ = 1.15
# Arrays below are of no account, such as the scales of norms: bytes.
_SMALL = 2**16


def device() -> Any:
  """One TPU-v4 chip to compile for; see `chips`."""
  return chips()[0]


def chips() -> list[Any]:
  """The four TPU-v4 chips of a host, the two cores of each as one (megacore).

  Must come before anything else makes jax look for devices, which then finds the CPU alone.

  Raises:
    SpecdecError: there is no libtpu, or it knows no such chip.
  """
  if importlib.util.find_spec("libtpu") is None:
    raise SpecdecError("libtpu is not installed, which compiles for TPUs; expected the version "
                       "that goes with jax: type pip install 'specdec-jax[tpu]'")
  jax.config.update("jax_platforms", "cpu")
  # There is no cloud machine to ask what it is, nor any other that takes part.
  for name, value in (("TPU_SKIP_MDS_QUERY", "1"), ("TPU_WORKER_HOSTNAMES", "localhost"),
                      ("TPU_ACCELERATOR_TYPE", "v4-8")):
    os.environ.setdefault(name, value)
  try:
    topology = topologies.get_topology_desc(
        topology_name="v4:2x2x1", platform="tpu", chip_config_name="megacore")
  except Exception as e:  # Whatever libtpu finds wrong.
    raise SpecdecError(f"libtpu describes no TPU-v4 ({str(e).splitlines()[0]}); expected the "
                       f"libtpu that goes with jax {jax.__version__}: type "
                       "pip install 'specdec-jax[tpu]'") from e
  return list(topology.devices)


@dataclasses.dataclass(frozen=True)
class Case:
  """What is compiled.

  Attributes:
    target: architecture, its dtype that of the program.
    drafter: architecture, or None for plain decoding.
    gamma: tokens drafted per iteration; 0 for plain decoding.
    source_len: padded length of the encoder input.
    max_decode_len: most tokens of a row.
    batch_size: rows.
  """

  target: T5Config
  drafter: T5Config | None
  gamma: int
  source_len: int = 512
  max_decode_len: int = 128
  batch_size: int = 1

  def method(self) -> Method:
    """The static part of the program."""
    # Not the form that suits the machine this runs on.
    target = T5Scorer(self.target, out_in=False)
    drafter = self.drafter and TransformerDrafter(
        T5Scorer(self.drafter, out_in=False), target.vocab_size)
    return Method(target, drafter if self.gamma else None, self.gamma)


@dataclasses.dataclass(frozen=True)
class Compiled:
  """A program for the chip, read.

  Attributes:
    module: its instructions.
    memory: bytes of `arguments`, `outputs`, `aliased`, `temporaries` and `code`.
    compile_s: seconds that lowering and compiling took.
  """

  module: hlo.Module
  memory: dict[str, int]
  compile_s: float


@dataclasses.dataclass(frozen=True)
class Program:
  """A case compiled.

  Attributes:
    case: what it is.
    start: encodes, and fills caches; None if it was left out.
    run: the loop.
    weights: bytes of all weights of both models.
    decoder_weights: bytes of those of the target that a call reads.
    target_cache: bytes of the target's cache.
    kernels: shapes of the matrices of both models, see `_form`.
  """

  case: Case
  start: Compiled | None
  run: Compiled
  weights: int
  decoder_weights: int
  target_cache: int
  kernels: frozenset[tuple[int, ...]]


def build(case: Case, chip: Any, with_start: bool = True) -> Program:
  """Compiles a case as `loop.start` and `loop.run` would be where there is such a chip.

  Args:
    case: what to compile.
    chip: from `device`.
    with_start: compile the encoder and all that precedes the loop, too.
  """
  sharding = jax.sharding.SingleDeviceSharding(chip)

  def abstract(make: Callable[..., PyTree], *args: PyTree) -> PyTree:
    shapes = jax.eval_shape(make, *args)
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), shapes)

  method, b = case.method(), case.batch_size
  prepared = lambda scorer: abstract(scorer.prepare, weights_lib.abstract(scorer.config))
  weights = Weights(prepared(method.scorer),
                    prepared(method.drafter.scorer) if method.drafter else None)
  ids = lambda width: Source(jnp.zeros((b, width), jnp.int32), jnp.ones((b,), jnp.int32))
  begin = abstract(lambda: (ids(case.source_len), ids(1), keys.row_keys(0, jnp.arange(b)),
                            jnp.ones((b,), bool)))
  rules = abstract(lambda: Rules(
      rules_lib.sampling(b), rules_lib.limits(b, case.max_decode_len),
      rules_lib.controls(b), rules_lib.speculation(b)))
  exits = abstract(lambda: Exits(jnp.int32(1), jnp.int32(1)))
  capacity = capacity_for(case.max_decode_len, case.gamma)
  with precision.matmul_precision(case.target.dtype):
    state = abstract(lambda w, *args: loop.start(method, w, *args, capacity), weights, *begin)
    first = None
    if with_start:
      first = _compiled(lambda: loop.start.lower(method, weights, *begin, capacity))
    run = _compiled(lambda: loop.run.lower(method, weights, state, rules, exits))
  matrices = [x for x in jax.tree.leaves(weights) if x.ndim > 1 and _nbytes(x) >= _SMALL]
  return Program(case, first, run, _nbytes(weights),
                 _of_call(weights.target, case.target), _nbytes(state.target_cache),
                 frozenset(_form(x.shape) for x in matrices))


def _compiled(lower: Callable[[], Any]) -> Compiled:
  begin = time.perf_counter()
  compiled = lower().compile()
  took = time.perf_counter() - begin
  stats = compiled.memory_analysis()
  memory = {"arguments": stats.argument_size_in_bytes, "outputs": stats.output_size_in_bytes,
            "aliased": stats.alias_size_in_bytes, "temporaries": stats.temp_size_in_bytes,
            "code": stats.generated_code_size_in_bytes}
  return Compiled(hlo.Module(compiled.as_text()), memory, took)


def _nbytes(tree: PyTree) -> int:
  return sum(math.prod(x.shape) * jnp.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree)
             if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key))


def _of_call(weights: PyTree, config: T5Config) -> int:
  """`weights.bytes_per_call` of shapes."""
  sized = jax.tree.map(lambda x: _Sized(_nbytes(x)), weights)
  return weights_lib.bytes_per_call(sized, config)


@dataclasses.dataclass(frozen=True)
class _Sized:
  nbytes: int


@dataclasses.dataclass(frozen=True)
class Check:
  """A property of a program: its name, whether it holds, and what was found."""

  name: str
  holds: bool
  found: str


@dataclasses.dataclass(frozen=True)
class Report:
  """What was found in a program.

  Attributes:
    checks: what must hold.
    figures: bytes per iteration and per call of the loop, see `docs/tpu.md`; JSON-ready.
  """

  checks: tuple[Check, ...]
  figures: dict[str, Any]

  @property
  def failed(self) -> tuple[Check, ...]:
    """Those of the checks that do not hold."""
    return tuple(c for c in self.checks if not c.holds)


def examine(program: Program) -> Report:
  """Reads a compiled program."""
  case, run = program.case, program.run
  # The first drafted token comes of the call before the drafter's loop.
  iteration = traffic.iteration(run.module, max(case.gamma - 1, 1))
  reads, ideal = iteration.by_origin(), program.decoder_weights + program.target_cache
  copied = _copied(iteration.moves, "weights.") + _copied(iteration.moves, "state.")
  once = _copied(iteration.before, "weights.") + _copied(iteration.before, "state.")
  peaks = {name: program.weights + p.memory["outputs"] + p.memory["temporaries"]
           + p.memory["code"] for name, p in _parts(program)}
  # Whatever is not the drafter's, what was computed on the way included.
  target = (iteration.read() - iteration.read("weights.drafter")
            - iteration.read("state.draft_state"))
  again = {name: n for name, n in reads.items() if name.startswith("weights.target")
           and _argument(run.module)[name].unpadded >= _SMALL
           and n > 1.05 * _argument(run.module)[name].nbytes}
  unaliased = run.memory["outputs"] - run.memory["aliased"]
  # Plain decoding, the baseline, may lay its caches out once per call of the loop: see
  # `copied_before_bytes`.
  moves = iteration.moves + (iteration.before if case.gamma else [])
  caches = [m for m in moves if m.rewrites and m.origin.startswith("state.target_cache")]
  floats = [line for _, p in _parts(program) for line in _floats(p.module, program.kernels)]
  calls = [line for _, p in _parts(program) for line in traffic.host_calls(p.module)]
  gib = lambda n: f"{n / 2**30:.2f} GiB"
  mb = lambda n: f"{n / 1e6:.1f} MB"
  checks = (
      Check("fits", max(peaks.values()) <= HBM_BYTES,
            f"{gib(max(peaks.values()))} of {gib(HBM_BYTES)}"),
      Check("reads", target <= MOST_READ * ideal,
            f"{mb(target)} but for the drafter's, {target / ideal:.3f} of the target's decoder "
            "weights and caches"),
      Check("weights once", not again and not _copied(iteration.moves, "weights."),
            f"{len(again)} weights of the target read twice, "
            f"{mb(_copied(iteration.moves, 'weights.'))} of weights copied in an iteration"),
      Check("weights as they are", not _copied(iteration.before, "weights.target"),
            f"{mb(_copied(iteration.before, 'weights.target'))} of the target's weights copied "
            "before the loop"),
      Check("caches in place", unaliased < _SMALL and not caches,
            f"{unaliased} bytes of state not aliased, {len(caches)} copies of the target's "
            "caches"),
      Check("no host", not calls, f"{len(calls)} host calls"),
      Check("no float32", not floats, f"{len(floats)} float32 copies of weights"))
  figures = {
      "hbm_peak_bytes": peaks,
      "memory": {name: p.memory for name, p in _parts(program)},
      "compile_s": {name: round(p.compile_s, 1) for name, p in _parts(program)},
      "decoder_weights_bytes": program.decoder_weights,
      "target_cache_bytes": program.target_cache,
      "weights_bytes": program.weights,
      "read_bytes": {
          "target_weights": iteration.read("weights.target"),
          "target_caches": iteration.read("state.target_cache"),
          "drafter_weights": iteration.read("weights.drafter"),
          "drafter_caches": iteration.read("state.draft_state"),
          "all_but_drafter": target,
          "all": iteration.read()},
      "written_bytes": iteration.written(),
      "copied_bytes": {"weights": _copied(iteration.moves, "weights."), "all": copied},
      "copied_before_bytes": {"target_weights": _copied(iteration.before, "weights.target"),
                              "all": once},
      "estimated_cycles": _cycles(iteration.moves),
  }
  return Report(checks, figures)


def _parts(program: Program) -> list[tuple[str, Compiled]]:
  return [(name, p) for name, p in (("start", program.start), ("run", program.run)) if p]


def _copied(moves: Sequence[traffic.Move], prefix: str) -> int:
  """Bytes of arguments that are stored once more, in another layout or dtype."""
  return sum(m.result.nbytes * m.times for m in moves
             if m.rewrites and m.origin.startswith(prefix) and m.result.unpadded >= _SMALL)




def _cycles(moves: Sequence[traffic.Move]) -> int:
  """The compiler's own estimate, of those operations that it has one for."""
  lines = {(m.line, m.times) for m in moves}
  found = ((re.search(r'"estimated_cycles":"(\d+)"', line), times) for line, times in lines)
  return sum(int(f[1]) * times for f, times in found if f)


@functools.lru_cache(maxsize=8)
def _argument(module: hlo.Module) -> dict[str, traffic.Array]:
  entry = module.computations[module.entry].values()
  return {traffic.argument(i): traffic.arrays(i.shape)[0]
          for i in entry if i.opcode == "parameter"}


def _form(shape: Sequence[int]) -> tuple[int, ...]:
  """A shape whatever its order. Sizes would not do: 64 heads of 512 x 512 scores are as
  many numbers as 4096 x 4096 weights."""
  return tuple(sorted(d for d in shape if d > 1))


def _floats(module: hlo.Module, kernels: frozenset[tuple[int, ...]]) -> list[str]:
  """Instructions that store float32 numbers in the shape of a matrix, or made of one.

  Within a fusion nothing is stored; there a product may well be computed in float32.
  """
  cast = {m.line for m in traffic.everything(module)
          if m.rewrites and m.origin.startswith("weights.") and m.result.dtype == "f32"
          and m.result.unpadded >= _SMALL}
  fused = {c for instructions in module.computations.values() for i in instructions.values()
           if i.opcode == "fusion" for c in i.called}
  return [i.line for name, instructions in module.computations.items() if name not in fused
          for i in instructions.values()
          if i.line in cast
          or (i.opcode not in ("parameter", "tuple", "get-tuple-element", "while", "conditional")
          and any(a.dtype == "f32" and _form(a.dims) in kernels for a in traffic.arrays(i.shape)))]
