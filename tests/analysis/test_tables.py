"""The paper's numbers as data, records, and the tables that both make."""

import json
import pathlib

import pytest

from specdec.analysis import paper
from specdec.analysis import records
from specdec.analysis import tables
from specdec.analysis import theory
from specdec.cli.main import run
from specdec.errors import SpecdecError
from tests.analysis import measured

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("name", tables.NAMES)
def test_each_file_says_what_its_fields_mean(name):
  found = paper.read(name)
  assert found["table"] == name and found["paper"] == paper.SOURCE
  for row in found["rows"]:
    assert set(row) == set(found["fields"])
  assert all(found["fields"].values())


def test_the_papers_numbers_agree_where_they_occur_twice():
  alpha = {(r["target"], r["task"], r["drafter"], r["temperature"]): r["alpha"]
           for r in paper.read("alpha")["rows"]}
  assert len(alpha) == 32
  speed = {}
  for r in paper.read("walltime")["rows"]:
    speed[r["task"], r["drafter"], r["temperature"]] = r["speed_up"], r["gamma"]
    assert alpha["t5_1_1_xxl", r["task"], r["drafter"], r["temperature"]] == r["alpha"]
  for r in paper.read("expected")["rows"]:
    key = r["task"], r["drafter"], r["temperature"]
    assert speed[key] == (r["measured"], r["gamma"])
    assert alpha["t5_1_1_xxl", *key] == r["alpha"]
  for r in paper.read("lenience")["rows"]:
    if r["lenience"] == 1:
      assert alpha["t5_1_1_xxl", r["task"], r["drafter"], r["temperature"]] == r["alpha"]
  best = [r for r in paper.read("walltime")["rows"] if r["best"]]
  assert [r["drafter"] for r in best] == ["t5_1_1_small"] * 4


SHAPES = {
    "walltime": (12, ["task", "M_q", "temp", "gamma", "alpha", "paper", "predicted"]),
    "alpha": (32, ["M_p", "task", "M_q", "temp", "paper", "predicted speed-up, at most"]),
    "expected": (12, ["task", "M_q", "temp", "gamma", "alpha", "c", "paper, expected", "predicted",
                      "paper, measured"]),
    "lenience": (20, ["task", "M_q", "temp", "l", "alpha", "gamma", "c", "paper", "predicted"]),
    "operations": (6, ["alpha", "gamma", "operations, paper", "operations, predicted",
                       "speed, paper", "speed, predicted"]),
}


@pytest.mark.parametrize("name", tables.NAMES)
def test_without_records_the_last_column_is_empty(name, capsys):
  assert run(["table", name]) == 0
  title, _, head, rule, *lines = capsys.readouterr().out.splitlines()
  assert title.startswith("### ")
  cells = lambda line: [c.strip() for c in line.strip("|").split(" | ")]
  count, columns = SHAPES[name]
  assert cells(head) == [*columns, "measured here"]
  assert rule == "|" + "---|" * (len(columns) + 1)
  rows = [cells(line) for line in lines if line.startswith("|")]
  assert len(rows) == count
  assert all(len(row) == len(columns) + 1 and row[-1] == "-" for row in rows)


def test_predictions_are_recomputed():
  row = tables.build("walltime").rows[0]
  # By hand: (1 - 0.75^8) / 0.25 tokens in 1 + 7 * 0.02 calls.
  assert row["predicted"] == pytest.approx((1 - 0.75**8) / 0.25 / 1.14)
  row = tables.build("operations").rows[3]
  assert row["predicted"] == pytest.approx(6 / sum(0.8**i for i in range(6)))
  small = [r for r in tables.build("lenience").rows if r["paper"] == 4.9]
  assert [r["predicted"] for r in small] == [pytest.approx((1 - 0.87**9) / 0.13 / 1.12)]


def _table(name, tmp_path, *files):
  """The table of records, by `specdec table --json`."""
  out = tmp_path / "table.json"
  assert run(["table", name, f"--json={out}", "--overwrite",
              *(f"--record={f}" for f in files)]) == 0
  return json.loads(out.read_text(encoding="utf-8"))


def test_a_measurement_stands_beside_the_papers(tmp_path, capsys):
  found = _table("walltime", tmp_path, measured.write(tmp_path / "a.json"))
  row = found["rows"][0]
  assert (row["task"], row["drafter_shown"], row["paper"]) == ("ende", "T5-small *", 3.4)
  assert row["here.gamma"] == 3
  assert row["here.measured"] == {"value": 1.6, "interval": [1.5, 1.7]}
  assert row["here.predicted"] == pytest.approx(theory.speed_up(0.75, 3, 0.095, 1.4))
  assert all(r["here.measured"] is None for r in found["rows"][1:])
  assert "| 3 | 0.75 (0.74 to 0.76) | 1.62x | 1.60x (1.50x to 1.70x) |" in capsys.readouterr().out
  assert "here: t5_1_1_large, widened weights, float32, batch 1, cpu" in found["notes"]


def test_theory_against_measurement_with_and_without_v(tmp_path):
  row = _table("expected", tmp_path, measured.write(tmp_path / "a.json"))["rows"][0]
  assert row["here.predicted"] == pytest.approx(theory.speed_up(0.75, 3, 0.095))
  assert row["here.with_v"] == pytest.approx(theory.speed_up(0.75, 3, 0.095, 1.4))


def test_what_the_paper_has_not_stands_below(tmp_path):
  rows = [{**measured.ROW, "task": "correct", "drafter": "copy"}]
  row = _table("walltime", tmp_path, measured.write(tmp_path / "a.json", rows=rows))["rows"][12]
  assert (row["task"], row["drafter_shown"], row["paper"]) == ("correct", "copy", None)
  assert row["here.measured"]["value"] == 1.6


def test_another_device_gets_columns_of_its_own(tmp_path):
  a = measured.write(tmp_path / "a.json")
  b = measured.write(tmp_path / "b.json", device="gpu", rows=[{**measured.ROW, "speed_up": 2.0,
                                                              "speed_up_interval": None}])
  found = _table("walltime", tmp_path, a, b)
  row = found["rows"][0]
  assert row["here_a.measured"]["value"] == 1.6
  assert row["here_b.measured"] == {"value": 2.0, "interval": None}
  assert any(n.startswith("here, B: ") and n.endswith("gpu") for n in found["notes"])


def test_records_of_one_device_share_columns_and_may_not_disagree(tmp_path):
  a = measured.write(tmp_path / "a.json")
  b = measured.write(tmp_path / "b.json", rows=[{**measured.ROW, "temperature": 1}])
  found = _table("walltime", tmp_path, a, b, a)
  assert [r["here.measured"] is not None for r in found["rows"][:4]] == [True, False, False, True]
  c = measured.write(tmp_path / "c.json", rows=[{**measured.ROW, "speed_up": 9.0,
                                                 "speed_up_interval": None}])
  with pytest.raises(SpecdecError, match=r"c.json and .*a.json both measured ende"):
    records.read_all([a, c])


def test_of_several_gammas_the_fastest_is_shown(tmp_path):
  rows = [{**measured.ROW, "gamma": g, "speed_up": s, "speed_up_interval": None}
          for g, s in ((2, 1.4), (4, 1.7), (6, 1.5))]
  row = _table("walltime", tmp_path, measured.write(tmp_path / "a.json", rows=rows))["rows"][0]
  assert (row["here.gamma"], row["here.measured"]["value"]) == (4, 1.7)


def test_lenient_rows_stay_out_of_lossless_tables(tmp_path):
  rows = [{**measured.ROW, "lenience": 0.5, "temperature": 1, "alpha": 0.8}, measured.ROW]
  file = measured.write(tmp_path / "a.json", rows=rows)
  found = _table("walltime", tmp_path, file)["rows"]
  assert [r["here.measured"] is not None for r in found[:4]] == [True, False, False, False]
  row = next(r for r in _table("lenience", tmp_path, file)["rows"]
             if (r["drafter"], r["temperature"], r["lenience"]) == ("t5_1_1_small", 1, 0.5))
  assert row["here.alpha"]["value"] == 0.8


def test_counted_operations(tmp_path):
  row = _table("operations", tmp_path, measured.write(tmp_path / "a.json"))["rows"][6]
  assert row["here.operations"] == pytest.approx(4 / 2.7)
  assert row["here.speed_up"] == 2.7 and row["paper"] is None
  assert row["predicted"] == pytest.approx(theory.operations(0.75, 3))


def test_a_record_of_bench(tmp_path):
  record = records.read(measured.write(tmp_path / "a.json", measured.BENCH))
  assert record.label == "target, trained weights, float32, batch 1, Some CPU"
  row, = record.rows
  assert (row.task, row.temperature, row.gamma, row.cost_ratio) == ("bench", 0, 2, 0.3)
  assert row.speed_up == records.Interval(1.1, 0.08, 0.2)
  assert record.timings == records.Timings("drafter", (0.1, 0.1, 0.12), 0.03)


def test_a_record_of_bench_whose_drafter_has_no_calls(tmp_path):
  seconds = {k: v for k, v in measured.BENCH["seconds"].items() if "drafter" not in k}
  seconds["drafter proposal"] = {**measured.SPREAD, "median": 0.01}
  record = records.read(measured.write(
      tmp_path / "a.json", measured.BENCH, seconds=seconds, temperature=1.0, task="ende",
      weights="widened", note="made up"))
  row, = record.rows
  assert record.timings.drafter_call_s == 0.005 and record.weights == "widened"
  assert (row.task, row.temperature, row.note) == ("ende", 1, "made up")


def test_the_record_that_comes_with_the_package_has_timings_and_no_rows():
  record = records.read(str(ROOT / "specdec" / "assets" / "bench" / "base_small.json"))
  assert record.rows == () and len(record.timings.target_call_s) == 5


def test_text_of_a_record_cannot_break_the_table(tmp_path):
  rows = [{**measured.ROW, "task": "a|b\nc", "note": "x|\ny"}]
  table = tables.build("walltime", [records.read(
      measured.write(tmp_path / "a.json", rows=rows))])
  line, = [x for x in table.markdown().splitlines() if x.startswith("| a\\|b c")]
  assert line.replace("\\|", "").count("|") == len(table.columns) + 1


def _without(fields, name):
  return {k: v for k, v in fields.items() if k != name}


@pytest.mark.parametrize("contents, expected", [
  ("{", "is not JSON; expected a record of specdec bench --json"),
  ("[1]", "holds no JSON object"),
  ("\xff".encode("latin-1"), "is not JSON"),
  ({}, "is of kind None; expected a record"),
  ({"kind": "batches"}, "is of kind 'batches'"),
  ({**measured.RECORD, "version": 2}, "version is 2; expected 1"),
  ({**measured.RECORD, "weights": "good"}, 'weights is "good"; expected one of trained'),
  ({**measured.RECORD, "weights": "random"}, "no acceptance of random weights means anything"),
  ({**measured.RECORD, "rows": 3}, "rows is 3; expected a list of objects"),
  (_without(measured.RECORD, "target"), "target is missing; expected a text"),
  ({**measured.RECORD, "batch_size": 0}, "batch_size is 0; expected an integer from 1"),
  ({**measured.RECORD, "batch_size": 1.5}, "batch_size is 1.5; expected an integer"),
  *(({**measured.RECORD, "rows": [measured.ROW, row]}, expected) for row, expected in (
      (_without(measured.ROW, "task"), "row 2, task is missing"),
      ({**measured.ROW, "alpha": 1.5}, "row 2, alpha is 1.5; expected a number from 0 to 1"),
      ({**measured.ROW, "alpha": "high"}, 'row 2, alpha is "high"'),
      ({**measured.ROW, "alpha": True}, "row 2, alpha is true"),
      ({**measured.ROW, "speed_up": float("nan")}, "row 2, speed_up is NaN"),
      ({**measured.ROW, "alpha_interval": [0.8, 0.7]}, "expected two numbers, the lower first"),
      ({**measured.ROW, "alpha": None}, "there is a alpha_interval"),
      ({**measured.ROW, "gamma": 0}, "row 2, gamma is 0; expected an integer from 1"),
      ({**measured.ROW, "lenience": 0}, "row 2, lenience is 0"),
      ({**measured.ROW, "sped_up": 2}, "row 2, sped_up is no field; did you mean speed_up?"),
  )),
  ({**measured.RECORD, "timings": {"drafter": "a", "drafter_call_s": 1, "target_call_s": []}},
   "timings, target_call_s is []; expected a list of seconds"),
  (_without(measured.BENCH, "seconds"), "seconds is missing; expected an object"),
  ({**measured.BENCH, "gamma": 3}, "target call, 4 tokens is missing"),
])
def test_a_wrong_record_is_told_in_one_line(mistake, tmp_path, contents, expected):
  path = tmp_path / "a.json"
  if isinstance(contents, dict):
    contents = json.dumps(contents)
  path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
  told = mistake("table", "walltime", f"--record={path}")
  assert expected in told and str(path) in told


@pytest.mark.parametrize("args, expected", [
    ([], "0 tables are named; expected one of walltime, alpha"),
    (["speed"], "there is no table 'speed'; expected one of walltime"),
    (["alpha", "lenience"], "2 tables are named"),
    (["alpha", "--record=/nowhere"], "cannot read --record /nowhere"),
    (["alpha", "--json=/nowhere/x.json"], "there is no folder /nowhere"),
])
def test_mistakes_of_table(mistake, args, expected):
  assert expected in mistake("table", *args)


def test_a_record_without_anything_for_the_table_is_refused(mistake, tmp_path):
  file = measured.write(tmp_path / "a.json", rows=[
      {"task": "ende", "drafter": "t5_1_1_small", "temperature": 0, "alpha": 0.7}])
  assert "holds nothing for the table walltime; expected rows with gamma and speed_up" in mistake(
      "table", "walltime", f"--record={file}")
  assert run(["table", "alpha", f"--record={file}"]) == 0
