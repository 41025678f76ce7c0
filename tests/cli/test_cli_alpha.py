"""`specdec alpha`: its record, its screen, its mistakes."""

import json

import pytest

from specdec.analysis import records
from specdec.analysis import tables
from specdec.bench import alpha as alpha_lib
from specdec.cli import alpha
from specdec.cli.main import run

TEXTS = ("A small boat.", "The cat sleeps.", "Two children.")


def test_a_record_for_several_drafters(memory_pair, tmp_path, capsys):
  path = tmp_path / "alpha.json"
  assert run(["alpha", "--pair=tiny", "--task=none", "--temperature=1", "--gamma=2",
              f"--drafters={memory_pair.drafter.name},copy", "--leniences=1,0.5",
              f"--json={path}", *TEXTS]) == 0
  out = capsys.readouterr().out
  assert "alpha (95 %)" in out and "copy at lenience 1, by place in a draft" in out
  fields = json.loads(path.read_text(encoding="utf-8"))
  read = records.read(str(path))
  assert [(r.drafter, r.lenience) for r in read.rows] == [
      (name, x) for name in (memory_pair.drafter.name, "copy") for x in (1.0, 0.5)]
  strict, lenient = read.rows[:2]
  assert 0 < strict.alpha.low <= strict.alpha.value <= strict.alpha.high < lenient.alpha.value
  details = fields["rows"][0]["details"]
  assert details["outputs"] == 3 and details["drafted"] == details["tokens"]
  assert fields["rows"][2]["details"]["drafted"] < details["tokens"], "nothing to copy at first"
  assert "here.measured" in [c.key for c in tables.build("alpha", [read]).columns]


@pytest.mark.parametrize("lenience, temperature", [(1.0, 0.0), (1.0, 1.0), (0.3, 1.0)])
def test_runs_of_a_t5_keep_to_their_rates(memory_pair, lenience, temperature):
  done = alpha_lib.calibrate(memory_pair, TEXTS * 4, task="", gamma=2, temperature=temperature,
                             lenience=lenience)
  assert done.tested > 30 and done.holds
  assert (done.standard_error == 0) == (temperature == 0)


@pytest.mark.parametrize("args, expected", [
    (["--leniences=0"], "--leniences is '0'; expected numbers above 0"),
    (["--temperature=-1"], "temperature is -1"),
    (["--gamma=0"], "gamma is 0; expected an integer from 1 to 64"),
    (["--drafters=drafter,bigrm"], "did you mean bigram?"),
    (["--drafters=copy,,bigram"], "expected drafters with commas between them"),
    (["--drafters=copy", "--drafter=copy"], "--drafter does not go with --drafters"),
    (["--input_file=/nowhere/x.txt"], "there are texts and an --input_file"),
    (["--task=sing"], "has no task 'sing'"),
    (["--json=/nowhere/x.json"], "there is no folder /nowhere"),
])
def test_mistakes(mistake, args, expected):
  assert expected in mistake("alpha", *args, "A text.")


def test_commas_of_options_do_not_part_drafters():
  assert alpha.split("copy:max_match=3,min_match=1,bigram+drafter,uniform") == [
      "copy:max_match=3,min_match=1", "bigram+drafter", "uniform"]
