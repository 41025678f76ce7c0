"""`specdec plan`: what fits on which devices, before anything is loaded."""

from collections.abc import Sequence
import dataclasses
import math
from typing import TYPE_CHECKING
from typing import Any

from specdec.cli import outputs
from specdec.cli.flags import Flags
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.engine.plan import Plan
  from specdec.engine.plan import Wanted
  from specdec.models.t5.config import T5Config

INTRO = """\
specdec plan: memory per device of a pair of models, worked out of shapes.

Usage
  specdec plan --target=SIZE|PATH [--drafter=SIZE|PATH] [FLAGS]
  specdec plan --device=NAME

The first form says what weights, caches, logits and workspace take on each device,
and ends with exit code 2 if that is more than the device has. The second lists the
public T5 v1.1 sizes and what drafts for each on such a device. Nothing is loaded."""

OUTRO = """\
Examples
  specdec plan --target=xxl --drafter=small --device=v4
  specdec plan --target=xxl --drafter=small --device=v5e --mesh=model:2 --batch_size=4
  specdec plan --device=v5e"""

# Drafters that hold no weights worth counting.
_WEIGHTLESS = ("copy", "uniform", "none")
# T5 v1.1, the smallest first.
_PUBLIC = ("small", "base", "large", "xl", "xxl")


def make_flags() -> Flags:
  """The command's flags."""
  flags = Flags("plan", INTRO, OUTRO)
  flags.group("Models")
  flags.text("target", None, "SIZE|PATH", "small, base, large, xl, xxl, or a checkpoint, of which "
             "only the architecture is read")
  flags.text("drafter", "none", "SIZE|PATH", "likewise; or copy, uniform, none, which take next to "
             "nothing")
  flags.choice("dtype", ("bfloat16", "float32"), "bfloat16", "of weights and caches")
  flags.group("Batch")
  flags.whole("batch_size", 1, "rows, over all devices")
  flags.whole("source_len", 512, "tokens of an encoder input, padded")
  flags.whole("max_decode_len", 128, "most tokens of an output")
  flags.whole("gamma", 4, "tokens drafted per target call")
  flags.group("Devices")
  flags.text("device", None, "NAME", "v3, v4, v5e, v5p, v6e, t4, l4, a100-40gb, a100-80gb, h100 "
             "or h200 [what is here]")
  flags.text("memory", None, "GIB", "memory of a device, instead of --device")
  flags.text("mesh", None, "AXES", "devices by axis, such as data:2,model:4 [one device]")
  flags.choice("drafter_layout", ("split", "whole"), "split", "whether the drafter is split over "
               "model as the target is, or every device holds all of it")
  flags.group("Output")
  flags.switch("json", "one line of JSON instead of a table")
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command."""
  from specdec.engine.settings import whole

  if args:
    raise SpecdecError(f"{args[0]!r} is no flag of specdec plan; type --target=xxl "
                       "--drafter=small, say")
  for name in ("batch_size", "source_len", "max_decode_len"):
    whole(name, getattr(flags, name), 1, 2**20)
  whole("gamma", flags.gamma, 0, 64)
  memory, bandwidth = _device(flags)
  if flags.target is None:
    if flags.drafter != "none":
      raise SpecdecError("--drafter is given without a --target; add one, such as --target=xxl")
    return _recommend(flags, memory)
  return _plan(flags, _wanted(flags, flags.target, flags.drafter, flags.dtype), memory, bandwidth)


def _device(flags: Flags) -> tuple[float, float | None]:
  """Bytes of memory of a device, and bytes per second of it where they are known."""
  from specdec.engine import plan

  if flags.memory is not None:
    if flags.device is not None:
      raise SpecdecError("--memory does not go with --device; drop one of the two")
    try:
      gib = float(flags.memory)
    except ValueError:
      gib = math.nan
    if not 0 < gib < 2**20:
      raise SpecdecError(f"--memory is {flags.memory!r}; expected GiB, such as --memory=16")
    return gib * plan.GIB, None
  if flags.device is not None:
    found = plan.DEVICES.get(flags.device.lower())
    if found is None:
      raise SpecdecError(f"--device is {flags.device!r}; expected one of "
                         f"{', '.join(plan.DEVICES)}, or --memory=GIB")
    return found.memory * plan.GIB, found.bandwidth * 1e9
  return _here(), None


def _here() -> float:
  """Bytes of a device of this machine; of its main memory, where that is what there is."""
  import os

  import jax

  stats = jax.local_devices()[0].memory_stats() or {}
  if "bytes_limit" in stats:
    return stats["bytes_limit"]
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _config(name: str, flag: str) -> "T5Config":
  """Of a size by its name, or of a checkpoint."""
  import os

  from specdec.engine import models
  from specdec.models.t5 import sizes

  if name in sizes.names():
    return sizes.load(name)
  if not os.path.exists(name) and "/" not in name:
    raise SpecdecError(f"--{flag} is {name!r}, which is neither a size nor a checkpoint; expected "
                       f"one of {', '.join(sizes.names())}, or a path")
  return models.open_model(name).config


def _wanted(flags: Flags, target: str, drafter: str, dtype: str, model: int | None = None
            ) -> "Wanted":
  from specdec.engine import mesh as mesh_lib
  from specdec.engine import plan

  axes = mesh_lib.parse(flags.mesh) if flags.mesh is not None else {"data": 1, "model": 1}
  small = None if drafter in _WEIGHTLESS else _config(drafter, "drafter").replace(dtype=dtype)
  if flags.batch_size % axes["data"]:
    raise SpecdecError(f"--batch_size={flags.batch_size} cannot be split over data:{axes['data']}; "
                       f"expected a multiple of {axes['data']}")
  return plan.Wanted(
      _config(target, "target").replace(dtype=dtype), small,
      flags.gamma if drafter != "none" else 0, flags.batch_size, flags.source_len,
      flags.max_decode_len, axes["data"], model or axes["model"],
      flags.drafter_layout == "whole")


def _plan(flags: Flags, wanted: "Wanted", memory: float, bandwidth: float | None) -> int:
  from specdec.engine import plan

  found = plan.plan(wanted)
  if flags.json:
    outputs.print_line(outputs.to_json({
        "bytes_per_device": found.parts, "total": found.total, "memory": int(memory),
        "fits": found.total <= memory, "call_bytes": found.call_bytes,
        "draft_call_bytes": found.draft_call_bytes}))
  else:
    _show(found, memory, bandwidth)
  if found.total > memory:
    raise SpecdecError(_too_large(flags, wanted, found, memory))
  return 0


def _show(found: "Plan", memory: float, bandwidth: float | None) -> None:
  rows = [[name, _gib(n)] for name, n in found.parts.items()]
  outputs.print_table(["per device", "GiB"], [*rows, ["together", _gib(found.total)],
                                              ["of", _gib(memory)]])
  if bandwidth is not None:
    outputs.print_line("")
    drafts = (f", one of the drafter {1e3 * found.draft_call_bytes / bandwidth:.2f} ms"
              if found.draft_call_bytes else "")
    outputs.print_line(f"at {bandwidth / 1e9:.0f} GB/s a target call lasts "
                       f"{1e3 * found.call_bytes / bandwidth:.1f} ms at least{drafts}: what it "
                       "reads of weights and caches")


def _too_large(flags: Flags, wanted: "Wanted", found: "Plan", memory: float) -> str:
  """What was found, and the least that would help."""
  from specdec.engine import plan

  ways = []
  least = plan.smallest_model_axis(wanted, memory)
  if least is not None:
    data = f"data:{wanted.data}," if wanted.data > 1 else ""
    ways.append(f"--mesh={data}model:{least}")
  if flags.dtype == "float32":
    half = dataclasses.replace(wanted, target=wanted.target.replace(dtype="bfloat16"),
                               drafter=wanted.drafter and wanted.drafter.replace(dtype="bfloat16"))
    if plan.plan(half).total <= memory:
      ways.append("--dtype=bfloat16")
  if wanted.batch_size > wanted.data:
    rows = wanted.batch_size
    while rows > wanted.data:
      rows = max(rows // 2 // wanted.data * wanted.data, wanted.data)
      if plan.plan(dataclasses.replace(wanted, batch_size=rows)).total <= memory:
        ways.append(f"--batch_size={rows}")
        break
  hint = f"type {' or '.join(ways)}" if ways else "choose a smaller --target"
  return (f"{_gib(found.total)} GiB do not fit a device of {_gib(memory)} GiB (weights alone: "
          f"{_gib(found.parts['target weights'] + found.parts['drafter weights'])}); {hint}")


def _recommend(flags: Flags, memory: float) -> int:
  """What fits of the public sizes, with the drafter to begin with."""
  from specdec.engine import plan

  order = _PUBLIC
  rows: list[list[str]] = []
  lines: list[dict[str, Any]] = []
  for name in order:
    # The paper's best drafter of the family is its smallest, for targets ten times as large
    # and more; below, what needs no weights costs nothing to try.
    drafter = "small" if _parameters(name) >= 8 * _parameters(order[0]) else "copy"
    total = plan.plan(_wanted(flags, name, drafter, flags.dtype)).total
    fits = total <= memory
    least = 1 if fits else plan.smallest_model_axis(
        _wanted(flags, name, drafter, flags.dtype), memory)
    how = "fits" if fits else f"with --mesh=model:{least}" if least else "does not fit"
    rows.append([name, drafter, _gib(total), how])
    lines.append({"target": name, "drafter": drafter, "total": total, "fits": fits,
                  "model_axis": least})
  if flags.json:
    for line in lines:
      outputs.print_line(outputs.to_json(line))
    return 0
  outputs.print_table(["target", "drafter", "GiB per device", f"of {_gib(memory)} GiB"], rows)
  best = [row for row, line in zip(rows, lines) if line["fits"]]
  outputs.print_line("")
  outputs.print_line(f"the largest that fits: --target={best[-1][0]} --drafter={best[-1][1]}"
                     if best else "none fits on one device of such a size")
  return 0


def _parameters(name: str) -> int:
  from specdec.models.t5 import sizes
  from specdec.models.t5 import weights

  return weights.count(sizes.load(name))


def _gib(n: float) -> str:
  return f"{n / 2**30:.2f}"
