"""The speculative program compiled for several TPU-v4 chips, on a machine without a TPU.

What a chip holds is read off the compiled modules and set beside what `engine.plan` says
without compiling anything.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

from specdec.bench import aot
from specdec.bench import collectives
from specdec.core import keys
from specdec.core import layout
from specdec.core import loop
from specdec.core import rules as rules_lib
from specdec.core.state import Exits
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.core.state import capacity_for
from specdec.drafters.transformer import TransformerDrafter
from specdec.engine import plan
from specdec.engine import precision
from specdec.errors import SpecdecError
from specdec.models.t5 import sharding
from specdec.models.t5 import weights as weights_lib
from specdec.models.t5.scorer import T5Scorer
from specdec.types import Rules
from specdec.types import Source

PyTree = Any


def make_mesh(chips: Sequence[Any], data: int, model: int) -> Mesh:
  """A mesh of chips that are described only.

  Raises:
    SpecdecError: there are not so many.
  """
  if data * model > len(chips):
    raise SpecdecError(f"--mesh has {data * model} chips and the topology {len(chips)}; expected "
                       "sizes whose product is at most that")
  grid = np.array(chips[:data * model]).reshape(data, model)
  return Mesh(grid, (layout.DATA, layout.MODEL), axis_types=(AxisType.Auto,) * 2)


def examine(case: aot.Case, mesh: Mesh, whole_drafter: bool = False) -> dict[str, Any]:
  """Compiles a case for a mesh.

  Args:
    case: what to compile.
    mesh: from `make_mesh`.
    whole_drafter: every chip holds the whole drafter.

  Returns:
    Bytes per chip, JSON-ready: `memory` of both programs, `peak`, `planned`; of the loop's
    program the number of `collectives` by kind, and `largest_exchanged`, the elements of the
    largest array of one.
  """
  data, model = mesh.shape[layout.DATA], mesh.shape[layout.MODEL]
  split = model > 1
  target = T5Scorer(case.target, out_in=False, split=split)
  small = case.drafter and T5Scorer(case.drafter, out_in=False,
                                    split=split and not whole_drafter)
  drafter = small and TransformerDrafter(small, target.vocab_size)
  method = Method(target, drafter, case.gamma)
  weights = Weights(_weights(target, mesh), _weights(small, mesh) if small else None)
  b = case.batch_size
  ids = lambda width: Source(jnp.zeros((b, width), jnp.int32), jnp.ones((b,), jnp.int32))
  begin = _placed(jax.eval_shape(lambda: (
      ids(case.source_len), ids(1), keys.row_keys(0, jnp.arange(b)), jnp.ones((b,), bool))),
      mesh, b)
  rules = _placed(jax.eval_shape(lambda: Rules(
      rules_lib.sampling(b), rules_lib.limits(b, case.max_decode_len),
      rules_lib.controls(b), rules_lib.speculation(b))), mesh, b)
  exits = _placed(jax.eval_shape(lambda: Exits(jnp.int32(1), jnp.int32(1))), mesh, b)
  capacity = capacity_for(case.max_decode_len, case.gamma)
  with precision.matmul_precision(case.target.dtype), jax.set_mesh(mesh):
    first = loop.start.lower(method, weights, *begin, capacity).compile()
    shapes = jax.eval_shape(lambda w, *args: loop.start(method, w, *args, capacity),
                            weights, *begin)
    state = jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        shapes, first.output_shardings)
    run = loop.run.lower(method, weights, state, rules, exits).compile()
  held = sum(_part(x) for x in jax.tree.leaves(weights))
  memory = {name: _memory(program) for name, program in (("start", first), ("run", run))}
  peak = max(held + m["outputs"] + m["temporaries"] + m["code"] for m in memory.values())
  exchanged = collectives.collectives(run.as_text())
  planned = plan.plan(plan.Wanted(
      case.target, case.drafter, case.gamma, b, case.source_len, case.max_decode_len, data, model,
      whole_drafter))
  return {"memory": memory, "weights": held, "peak": peak, "planned": planned.total,
          "planned_parts": planned.parts,
          "collectives": dict(Counter(c.kind for c in exchanged)),
          "largest_exchanged": max((c.size for c in exchanged), default=0)}


def _weights(scorer: T5Scorer, mesh: Mesh) -> PyTree:
  shapes = jax.eval_shape(scorer.prepare, weights_lib.abstract(scorer.config))
  return sharding.abstract(shapes, sharding.places(scorer.config, mesh, scorer.split))


def _placed(tree: PyTree, mesh: Mesh, rows: int) -> PyTree:
  """`mesh.place_rows` of shapes."""
  def one(x: Any) -> jax.ShapeDtypeStruct:
    split = x.ndim > 0 and x.shape[0] == rows and not rows % mesh.shape[layout.DATA]
    spec = PartitionSpec(layout.DATA) if split else PartitionSpec()
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))

  return jax.tree.map(one, tree)


def _part(x: jax.ShapeDtypeStruct) -> int:
  """Bytes of an array on one chip."""
  return int(np.prod(x.sharding.shard_shape(x.shape))) * jnp.dtype(x.dtype).itemsize


def _memory(program: Any) -> dict[str, int]:
  stats = program.memory_analysis()
  return {"arguments": stats.argument_size_in_bytes, "outputs": stats.output_size_in_bytes,
          "temporaries": stats.temp_size_in_bytes, "code": stats.generated_code_size_in_bytes}
