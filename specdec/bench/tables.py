"""Tables of measurements in README and docs, from the records that come with the package."""

from collections.abc import Iterable
import json
import pathlib
from typing import Any

from specdec.bench.timing import percent_text
from specdec.bench.timing import spread_text
from specdec.errors import SpecdecError

RECORDS = pathlib.Path(__file__).parents[1] / "assets" / "bench"
# The pages that hold tables, and where these stand in them, by name.
PAGES = ("README.md", "docs/drafters.md", "docs/speed.md")
BEGIN, END = "<!-- {} tables: scripts/readme_tables.py -->", "<!-- end of {} tables -->"

# Those that a user can type; others are named by how they were made.
_SHIPPED = ("drafter", "bigram", "copy", "uniform", "bigram+drafter")
_LABELS = {"t5x": "T5X", "hf": "Hugging Face", "ctranslate2": "CTranslate2",
           "ctranslate2_int8": "CTranslate2"}
# Records of a trained pair at the cost of larger models, by what was decoded.
_WIDENED = {"translate": "large_translate", "translate, longer sentences": "large_translate_long",
            "correct": "large_correct"}


def read(name: str) -> dict[str, Any]:
  """A record by file name without its ending."""
  return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


def names(page: str) -> list[str]:
  """The tables that a page's text has a place for.

  Raises:
    SpecdecError: a marker is missing, or stands there twice.
  """
  found = []
  for name in _TABLES:
    begin, end = page.count(BEGIN.format(name)), page.count(END.format(name))
    if (begin, end) == (1, 1):
      found.append(name)
    elif begin or end:
      raise SpecdecError(f"expected one line {BEGIN.format(name)!r} and one {END.format(name)!r} "
                         "in a page, or neither")
  return found


def insert(page: str) -> str:
  """A page's text with the tables between their markers written anew.

  Raises:
    SpecdecError: a marker is missing.
  """
  for name in names(page):
    begin, end = BEGIN.format(name), END.format(name)
    before, rest = page.split(begin)
    page = before + "\n".join([begin, *_TABLES[name](), end]) + rest.split(end)[1]
  return page


def _speed() -> list[str]:
  return [*_calls(read("base_small")), "",
          *_widened({task: read(name) for task, name in _WIDENED.items()}), "",
          *_batches(read("small_batches"))]


def _drafters() -> list[str]:
  return [*_counts(read("demo_drafters")), "", *_gammas(read("demo_gammas"))]


def _counts(r: dict[str, Any]) -> list[str]:
  """Drafters, verifiers and lenience, in counts."""
  found = {(d["drafter"], d["task"], d["temperature"]): d for d in r["drafters"]}
  names = list(dict.fromkeys(d["drafter"] for d in r["drafters"]))

  def cells(name: str, task: str) -> list[str]:
    rows = [found.get((name, task, temperature)) for temperature in (0.0, 1.0)]
    if None in rows:
      return ["-", "-"]
    return [" / ".join(f"{row[key]:.2f}" for row in rows) for key in ("alpha", "tokens_per_call")]

  alike = all(d["identical"] == r["sentences"] for d in r["drafters"] if "identical" in d)
  by_task = {task: {v["verifier"]: v for v in r["verifiers"] if v["task"] == task}
             for task in ("translate", "correct")}
  gains = [f"{both['block']['mean']:.2f} (s.e. {both['block']['standard_error']:.2f}) against "
           f"{both['token']['mean']:.2f} ({both['token']['standard_error']:.2f}) on {task}"
           for task, both in by_task.items()]
  lenient = {(x["lenience"], x["temperature"]): x["alpha"] for x in r["leniences"]}
  leniences = sorted({x["lenience"] for x in r["leniences"]}, reverse=True)
  return [
      f"Demo pair, {r['sentences']} sentences of the test set, at most {r['drafters'][0]['gamma']} "
      "tokens drafted, temperature 0 / 1"
      + ("; greedy outputs are those of plain decoding with every drafter:" if alike else ":"),
      "",
      *_table(["drafter", "alpha, translate", "tokens per target call", "alpha, correct",
               "tokens per target call"],
              [[f"`{name}`" if name in _SHIPPED else name, *cells(name, "translate"),
                *cells(name, "correct")] for name in names]),
      "",
      f"Tokens per target call at temperature 1, gamma {r['verifiers'][0]['gamma']}, mean of "
      f"{len(r['verifiers'][0]['tokens_per_call'])} seeds, block against token verification: "
      f"{'; '.join(gains)}.",
      "",
      "Alpha under lenient verification, translate:",
      "",
      *_table(["lenience", *(f"{x:g}" for x in leniences)], [
          [f"temperature {t:g}", *(f"{lenient[x, t]:.2f}" for x in leniences)]
          for t in (0.0, 1.0)])]


def _gammas(r: dict[str, Any]) -> list[str]:
  """Automatic gamma beside fixed ones."""
  fixed = [name for name in r["rows"][0]["speed_up"] if name.startswith("gamma")]
  shown = ["auto", *fixed, "auto, useless drafter"]
  return [
      f"Speed-up over plain decoding by gamma, {r['cpu_cores']} cores of "
      f"{r['cpu'] or r['device']}, "
      f"medians of {r['repeats']} rounds in one run (`auto` with quartiles):",
      "",
      *_table(["task", "batch", *shown],
              [[row["task"], str(row["batch_size"]), spread_text(row["speed_up"]["auto"]),
                *(f"{row['speed_up'][name]['median']:.2f}" for name in shown[1:])]
               for row in r["rows"]])]


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


def _widened(records: dict[str, dict[str, Any]]) -> list[str]:
  """A trained pair at the cost of larger shapes: predicted, measured, and beside others."""
  first = next(iter(records.values()))
  rows = []
  for task, r in records.items():
    at, others = r["expected_at_alpha"], r["baselines"]
    beside = [spread_text(others[name]["ratio_speculative"]) if name in others else "-"
              for name in ("t5x", "hf_assisted")]
    rows.append([task, f"{_size(r['drafter'])}, {r['gamma']}", f"{r['alpha']:.2f}",
                 f"{r['tokens_per_call']:.2f}", f"{r['cost_ratio']['median']:.2f}",
                 f"{r['verify_ratio']['median']:.2f}", f"{at['with_verify_ratio']:.2f}",
                 f"{at['with_counted_tokens']:.2f}", spread_text(r["speed_up"]), *beside])
  alike = all(r["identical_outputs"] == r["rows"] for r in records.values())
  return [
      f"The demo pair widened to {_size(first['target'])}, {first['dtype']}, batch "
      f"{first['batch_size']}, temperature 0, {first['cpu_cores']} cores of "
      f"{first['cpu'] or first['device']}; speed-up over our own plain decoding, and whole "
      "decodes, encoding included, against T5X's plain decoding and assisted generation of Hugging "
      "Face"
      + ("; all outputs are those of plain decoding:" if alike else ":"),
      "",
      *_table(["task", "drafter, gamma", "alpha", "tokens a call", "c", "v",
               "by the formula with v", "by tokens counted", "measured", "over T5X",
               "over assisted generation"], rows)]


def _size(name: str) -> str:
  """`T5-large` for `t5_1_1_large`."""
  return name.replace("t5_1_1_", "T5-")


def _where(r: dict[str, Any]) -> str:
  return (f"{r['weights']} weights, {r['dtype']}, batch {r['batch_size']}, {r['cpu_cores']} "
          f"cores of {r['cpu'] or r['device']}" if r["kind"] == "calls" else
          f"{r['weights']} weights, {r['dtype']}, {r['cpu_cores']} cores of "
          f"{r['cpu'] or r['device']}")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
  head = list(head)
  line = lambda cells: f"| {' | '.join(cells)} |"
  return [line(head), "|" + "---|" * len(head), *map(line, rows)]


def _summary() -> list[str]:
  """README's first table: what speculation saves, and what that was worth in time."""
  r = json.loads((RECORDS.parent / "demo" / "evaluation.json").read_text(encoding="utf-8"))
  metrics = {"bleu": "BLEU", "exact_match": "exact match"}
  rows = []
  for x in r["results"]:
    (name,) = (name for name in metrics if f"plain_{name}" in x)
    digits = 2 if name == "bleu" else 3
    rows.append([f"{x['task']}, {metrics[name]}", f"{x['temperature']:g}",
                 *(f"{x[f'{mode}_{name}']:.{digits}f}" for mode in ("plain", "speculative")),
                 f"{x['alpha']:.3f}", f"{x['tokens_per_call']:.2f}",
                 f"{x['identical']} of {r['sentences']}" if "identical" in x else "-"])
  lines = _table(["task", "temperature", "plain", "speculative", "alpha", "tokens per target call",
                  "identical outputs"], rows)
  return [*lines, "", *_times({task: read(name) for task, name in _WIDENED.items()})]


def _times(records: dict[str, dict[str, Any]]) -> list[str]:
  """Speed-ups of a trained pair at the cost of larger models."""
  first = next(iter(records.values()))
  beside = lambda r, name: (spread_text(r["baselines"][name]["ratio_speculative"])
                            if name in r["baselines"] else "-")
  return [
      f"The same pair inside the matrices of {_size(first['target'])}, at its cost (temperature 0, "
      f"{first['dtype']}, batch {first['batch_size']}, {first['cpu_cores']} cores of "
      f"{first['cpu'] or first['device']}); how many times as fast as",
      "",
      *_table(["task", "drafter, gamma", "alpha", "plain decoding", "T5X's plain decoding",
               "Hugging Face's assisted generation"],
              [[task, f"{_size(r['drafter'])}, {r['gamma']}", f"{r['alpha']:.2f}",
                spread_text(r["speed_up"]), beside(r, "t5x"), beside(r, "hf_assisted")]
               for task, r in records.items()])]


# By the names in their markers.
_TABLES = {"summary": _summary, "bench": _speed, "drafter": _drafters}
