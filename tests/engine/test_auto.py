"""Automatic gamma on a real pair: segments, a drafter that lags, and what never changes."""

import dataclasses

import numpy as np
import pytest

import specdec
from specdec.drafters.cascade import CascadeDrafter
from specdec.drafters.uniform import UniformDrafter
from specdec.engine import calibrate
from specdec.engine import job as job_lib
from specdec.engine import run as run_lib
from specdec.engine.costs import Costs
from specdec.engine.pace import Fixed
from specdec.engine.pace import Segment
from specdec.engine.run import Run
from specdec.engine.run import make_pace
from specdec.errors import SpecdecError
from specdec.testing import tiny

TEXTS = list(tiny.SENTENCES[:4])
SIZES = (0, 2)
CHEAP = Costs((1.0, 1.1), 0.9, SIZES)
DEAR = Costs((1.0, 9.0), 0.9, SIZES)
OPTIONS = dict(max_decode_len=24, batch_size=4)


class Scripted:
  """Sizes as told, three iterations each; and which of them were run."""

  def __init__(self, sizes, rows):
    self._sizes, self._rows, self.ran = list(sizes), rows, []

  def next(self):
    size = self._sizes[0]
    return Segment(size, np.full(self._rows, size, np.int32), 3)

  def observe(self, counts):
    self.ran.append(self._sizes[0])
    self._sizes = self._sizes[1:] or self._sizes


def job(**changes):
  settings = {**OPTIONS, "gamma": "auto", **changes}
  return job_lib.from_texts(tiny.pair(), TEXTS, "", settings, costs=CHEAP)


def decode(made, pace):
  batch = job_lib.plan(made)[0][0]
  run = Run(made, batch, pace)
  run.advance()
  return run.fetch()


def test_greedy_outputs_are_those_of_plain_decoding():
  plain = specdec.generate(tiny.pair(), TEXTS, task="", mode="plain", **OPTIONS)
  for costs in (CHEAP, DEAR):
    found = specdec.generate(tiny.pair(), TEXTS, task="", gamma="auto", costs=costs, **OPTIONS)
    assert found.ids == plain.ids and found.costs == costs
    assert (found.drafted > 0) == (costs is CHEAP)


def test_a_batch_that_is_never_worth_drafting_for_runs_the_program_of_plain_decoding():
  auto = dataclasses.replace(job(), costs=DEAR)
  plain = job_lib.from_texts(tiny.pair(), TEXTS, "", {**OPTIONS, "mode": "plain"})
  shapes = []
  for made in (auto, plain):
    run = Run(made, job_lib.plan(made)[0][0])
    shapes.append({name: value.shape for name, value in run.fetch().items() if value is not None})
    assert isinstance(make_pace(made, 4), Fixed) and make_pace(made, 4).gamma == 0
  assert shapes[0] == shapes[1]
  assert not isinstance(make_pace(job(), 4), Fixed)


@pytest.mark.parametrize("sizes", [[2, 0, 0, 2], [0, 0, 2, 2]], ids=["back", "late"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_that_was_left_out_comes_back_level(temperature, sizes):
  """After plain segments the drafts are accepted as if it had been there all the time."""
  made = job(temperature=temperature, eos_ids=())
  usual = decode(made, Scripted([2], 4))
  pace = Scripted(sizes, 4)
  found = decode(made, pace)
  assert pace.ran[:4] == sizes
  if not temperature:
    np.testing.assert_array_equal(found["ids"], usual["ids"])
  # The tiny drafter agrees most of the time, and would hardly ever with a hole in its cache.
  alpha = lambda f: f["accepted"].sum() / f["tested"].sum()
  assert abs(alpha(found) - alpha(usual)) < 0.15


def test_rows_do_not_depend_on_their_neighbours_at_temperature_1():
  one = specdec.generate(tiny.pair(), TEXTS, task="", gamma="auto", costs=CHEAP, temperature=1.0,
                         **OPTIONS)
  other = specdec.generate(tiny.pair(), [*TEXTS[:2], "A", "Why"], task="", gamma="auto",
                           costs=CHEAP, temperature=1.0, **OPTIONS)
  assert one.ids[:2] == other.ids[:2]


def test_the_stream_is_the_same():
  whole = specdec.generate(tiny.pair(), TEXTS[:2], task="", gamma="auto", costs=CHEAP,
                           temperature=1.0, **OPTIONS)
  pieces = list(specdec.stream(tiny.pair(), TEXTS[:2], task="", gamma="auto", costs=CHEAP,
                               temperature=1.0, **OPTIONS))
  ends = {p.index: p.record.output_ids for p in pieces if p.record}
  assert [ends[0], ends[1]] == whole.ids


def test_costs_are_measured_on_the_first_batch():
  made = dataclasses.replace(job(), costs=None)
  costs = calibrate.measure(made, SIZES)
  assert costs.sizes == SIZES and costs.iteration[0] == 1.0 and costs.iteration[1] > 0.5
  assert costs.batch_size == 4
  # The alpha of a fixed gamma on the same rows.
  found = decode(made_with(costs), Fixed(2, 4))
  np.testing.assert_allclose(costs.alpha, found["accepted"].sum() / found["tested"].sum(),
                             atol=1e-3)
  assert calibrate.ready(made_with(costs)).costs is costs
  fixed = job_lib.from_texts(tiny.pair(), TEXTS, "", OPTIONS)
  assert calibrate.ready(fixed) is fixed


def made_with(costs):
  return dataclasses.replace(job(), costs=costs)


def test_sizes_end_where_the_drafter_or_the_limit_does():
  assert calibrate.sizes_for(job()) == (0, 1, 2, 4, 7)
  assert calibrate.sizes_for(job(max_decode_len=4)) == (0, 1, 2)
  assert calibrate.sizes_for(job(max_decode_len=1)) == (0, 1)


def test_costs_of_another_drafter_are_refused():
  with pytest.raises(SpecdecError, match=r"Costs\.sizes holds 65|from 0 to 64"):
    specdec.generate(tiny.pair(), "A", gamma="auto", costs=Costs((1.0, 1.0), 0.5, (0, 65)))


def test_a_cascade_may_have_missed_a_token_more_for_each_level():
  drafter = UniformDrafter(8)
  for depth in range(10):
    assert run_lib._lag(drafter) == 2 + depth
    drafter = CascadeDrafter(None, drafter, 8)
