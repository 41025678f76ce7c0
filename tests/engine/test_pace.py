"""Automatic gamma as a function of costs and of a row's own history."""

import dataclasses

import numpy as np
import pytest

from specdec.engine.costs import SIZES
from specdec.engine.costs import Costs
from specdec.engine.pace import REST
from specdec.engine.pace import SEGMENT
from specdec.engine.pace import Auto
from specdec.engine.pace import Counts
from specdec.engine.pace import Fixed
from specdec.engine.pace import Segment
from specdec.engine.pace import Watched
from specdec.errors import SpecdecError

CHEAP = Costs(iteration=(1.0, 1.05, 1.1, 1.2, 1.35), alpha=0.7)
DEAR = Costs(iteration=(1.0, 2.0, 3.0, 5.0, 8.0), alpha=0.7)


def simulate(pace, alphas, iterations, seed=0, ended=()):
  """Runs rows of known acceptance rates; returns each segment's gammas."""
  tested, accepted = np.zeros((2, len(alphas)), int)
  running = np.ones(len(alphas), bool)
  done, segments = 0, []
  streams = [np.random.default_rng((seed, i)) for i in range(len(alphas))]
  while done < iterations:
    segment = pace.next()
    segments.append(segment)
    assert segment.size == segment.gamma.max()
    for _ in range(segment.iterations):
      done += 1
      for row, alpha in enumerate(alphas):
        for _ in range(segment.gamma[row] * running[row]):
          tested[row] += 1
          if streams[row].random() >= alpha:
            break
          accepted[row] += 1
    for row, at in ended:
      running[row] &= done < at
    pace.observe(Counts(running.copy(), tested.copy(), accepted.copy(), done, True))
  return segments


def test_speed_up_is_the_papers_formula_with_measured_costs():
  expected = [(1 - 0.7 ** (g + 1)) / 0.3 / cost for g, cost in zip(SIZES, CHEAP.iteration)]
  np.testing.assert_allclose(CHEAP.speed_up(0.7), expected)
  np.testing.assert_allclose(CHEAP.speed_up(1.0), [(g + 1) / c for g, c in
                                                    zip(SIZES, CHEAP.iteration)])
  assert CHEAP.speed_up(np.full((3, 2), 0.5)).shape == (3, 2, len(SIZES))


def test_a_row_drafts_as_much_as_its_acceptance_is_worth():
  segments = simulate(Auto(CHEAP, 4), [0.95, 0.6, 0.3, 0.0], 800)
  settled = np.array([s.gamma for s in segments[len(segments) // 2:]])
  assert np.median(settled, 0).tolist() == [7, 4, 2, 0]


def test_nothing_is_drafted_where_it_costs_more_than_it_brings():
  segments = simulate(Auto(DEAR, 3), [0.9, 0.5, 0.0], 200)
  assert all(s.size == 0 for s in segments)


def test_a_useless_drafter_is_tried_ever_more_seldom():
  segments = simulate(Auto(CHEAP, 1), [0.0], 4000)
  # Tries come after rests, which the loop goes through in one piece, and the rests double.
  rests = np.array([s.iterations for s in segments if not s.size])
  assert segments[0].size and not all(s.size for s in segments[:10])
  assert len(rests) > 3 and rests[0] == REST and (np.diff(rests) >= 0).all()
  cost = sum(s.iterations * CHEAP.iteration[SIZES.index(s.size)] for s in segments)
  assert cost < sum(s.iterations for s in segments) / 0.97


def test_a_drafter_that_measured_as_useless_is_not_tried_at_all():
  segments = simulate(Auto(dataclasses.replace(CHEAP, alpha=0.02), 2), [0.0, 0.0], 400)
  assert all(s.size == 0 for s in segments)


def test_a_row_does_not_depend_on_its_neighbours():
  together = simulate(Auto(CHEAP, 3), [0.9, 0.4, 0.1], 300, ended=[(2, 100)])
  for row, alpha in enumerate([0.9, 0.4, 0.1]):
    pace = Auto(CHEAP, 3)
    others = [alpha if i == row else 0.99 for i in range(3)]
    alone = simulate(pace, others, 300, ended=[(2, 100)] if row == 2 else [])
    assert [s.gamma[row] for s in alone] == [s.gamma[row] for s in together]


def test_coming_back_early_changes_no_decision():
  usual = simulate(Auto(CHEAP, 1), [0.5], 160)
  pace, got = Auto(CHEAP, 1), []
  stream, tested, accepted = np.random.default_rng((0, 0)), 0, 0
  for done in range(1, 161):
    segment = pace.next()
    got.append(int(segment.gamma[0]))
    assert segment.iterations == SEGMENT - (done - 1) % SEGMENT
    for _ in range(segment.gamma[0]):
      tested += 1
      if stream.random() >= 0.5:
        break
      accepted += 1
    pace.observe(Counts(np.ones(1, bool), np.array([tested]), np.array([accepted]), done, True))
  assert got[::SEGMENT] == [int(s.gamma[0]) for s in usual]
  assert all(got[i] == got[i - i % SEGMENT] for i in range(160))


def test_rows_that_have_ended_ask_for_nothing():
  pace = Auto(CHEAP, 2)
  pace.observe(Counts(np.array([True, False]), np.zeros(2), np.zeros(2), 1, True))
  segment = pace.next()
  assert segment.gamma[0] > 0 and segment.gamma[1] == 0


def test_a_drafter_without_drafts_makes_room_for_single_tokens():
  pace = Watched(Fixed(4, 2))
  counts = Counts(np.ones(2, bool), np.zeros(2), np.zeros(2), 1, True)
  assert pace.next().size == 4
  pace.observe(counts)
  assert pace.next().size == 4
  pace.observe(dataclasses.replace(counts, drafting=False))
  segment = pace.next()
  # The rows' own gammas stand: they decide which drafts end the program of one token.
  assert segment.size == 0 and segment.gamma.tolist() == [4, 4]
  pace.observe(dataclasses.replace(counts, drafting=False))
  assert pace.next().size == 4
  assert isinstance(segment, Segment)


@pytest.mark.parametrize("change, told", [
    ({"sizes": (1, 2)}, "0 and larger"), ({"sizes": (0,)}, "0 and larger"),
    ({"sizes": (0, 2, 1)}, "increasing"), ({"iteration": (1.0,)}, "1 numbers for the 5 sizes"),
    ({"iteration": 3}, "a number per size"), ({"iteration": (1.0, 0, 1, 1, 1)}, "positive"),
    ({"verify": (1.0, 2.0)}, "2 numbers"), ({"alpha": 1.5}, "from 0 to 1"),
    ({"batch_size": 0}, "batch_size"), ({"sizes": (0, 1, 2, 4, 99)}, "to 64")])
def test_what_is_no_costs_is_refused(change, told):
  with pytest.raises(SpecdecError, match=told):
    dataclasses.replace(CHEAP, **change)
