"""`specdec theory`."""

import json

import pytest

from specdec.analysis import theory
from specdec.cli.main import run


def _lines(capsys, *args):
  assert run(["theory", *args, "--json"]) == 0
  return [json.loads(x) for x in capsys.readouterr().out.splitlines()]


def test_one_combination(capsys):
  found, = _lines(capsys, "--alpha=0.8", "--c=0.05")
  assert found["gamma"] == found["best_gamma"] == 8 == theory.best_gamma(0.8, 0.05)
  assert found["speed_up"] == found["best_speed_up"] == theory.speed_up(0.8, 8, 0.05)
  assert found["operations"] == theory.operations(0.8, 8, 0.05)
  assert found["memory_reads"] == theory.memory_reads(0.8, 8)
  assert found["oracle_speed_up"] == pytest.approx(4.1667, abs=1e-4)


def test_lists_give_every_combination(capsys):
  found = _lines(capsys, "--alpha=0.6,0.9", "--c=0.02,0.1", "--gamma=2,5", "--c_hat=0")
  assert [(e["alpha"], e["c"], e["gamma"]) for e in found] == [
      (a, c, g) for a in (0.6, 0.9) for c in (0.02, 0.1) for g in (2, 5)]
  assert round(found[0]["operations"], 2) == 1.53


def test_v_by_gamma(capsys):
  found, = _lines(capsys, "--alpha=0.75", "--c=0.095", "--v=1.2,1.3,1.4,1.6")
  assert (found["gamma"], found["v"], round(found["speed_up"], 2)) == (3, 1.4, 1.62)
  found, = _lines(capsys, "--alpha=0.75", "--c=0.095", "--v=1.4")
  assert found["v"] == 1.4


def test_what_has_no_limit(capsys):
  found, = _lines(capsys, "--alpha=0.8")
  assert found["best_gamma"] is None and found["best_speed_up"] == pytest.approx(5)
  assert found["operations"] is None
  assert run(["theory", "--alpha=0.8,1"]) == 0
  out = capsys.readouterr().out
  assert "none" in out and "5.00x" in out and "each further draft adds something" in out


def test_no_gamma_that_improves(capsys):
  assert run(["theory", "--alpha=0.1", "--c=0.3"]) == 0
  out = capsys.readouterr().out
  assert "1.00x" in out and "plain decoding is fastest" in out
  assert max(map(len, out.splitlines()[:3])) <= 100


@pytest.mark.parametrize("args, expected", [
    ([], "--alpha is missing"),
    (["--alpha=1.2"], "--alpha is '1.2'; expected numbers from 0 to 1"),
    (["--alpha=-0.1"], "--alpha is '-0.1'"),
    (["--alpha=nan"], "--alpha is 'nan'"),
    (["--alpha="], "--alpha is ''"),
    (["--alpha=0.5,,0.6"], "with commas between them"),
    (["--alpha=0.5", "--c=-0.1"], "--c is '-0.1'; expected numbers from 0"),
    (["--alpha=0.5", "--c=inf"], "--c is 'inf'"),
    (["--alpha=0.5", "--v=0"], "--v is '0'; expected numbers above 0"),
    (["--alpha=0.5", "--gamma=0"], "--gamma is '0'; expected integers from 1 (0 is plain"),
    (["--alpha=0.5", "--gamma=1.5"], "--gamma is '1.5'"),
    (["--alpha=0.5", "--v=1.1,1.2", "--gamma=3"], "v is known up to gamma 2"),
    (["--alpha=0.5", "--c_hat=1,2"], "--c_hat is '1,2'; expected a single number"),
    (["0.5"], "'0.5' is no flag of specdec theory"),
])
def test_mistakes(mistake, args, expected):
  assert expected in mistake("theory", *args)
