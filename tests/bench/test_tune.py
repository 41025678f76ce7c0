"""Tuning: what is measured, what is chosen, and that a run takes it up again."""

import dataclasses
import json
import os
import signal
import time

import numpy as np
import pytest

import specdec
from specdec.bench import tune
from specdec.bench.timing import Spread
from specdec.cli import gin_bindings
from specdec.cli.main import run
from specdec.engine.costs import Costs
from specdec.errors import SpecdecError
from specdec.testing import tiny

TEXTS = list(tiny.SENTENCES[:3])
# Three sizes at most fit into so few tokens: each is a program to compile.
OPTIONS = dict(max_decode_len=3, batch_size=2)
COSTS = Costs((1.0, 1.1, 1.2), 0.8, (0, 1, 2), (1.0, 1.02, 1.1), 2)


def spread(value):
  return Spread(value, value, value, (value, value))


def candidate(spec, speed_up):
  return tune.Candidate(spec, COSTS, 2, 1.9, spread(3.0), spread(speed_up))


def tuned(*candidates, **settings):
  environment = {"device": "cpu", "devices": 1, "jax": "0", "date": "today"}
  return tune.Tuned("demo", None, settings, 5, candidates, "drafter", environment)


@pytest.fixture(scope="module")
def found():
  return tune.tune(tiny.pair(), TEXTS, [tiny.pair().drafter.name], task="", rounds=2, **OPTIONS)


def test_costs_acceptance_and_speed_are_measured(found):
  (only,) = found.candidates
  assert only.costs.sizes == (0, 1, 2) and only.costs.batch_size == 2
  assert only.costs.iteration[0] == only.costs.verify[0] == 1.0
  expected = only.costs.speed_up(only.costs.alpha)
  assert only.gamma == only.costs.sizes[int(np.argmax(expected))]
  np.testing.assert_allclose(only.expected, expected.max())
  usual = specdec.generate(tiny.pair(), TEXTS[:2], task="", gamma=2, **OPTIONS)
  assert abs(only.costs.alpha - usual.alpha) < 0.5
  assert len(json.loads(json.dumps(found.to_dict()))["drafters"]) == 1


def test_the_gin_file_says_what_was_measured_and_runs(found, tmp_path):
  path = tmp_path / "tuned.gin"
  path.write_text(tuned(candidate("drafter", 1.4), **OPTIONS).to_gin())
  bound = gin_bindings.read([str(path)], [])
  assert bound.costs == COSTS and bound.pair == {}
  assert bound.settings == {"gamma": "auto", **OPTIONS}
  result = specdec.generate(tiny.pair(), TEXTS, task="", costs=bound.costs, **bound.settings)
  plain = specdec.generate(tiny.pair(), TEXTS, task="", mode="plain", **OPTIONS)
  assert result.ids == plain.ids and result.costs == COSTS


def test_the_fastest_wins_and_plain_decoding_where_none_is_faster():
  best = tuned(candidate("copy", 1.4), candidate("drafter", 1.2), temperature=1.0)
  assert best.winner.spec == "copy"
  gin = best.to_gin({"pair": "demo", "target": None, "vocabulary": "bytes"})
  bound = gin_bindings.read([], [line for line in gin.splitlines() if "=" in line])
  assert bound.pair == {"drafter": "copy", "vocabulary": "bytes"}
  assert bound.settings == {"gamma": "auto", "temperature": 1.0}
  none = tuned(candidate("copy", 0.9))
  assert none.winner is None and none.to_dict()["winner"] is None
  assert gin_bindings.read([], none.to_gin().splitlines()[3:4]).settings == {"mode": "plain"}


def test_what_cannot_be_tuned_is_refused():
  for texts, specs, settings, told in (([], ["copy"], {}, "nothing to measure"),
                                       (["A"], [], {}, "nothing to measure"),
                                       (["A"], ["copy"], {"gamma": 3}, "gamma does not go")):
    with pytest.raises(SpecdecError, match=told):
      tune.tune(tiny.pair(), texts, specs, **settings)


@pytest.mark.parametrize("args, told", [
    (["--try=nowhere", "A"], "nowhere"), (["--batch_size=0", "A"], "batch_size"),
    (["--rounds=0", "A"], "rounds"), (["--output_file=/no/where.gin", "A"], "no folder"),
    (["--input_file=nowhere.txt"], "nowhere.txt")])
def test_mistakes_on_the_command_line(args, told, capsys):
  assert run(["tune", *args]) == 2
  said = capsys.readouterr()
  assert told in said.err and said.err.count("\n") == 1 and not said.out


def test_the_command_writes_a_file_and_a_table(monkeypatch, tmp_path, capsys):
  done = dataclasses.replace(tuned(candidate("drafter", 1.4)))
  monkeypatch.setattr("specdec.cli.tune._tune", lambda *args: done)
  out, record = tmp_path / "tuned.gin", tmp_path / "tuned.json"
  assert run(["tune", "A dog.", f"--output_file={out}", f"--json={record}"]) == 0
  said = capsys.readouterr()
  assert "1.40x" in said.out and "drafter is the fastest of 1" in said.out
  assert "Costs.alpha = 0.8" in out.read_text() and json.loads(record.read_text())["inputs"] == 5


def test_a_request_to_end_leaves_no_empty_file(monkeypatch, tmp_path, capsys):
  def tune(*args):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)

  monkeypatch.setattr("specdec.cli.tune._tune", tune)
  output = tmp_path / "tuned.gin"
  assert run(["tune", f"--output_file={output}", "A dog runs."]) == 130
  assert "interrupted" in capsys.readouterr().err and not output.exists()
