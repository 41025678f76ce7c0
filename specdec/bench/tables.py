"""The tables of README's section on speed, from the records that come with the package."""

from collections.abc import Iterable
import json
import pathlib
from typing import Any

from specdec.bench.timing import percent_text
from specdec.bench.timing import spread_text
from specdec.errors import SpecdecError

RECORDS = pathlib.Path(__file__).parents[1] / "assets" / "bench"
BEGIN, END = "<!-- bench tables: scripts/readme_tables.py -->", "<!-- end of bench tables -->"

_LABELS = {"t5x": "T5X", "hf": "Hugging Face", "ctranslate2": "CTranslate2",
           "ctranslate2_int8": "CTranslate2"}


def read(name: str) -> dict[str, Any]:
  """A record by file name without its ending."""
  return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


def insert(readme: str) -> str:
  """README's text with the tables between their markers written anew.

  Raises:
    SpecdecError: a marker is missing.
  """
  if readme.count(BEGIN) != 1 or readme.count(END) != 1:
    raise SpecdecError(f"expected one line {BEGIN!r} and one {END!r} in README.md")
  before, rest = readme.split(BEGIN)
  return before + BEGIN + "\n" + body() + END + rest.split(END)[1]


def body() -> str:
  """What stands between the markers."""
  return "\n".join([*_calls(read("base_small")), "", *_batches(read("small_batches")), ""])


def _calls(r: dict[str, Any]) -> list[str]:
  gamma = r["gamma"]
  lines = [
      f"Plain decoding at the shape of T5-{r['target']}, {_where(r)}; time a token, with "
      "specdec's as 1:",
      "",
      *_table(["", "dtype", "time a token", "same ids"], [
          ["specdec", r["dtype"], "1", ""],
          *([f"{_LABELS[name]} {b['version']}", b["dtype"], spread_text(b["ratio"]),
             "yes" if b["rows_alike"] == r["batch_size"] else f"up to {b['first_difference']}"]
            for name, b in r["baselines"].items())]),
      "",
      f"Its loop reads weights at {percent_text(r['plain_read_share'])} of the speed at which the "
      f"same run read memory ({r['memory_read']['method']}, the fastest way it found).",
      "",
      f"What an iteration with a T5-{r['drafter']} drafter and gamma {gamma} consists of:",
      "",
      *_table(["", ""], [
          ["c, drafter call / target call", spread_text(r["cost_ratio"])],
          [f"v, target call of {gamma + 1} tokens / of 1", spread_text(r["verify_ratio"])],
          ["loop overhead, share of the iteration", percent_text(r["loop_overhead"])],
          *([f"expected speed-up at alpha {e['alpha']:g}: paper / with v / with the loop's time",
             f"{e['paper']:.2f} / {e['with_verify_ratio']:.2f} / "
             f"{e['with_measured_iteration']:.2f}"] for e in r["expected_speed_up"])])]
  return lines


def _batches(r: dict[str, Any]) -> list[str]:
  alike = all(b["rows_alike_plain"] == b["rows_alike_speculative"] == b["batch_size"]
              for b in r["batches"])
  return [
      f"Batches at the shape of T5-{r['target']}, {_where(r)}; "
      + ("every row equals its own run, plain and speculative:" if alike
         else "rows that differ from their own runs are in the record:"),
      "",
      *_table(["batch", *(str(b["batch_size"]) for b in r["batches"])], [
          ["plain tokens a second, batch 1 as 1",
           *(f"{b['times_batch_1']['median']:.2f}" for b in r["batches"])],
          [f"speculative iterations of all rows a second (gamma {r['gamma']}), likewise",
           *(f"{b['iteration_times_batch_1']['median']:.2f}" for b in r["batches"])]])]


def _where(r: dict[str, Any]) -> str:
  return (f"{r['weights']} weights, {r['dtype']}, batch {r['batch_size']}, {r['cpu_cores']} "
          f"cores of {r['cpu'] or r['device']}" if r["kind"] == "calls" else
          f"{r['weights']} weights, {r['dtype']}, {r['cpu_cores']} cores of "
          f"{r['cpu'] or r['device']}")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
  head = list(head)
  line = lambda cells: f"| {' | '.join(cells)} |"
  return [line(head), "|" + "---|" * len(head), *map(line, rows)]
