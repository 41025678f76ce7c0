"""Drafts by copying: what is found, what is exact about it, and a loop that watches."""

import dataclasses
import functools

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import keys
from specdec.core import loop
from specdec.core import rules as rules_lib
from specdec.core.contracts import Context
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.core.verify import CoupledVerifier
from specdec.drafters.copy import MAX_MATCH
from specdec.drafters.copy import CopyDrafter
from specdec.testing import contract
from specdec.types import Rules
from specdec.types import Source
from tests.core import toy
from tests.drafters import law

S, T, GAMMA, WIDTH = 14, 16, 4, 10


def expected(source, begin, said, max_match=3, min_match=1, gamma=GAMMA, vocab_size=WIDTH):
  """The draft, by looking at one place after the other."""

  def end(draft):
    known = [token < vocab_size for token in draft]
    return draft[:known.index(False)] if False in known else draft

  if min_match == 0 and not said:
    return end(source[begin:begin + gamma])
  found = []
  for in_source, text, low in ((True, source, begin), (False, said, 0)):
    for place in range(low, len(text) - 1):
      match = 0
      while (match < min(max_match, len(said)) and place - match >= low
             and text[place - match] == said[-1 - match]):
        match += 1
      if match < max(min_match, 1):
        continue
      near, far = 0, len(said) - 1 - place
      if in_source:
        far = abs(place - begin - (len(said) - 1))
        for back in range(1, min(8, len(said))):
          about = range(place - back - 2, place - back + 3)
          near += any(low <= i < len(text) and text[i] == said[-1 - back] for i in about)
      found.append(((match, in_source, near, -far, -place), text[place + 1:place + 1 + gamma]))
  return end(max(found)[1]) if found else []


@functools.partial(jax.jit, static_argnums=(0, 4))
def _propose(drafter, source, ids, length, gamma):
  batch = ids.shape[0]
  rules = Rules(rules_lib.sampling(batch), rules_lib.limits(batch, T), rules_lib.controls(batch),
                rules_lib.speculation(batch))
  at = Context(ids, length, keys.row_keys(0, jnp.arange(batch)), rules, jnp.full(batch, gamma))
  state = drafter.init(None, source, T)
  return drafter.propose(None, state, at, gamma)[0], drafter.has_draft(None, state, at)


def drafted(source, begin, said, gamma=GAMMA, **options):
  """The draft of the program."""
  # Behind the tokens stand others, as if they had been there before.
  pad = lambda values, size: np.array([values + [2] * (size - len(values))], np.int32)
  one = lambda value: np.array([value], np.int32)
  inputs = Source(pad(source, S), one(len(source)), None if begin is None else one(begin))
  proposal, has = _propose(CopyDrafter(WIDTH, **options), inputs, pad([0, *said], T),
                           one(len(said) + 1), gamma)
  count = int(proposal.num_drafted[0])
  assert bool(has[0]) == (count > 0)
  assert not np.asarray(proposal.tokens)[0, count:].any()
  return np.asarray(proposal.tokens)[0, :count].tolist()


TEXTS = {alphabet: st.lists(st.sampled_from(alphabet), max_size=S)
         for alphabet in ((2, 3), (0, 1, 2, 3, 4), (3, 4, 5, 6, 7, 8, 9, 10))}


@pytest.mark.parametrize("options", [{}, {"min_match": 0}, {"max_match": 1}, {"min_match": 2},
                                     {"max_match": 5, "min_match": 0}], ids=str)
@pytest.mark.parametrize("with_begin", [True, False])
@hypothesis_settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_equals_the_oracle(options, with_begin, data):
  texts = data.draw(st.sampled_from(list(TEXTS.values())))
  source, said = data.draw(texts), data.draw(texts)
  begin = data.draw(st.integers(0, len(source))) if with_begin else None
  assert drafted(source, begin, said, **options) == expected(source, begin or 0, said, **options)


# The input, what is said, and what should come next.
CASES = {
    "going on": ([3, 4, 5, 6, 7, 1], [3, 4], [5, 6, 7, 1]),
    "nothing there": ([3, 4, 5, 1], [3, 6], []),
    "nothing said": ([3, 4, 5, 1], [], []),
    "the input has ended": ([3, 4, 1], [3, 4, 1], []),
    # 5 stands twice; 4 was replaced by 9 where the first of them follows.
    "after a substitution": ([3, 4, 5, 6, 8, 2, 2, 5, 7, 1], [3, 9, 5], [6, 8, 2, 2]),
    "after a substitution, the later place": (
        [5, 7, 2, 2, 3, 4, 5, 6, 1], [5, 7, 2, 2, 3, 9, 5], [6, 1]),
    "after an insertion": ([5, 7, 8, 6, 3, 4, 5, 8, 1], [5, 7, 8, 6, 3, 4, 9, 5], [8, 1]),
    "after a deletion": ([5, 8, 7, 6, 3, 4, 2, 5, 9, 1], [5, 8, 7, 6, 3, 4, 5], [9, 1]),
    "more tokens before nearer ones": ([5, 6, 2, 3, 5, 7, 1], [4, 4, 9, 3, 5], [7, 1]),
    "the input before the output": ([3, 4, 5, 1], [3, 6, 3], [4, 5, 1]),
    "the output, the latest": ([8, 1], [3, 6, 3, 7, 3], [7, 3]),
    "the output has more tokens": ([3, 4, 1], [2, 3, 6, 2, 3], [6, 2, 3]),
    "an id the target lacks": ([3, 4, WIDTH, 5, 1], [3], [4]),
}


@pytest.mark.parametrize("case", CASES)
def test_cases(case):
  source, said, wanted = CASES[case]
  assert drafted(source, None, said) == wanted


def test_a_prefix_is_not_copied_from():
  assert drafted([3, 4, 5, 3, 6, 1], None, [3]) == [4, 5, 3, 6]
  assert drafted([3, 4, 5, 3, 6, 1], 3, [3]) == [6, 1]
  assert drafted([3, 4, 5, 3, 6, 1], 2, [3, 4]) == []


def test_an_output_that_has_not_begun_may_be_the_input_itself():
  assert drafted([8, 8, 3, 4, 5, 1], 2, [], min_match=0) == [3, 4, 5, 1]
  assert drafted([8, 8, 3, 4, 5, 1], 2, [9], min_match=0) == []
  assert drafted([8, 8], 2, [], min_match=0) == []


@pytest.mark.parametrize("options", [{"max_match": 0}, {"min_match": -1}, {"min_match": 4},
                                     {"max_match": MAX_MATCH + 1}])
def test_matches_that_cannot_be_are_refused(options):
  with pytest.raises(ValueError, match="expected 0 <= min_match <= max_match"):
    CopyDrafter(WIDTH, **options)


def test_the_most_tokens_that_can_be_compared():
  text = [3] * 70 + [4, 5]
  batch = lambda values: np.array([values], np.int32)
  proposal, _ = _propose(CopyDrafter(WIDTH, MAX_MATCH), Source(batch(text), np.array([72])),
                         batch([0, *text, 0, 0]), np.array([72], np.int32), 2)
  assert proposal.tokens.tolist() == [[5, 0]]


def _subject(**options):
  ids = np.array([7, 2, 3, 3, 2, 4, 2, 3, 1], np.int32)
  source = lambda batch: Source(np.tile(ids, (batch, 1)), np.full(batch, len(ids), np.int32),
                                np.ones(batch, np.int32))
  return contract.Subject(CopyDrafter(8, **options), None, 8, source)


@pytest.mark.parametrize("options", [{}, {"max_match": 2, "min_match": 0}], ids=str)
def test_battery(options):
  contract.check_all(_subject(**options))


def test_copies_are_rows_next_to_each_other_and_arrays_of_their_own():
  source = Source(jnp.array([[3, 4], [5, 0]]), jnp.array([2, 1]), jnp.array([1, 0]))
  init = jax.jit(lambda source, copies: CopyDrafter(8).init(None, source, 4, copies),
                 static_argnums=1)
  state = init(source, 2)
  assert state.ids.tolist() == [[3, 4], [3, 4], [5, 0], [5, 0]]
  assert state.length.tolist() == [2, 2, 1, 1] and state.begin.tolist() == [1, 1, 0, 0]
  for x in jax.tree.leaves(init(source, 1)):
    x.delete()
  assert source.ids.tolist() == [[3, 4], [5, 0]] and source.length.tolist() == [2, 1]


# Exactness.

@pytest.mark.parametrize("verifier", law.VERIFIERS)
def test_joint_law(verifier):
  method = Method(law.SCORER, CopyDrafter(law.V, min_match=0), 3, verifier)
  found, state = law.measure(method, None)
  assert found > law.RIGHT
  assert np.asarray(state.stats.accepted).sum() > law.BATCH / 4


def test_taking_a_copy_for_a_draw_fails():
  """A deterministic draft whose q is given as uniform is no draw from it."""

  class Pretends(CopyDrafter):

    def propose(self, params, state, context, gamma):
      proposal, state = super().propose(params, state, context, gamma)
      shape = (*proposal.tokens.shape, self.vocab_size)
      return proposal.replace(probs=jnp.full(shape, 1 / self.vocab_size)), state

  found, _ = law.measure(Method(law.SCORER, Pretends(law.V), 3), None)
  assert found < law.WRONG


RARE = CopyDrafter(toy.V, 2, 2)  # Two tokens agree now and then.
WHOLE = Method(toy.SCORER, RARE, 3)
DRAFTING = dataclasses.replace(WHOLE, watch=True)
ALONE = dataclasses.replace(DRAFTING, gamma=0)
INPUTS = law.source(toy.KINDS, 12, toy.V)
WEIGHTS = Weights(law.device(toy.TARGET))


def _rules(settings, max_len=toy.RAGGED, **speculation):
  return toy.rules(settings, len(max_len), max_len, toy.EOS, **speculation)


def _decode(method, settings, **speculation):
  state = law.start(method, WEIGHTS, INPUTS, toy.MAX_LEN)
  return loop.run(method, WEIGHTS, state, _rules(settings, **speculation), toy.exits())


def test_coupled_ids_are_those_of_plain_decoding():
  """At every gamma: one program, whose rows may draft less."""
  plain = _decode(Method(toy.SCORER, verifier=CoupledVerifier()), toy.MIXED)
  method = Method(toy.SCORER, CopyDrafter(toy.V, 2), 8, CoupledVerifier())
  for gamma in range(1, 9):
    found = _decode(method, toy.MIXED, gamma=gamma)
    np.testing.assert_array_equal(found.ids, plain.ids)
    assert int(found.stats.accepted.sum()) > 0


def test_greedy_equals_plain_greedy():
  """Of a model that counts, and repeats itself when it begins again."""
  pair = toy.weights(toy.chain(), ())
  plain, found = (toy.decode(method, pair, eos=()) for method in (
      Method(toy.SCORER), Method(toy.SCORER, CopyDrafter(toy.V, 2), 3)))
  np.testing.assert_array_equal(found.ids, plain.ids)
  np.testing.assert_array_equal(found.status, plain.status)
  assert int(found.stats.accepted.sum()) > toy.BATCH


# A loop that watches.


@functools.partial(jax.jit, static_argnums=0)
def _has_draft(drafter, state, rules):
  context = Context(state.ids, state.length, state.row_keys, rules, state.length)
  remaining = rules.limits.max_decode_len - state.length
  return drafter.has_draft(None, state.draft_state, context) & state.running & (remaining > 0)


def _alternate(inputs, rules, seed=0, example_ids=None):
  """Runs the two programs by turns; what either left behind, step by step."""
  state = law.start(DRAFTING, WEIGHTS, inputs, toy.MAX_LEN, seed, example_ids)
  left = []
  while bool(state.running.any()):
    method = (DRAFTING, ALONE)[len(left) % 2]
    before = jax.tree.map(jnp.copy, state)
    state = loop.run(method, WEIGHTS, state, rules, toy.exits())
    left.append((method, before, jax.tree.map(jnp.copy, state)))
  return left


@pytest.fixture(scope="module")
def turns():
  return _alternate(INPUTS, _rules(1.0))


def test_the_drafting_program_leaves_when_no_running_row_drafted(turns):
  left = [(before, after) for method, before, after in turns if method is DRAFTING]
  for before, after in left:
    assert not bool(after.drafting) or not bool(after.running.any())
    # No sooner: one iteration less, and something was drafted in the last, unless it began so.
    one_less = int(after.iterations - before.iterations) - 1
    if one_less:
      again = loop.run(DRAFTING, WEIGHTS, jax.tree.map(jnp.copy, before), _rules(1.0),
                       toy.exits(max_iterations=one_less))
      assert bool(again.drafting)
  assert any(int(after.iterations - before.iterations) > 1 for before, after in left)
  assert len(left) > 1


def test_the_one_token_program_leaves_as_soon_as_a_row_has_a_draft(turns):
  left = [(before, after) for method, before, after in turns if method is ALONE]
  for before, after in left:
    rules = _rules(1.0)
    assert bool(_has_draft(RARE, after, rules).any()) or not bool(after.running.any())
    one_less = int(after.iterations - before.iterations) - 1
    if one_less >= 0:
      again = loop.run(ALONE, WEIGHTS, jax.tree.map(jnp.copy, before), rules,
                       toy.exits(max_iterations=max(one_less, 1)))
      assert one_less == 0 or not bool(_has_draft(RARE, again, rules).any())
      assert not bool(_has_draft(RARE, before, rules).any())
  assert any(int(after.iterations - before.iterations) > 1 for before, after in left)


def test_turns_give_the_ids_of_the_drafting_program_alone(turns):
  whole = _decode(WHOLE, 1.0)
  end = turns[-1][2]
  np.testing.assert_array_equal(end.ids, whole.ids)
  for name in ("target_calls", "drafted", "tested", "accepted"):
    np.testing.assert_array_equal(getattr(end.stats, name), getattr(whole.stats, name))
  assert int(end.stats.accepted.sum()) > 0


def test_rows_that_take_turns_do_not_depend_on_their_neighbours(turns):
  end = turns[-1][2]
  for i in (1, 2, 5):
    alone = _alternate(jax.tree.map(lambda x, i=i: x[i:i + 1], INPUTS),
                       _rules(1.0, toy.RAGGED[i:i + 1]), example_ids=[i])
    np.testing.assert_array_equal(alone[-1][2].ids[0], end.ids[i])
