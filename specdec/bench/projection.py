"""Speed-ups projected from the bytes of compiled programs, beside the paper's.

A projection, not a measurement: an iteration is taken to last as long as its traffic with HBM
does at the chip's full bandwidth. Nothing is added for the latency of operations, of which a
small drafter has many in relation to its bytes, so that its share of the time comes out too
low. The compiler's own estimates of operations (`estimated_cycles` in records) are of no use
instead: they leave out waiting for memory, and promise more than gamma + 1.
"""

from collections.abc import Mapping
from typing import Any

from specdec.analysis import paper
from specdec.analysis import theory
from specdec.bench import aot

PLAIN = "plain"
_PREFIX = "t5_1_1_"
ASSUMPTIONS = (
    "A projection: nothing here was measured on a TPU. alpha is the paper's.",
    "From bytes: an iteration lasts as long as reading and writing HBM does at "
    f"{aot.HBM_BYTES_PER_S / 1e9:.0f} GB/s (Google's system documentation of TPU v4, per chip); "
    "latencies of operations count nothing, and all else happens meanwhile.",
    "Plain decoding's figure per token is divided by an iteration's over the tokens that the "
    "paper's formula expects of it.",
)


def name_of(drafter: str, gamma: int) -> str:
  """`small:7`."""
  return f"{drafter}:{gamma}"


def of_paper() -> list[str]:
  """The programs that the paper's walltime table takes, plain decoding first."""
  rows = paper.read("walltime")["rows"]
  names = (name_of(r["drafter"].removeprefix(_PREFIX), r["gamma"]) for r in rows)
  return [PLAIN, *dict.fromkeys(names)]


def seconds(figures: Mapping[str, Any]) -> float:
  """Of an iteration, from bytes."""
  return (figures["read_bytes"]["all"] + figures["written_bytes"]) / aot.HBM_BYTES_PER_S


def rows(programs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
  """The paper's walltime table with projections.

  Args:
    programs: figures of `aot.examine` by name, `PLAIN` and others of `of_paper`.

  Returns:
    Rows whose program is there.
  """
  out = []
  plain = programs.get(PLAIN)
  for row in paper.read("walltime")["rows"]:
    figures = programs.get(name_of(row["drafter"].removeprefix(_PREFIX), row["gamma"]))
    if plain is None or figures is None:
      continue
    tokens = theory.tokens_per_iteration(row["alpha"], row["gamma"])
    out.append({
        **{k: row[k] for k in ("task", "drafter", "temperature", "gamma", "alpha")},
        "paper": row["speed_up"], "tokens_per_iteration": round(tokens, 2),
        "iteration_ms": round(1e3 * seconds(figures), 2),
        "from_bytes": round(tokens * seconds(plain) / seconds(figures), 2)})
  return out


def markdown(record: Mapping[str, Any]) -> str:
  """Both tables of a record of `scripts/tpu_aot.py`."""
  programs = {name: p["figures"] for name, p in record["programs"].items()}
  mb = lambda n: f"{n / 1e6:,.1f}"
  lines = [
      f"## T5-{record['target'].upper()} on one {record['chip']}, compiled by libtpu "
      f"{record['libtpu']}", "",
      "Megabytes (10^6) per iteration of the loop, unless said otherwise.", "",
      "| program | peak, GiB | target read | its weights and caches | ratio | drafter read | "
      "all read | written | weights copied | copied per call of the loop |",
      "|" + "---|" * 10]
  for name, f in programs.items():
    read = f["read_bytes"]
    target = read["all_but_drafter"]
    ideal = f["decoder_weights_bytes"] + f["target_cache_bytes"]
    cells = (
        name, f"{max(f['hbm_peak_bytes'].values()) / 2**30:.1f}", mb(target), mb(ideal),
        f"{target / ideal:.3f}", mb(read["drafter_weights"] + read["drafter_caches"]),
        mb(read["all"]), mb(f["written_bytes"]), mb(f["copied_bytes"]["weights"]),
        mb(f["copied_before_bytes"]["all"]))
    lines.append(f"| {' | '.join(cells)} |")
  lines += ["", "## Projected walltime", "",
            "| task | drafter | temperature | gamma | alpha | paper | projected from bytes |",
            "|" + "---|" * 7]
  for r in record["projection"]:
    cells = (paper.display(r["task"]), paper.display(r["drafter"]), r["temperature"], r["gamma"],
             r["alpha"], f"{r['paper']}x", f"{r['from_bytes']:.1f}x")
    lines.append(f"| {' | '.join(map(str, cells))} |")
  return "\n".join([*lines, "", *(f"* {a}" for a in ASSUMPTIONS)]) + "\n"
