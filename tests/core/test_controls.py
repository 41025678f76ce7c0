"""Controls: against an oracle, lossless under speculation, and ended where nothing is left."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import controls as controls_lib
from specdec.core import keys
from specdec.core import loop
from specdec.core import rules as rules_lib
from specdec.core.contracts import Context
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.core.verify import TokenVerifier
from specdec.drafters.transformer import TransformerDrafter
from specdec.errors import SpecdecError
from specdec.testing import goodness
from specdec.testing import markov
from specdec.testing import oracle
from specdec.types import Rules
from specdec.types import Status
from tests.core import toy

RIGHT, WRONG = 1e-4, 1e-6


class ByHistory(flax.struct.PyTreeNode):
  """A hook that reads all it is given: adds `table[(ids summed + length) mod N]`.

  Zeros stand behind the tokens so far, so it need not look where these end.
  """

  table: jax.Array

  def __call__(self, logits, ids, lengths):
    return logits + jnp.asarray(self.table)[(ids.sum(1) + lengths) % self.table.shape[0]]

  def oracle(self, logits, tokens):
    return logits + np.asarray(self.table)[(sum(tokens) + len(tokens) + 1) % len(self.table)]


HOOK = ByHistory(np.random.default_rng(0).normal(0, 2, (3, toy.V)).astype(np.float32))

_adjust = jax.jit(controls_lib.adjust)


def _contexts(rng, batch, size, slots, gamma):
  """Random rows of any length that leaves room for a draft, few ids so that they repeat."""
  length = rng.integers(1, slots - gamma, batch).astype(np.int32)
  ids = rng.integers(0, size, (batch, slots)).astype(np.int32)
  ids = np.where(np.arange(slots) < length[:, None], ids, 0)
  ids[:, 0] = 0
  return length, ids, rng.integers(0, size, (batch, gamma)).astype(np.int32)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("hook", [None, HOOK], ids=["built_in", "hook"])
def test_adjusts_as_the_oracle_does(seed, hook):
  batch, size, slots, gamma = 12, toy.V, 14, 3
  rng = np.random.default_rng(seed)
  length, ids, drafted = _contexts(rng, batch, size, slots, gamma)
  logits = rng.normal(0, 2, (batch, gamma + 1, size)).astype(np.float32)
  penalty = rng.choice([1.0, 1.3, 0.8], batch).astype(np.float32)
  ngram, min_len = rng.integers(0, 4, batch), rng.integers(0, slots, batch)
  forbidden = [(3, 0, 99), (4, 2, 5), (size - 1, 5, 6)]
  rules = Rules(rules_lib.sampling(batch),
                rules_lib.limits(batch, slots, (1, 7), min_len, size=4),
                rules_lib.controls(batch, penalty, ngram, forbidden, hook, size=4),
                rules_lib.speculation(batch))
  context = Context(ids, length, keys.row_keys(0, np.arange(batch)), rules,
                    np.full(batch, gamma))
  found = np.asarray(_adjust(logits, context, drafted))
  for row in range(batch):
    for j in range(gamma + 1):
      tokens = [*ids[row, 1:length[row]], *drafted[row, :j]]
      expected = oracle.adjust(logits[row, j], tokens, penalty[row], ngram[row], forbidden,
                               (1, 7), min_len[row])
      if hook:
        expected = hook.oracle(expected, tokens)
      np.testing.assert_allclose(found[row, j], expected, rtol=1e-5, atol=1e-5)
  # A drafter asks position by position, before the later tokens exist.
  for j in range(gamma):
    masked = np.where(np.arange(gamma) < j, drafted, 5)
    alone = _adjust(logits[:, j:j + 1], context, masked, jnp.int32(j))
    np.testing.assert_array_equal(alone[:, 0], found[:, j])


def test_nothing_asked_for_changes_nothing():
  rng = np.random.default_rng(0)
  length, ids, drafted = _contexts(rng, 4, toy.V, 14, 3)
  logits = rng.normal(0, 2, (4, 4, toy.V)).astype(np.float32)
  rules = toy.rules(0.0, 4, 14)
  context = Context(ids, length, keys.row_keys(0, np.arange(4)), rules, np.full(4, 3))
  np.testing.assert_array_equal(_adjust(logits, context, drafted), logits)


# Rows of one batch ask for different things.
def _row_controls(**options):
  return rules_lib.controls(toy.BATCH, size=4, **options)


GREEDY = {
    "min_len": {"min_len": np.array([0, 20, 9, 13, 2, 12, 4, 1])},
    "forbidden": {"controls": _row_controls(forbidden=[(3, 0, 99), (5, 0, 4), (2, 6, 8)])},
    "penalty": {"controls": _row_controls(repetition_penalty=[1, 1.2, 2, 5, 0.7, 1.5, 1.1, 3])},
    "ngrams": {"controls": _row_controls(no_repeat_ngram=[0, 1, 2, 3, 2, 1, 4, 2])},
    "hook": {"controls": _row_controls(logits_fn=HOOK)},
    "all": {"min_len": 6, "controls": _row_controls(
        repetition_penalty=1.3, no_repeat_ngram=[3, 2, 4, 2, 3, 2, 2, 3],
        forbidden=[(3, 0, 99)], logits_fn=HOOK)},
}


@pytest.mark.parametrize("name", GREEDY)
@pytest.mark.parametrize(
    "prompts", [None, [(), (2, 3), (5,), (4, 4, 4, 2), (7, 8), (), (9,), (2,)]],
    ids=["", "prompts"])
def test_greedy_equals_plain_greedy(name, prompts):
  options = dict(max_len=toy.RAGGED + 4, eos=toy.EOS, capacity_len=24, prompts=prompts,
                 **GREEDY[name])
  plain = toy.decode(toy.PLAIN, toy.PAIR, **options)
  found = toy.decode(toy.SPECULATIVE, toy.PAIR, **options)
  np.testing.assert_array_equal(found.ids, plain.ids)
  np.testing.assert_array_equal(found.status, plain.status)
  np.testing.assert_allclose(found.log_prob, plain.log_prob, rtol=1e-5)
  assert not np.asarray(found.adjusted_log_prob).any()
  assert int(found.stats.accepted.sum()) > 0
  free = toy.decode(toy.PLAIN, toy.PAIR, max_len=toy.RAGGED + 4, eos=toy.EOS, capacity_len=24,
                    prompts=prompts)
  assert toy.sequences(free) != toy.sequences(plain), "the control does something"


# The joint law, on the small model that can be enumerated.
BATCH, V, EOS, LENGTH = 1 << 15, 4, 1, 6
KINDS = np.arange(BATCH) % 2
TARGET = markov.random_weights(0, V, kinds=2)
PAIR = jax.tree.map(jnp.asarray, Weights(TARGET, toy.disturbed(TARGET, 1, 1.0)))
SCORER = markov.MarkovScorer(V)
DRAFTER = TransformerDrafter(SCORER, V)
SMALL_HOOK = ByHistory(HOOK.table[:, :V])
BY_KIND = lambda a, b: np.where(KINDS == 0, a, b)

LAWS = {
    "min_len": {"min_len": BY_KIND(3, 5)},
    "forbidden": {"forbidden": [(2, 0, 2), (3, 3, 5)]},
    "penalty": {"penalty": BY_KIND(1.8, 0.6)},
    "ngrams": {"ngram": BY_KIND(2, 1)},
    "stuck": {"ngram": BY_KIND(1, 2), "min_len": 6, "forbidden": [(3, 2, 4)]},
    "hook": {"hook": SMALL_HOOK},
    "all": {"hook": SMALL_HOOK, "penalty": BY_KIND(1.4, 1.0), "ngram": BY_KIND(0, 3),
            "min_len": BY_KIND(2, 4)},
}
PROMPTS = [((), (2,), (3, 0, 2))[i // 2 % 3] for i in range(BATCH)]


def _p_value(method, temperature=1.0, prompts=None, hook=None, penalty=1.0, ngram=0, forbidden=(),
             min_len=0):
  chosen = rules_lib.sampling(BATCH, temperature)
  asked = rules_lib.controls(BATCH, penalty, ngram, forbidden, hook, size=4)
  state = toy.start(method, PAIR, KINDS, max_len=LENGTH, prompts=prompts)
  state = loop.run(method, PAIR, state, toy.rules(chosen, BATCH, LENGTH, (EOS,), min_len, asked),
                   toy.exits())
  at = lambda value, kind: value if np.ndim(value) == 0 else value[kind]

  def adjusted(kind):
    def adjust(logits, tokens):
      out = oracle.adjust(logits, tokens, at(penalty, kind), at(ngram, kind), forbidden, (EOS,),
                          at(min_len, kind))
      return hook.oracle(out, tokens) if hook else out
    return adjust

  found = toy.fits(state, TARGET, KINDS, chosen, EOS, LENGTH, prompts,
                   {kind: adjusted(kind) for kind in (0, 1)})
  return goodness.p_value(*found), state


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("gamma", [0, 2])
def test_joint_law(gamma, name):
  found, state = _p_value(Method(SCORER, DRAFTER if gamma else None, gamma), **LAWS[name])
  assert found > RIGHT
  assert (name == "stuck") == bool((np.asarray(state.status) == Status.FORBIDDEN).any())
  if gamma:
    assert int(state.stats.accepted.sum()) > BATCH / 2


@pytest.mark.parametrize("gamma", [0, 2])
def test_joint_law_after_prompts(gamma):
  found, _ = _p_value(Method(SCORER, DRAFTER if gamma else None, gamma), prompts=PROMPTS,
                      **LAWS["all"])
  assert found > RIGHT


@dataclasses.dataclass(frozen=True)
class Wrongly(TokenVerifier):
  """The usual verifier under another name, so that a patched program is compiled anew."""

  how: str = ""


_histories = controls_lib._histories
MISTAKES = {
    # What a stateful processor sees that is asked once per call.
    "drafted tokens not seen": lambda context, drafted, length: _histories(
        context, drafted, jnp.broadcast_to(context.length[:, None], length.shape)),
    # What it sees when rejected tokens are not taken back.
    "later drafted tokens seen": lambda context, drafted, length: _histories(
        context, drafted, jnp.broadcast_to(length[:, -1:], length.shape)),
    "seen one token late": lambda context, drafted, length: _histories(
        context, drafted, jnp.maximum(length - 1, 1)),
}


@pytest.mark.parametrize("how", MISTAKES)
def test_negative_control_fails(how, monkeypatch):
  monkeypatch.setattr(controls_lib, "_histories", MISTAKES[how])
  method = Method(SCORER, DRAFTER, 2, Wrongly(how))
  found, _ = _p_value(method, hook=SMALL_HOOK)
  assert found < WRONG


def test_minimum_length_counted_in_calls_fails(monkeypatch):
  """A speculative decoder makes fewer calls than tokens."""
  right = controls_lib._forbid_ids

  def by_calls(logits, position, limits, controls):
    return right(logits, jnp.broadcast_to(position[:, :1], position.shape), limits, controls)

  monkeypatch.setattr(controls_lib, "_forbid_ids", by_calls)
  found, _ = _p_value(Method(SCORER, DRAFTER, 2, Wrongly("by calls")), min_len=4)
  assert found < WRONG


def test_a_row_without_choice_ends_and_says_so():
  chain = toy.weights(toy.chain())
  everything = [(i, 5, 99) for i in range(toy.V)]
  for method in (toy.PLAIN, toy.SPECULATIVE):
    state = toy.decode(method, chain, eos=(10,), controls=rules_lib.controls(
        toy.BATCH, forbidden=everything, size=4))
    assert toy.sequences(state) == [(1, 2, 3, 4, 5)] * toy.BATCH
    assert (np.asarray(state.status) == Status.FORBIDDEN).all()
    assert np.isfinite(state.log_prob).all() and not np.asarray(state.adjusted_log_prob).any()
  assert "forbidden" in Status.FORBIDDEN.text


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_hook_that_returns_no_numbers_ends_the_row(value):
  hook = ByHistory(np.full((1, toy.V), value, np.float32))
  state = toy.decode(toy.SPECULATIVE, toy.PAIR, controls=_row_controls(logits_fn=hook))
  assert (np.asarray(state.status) == Status.NAN).all()
  assert toy.sequences(state) == [()] * toy.BATCH


@pytest.mark.parametrize("returned, told", [
    (lambda x, *_: x[:, :-1], r"float32 of shape \(8, 11\); expected float32 of shape \(8, 12\)"),
    (lambda x, *_: x.astype(jnp.bfloat16), "returned bfloat16"),
    (lambda x, *_: None, "returned NoneType"),
])
def test_a_hook_that_returns_something_else_is_refused(returned, told):
  hook = jax.tree_util.Partial(returned)
  with pytest.raises(SpecdecError, match=told):
    toy.decode(toy.PLAIN, toy.PAIR, controls=_row_controls(logits_fn=hook))


def test_controls_and_arrays_of_a_hook_are_arguments():
  toy.decode(toy.SPECULATIVE, toy.PAIR, eos=toy.EOS, **GREEDY["all"])
  before = loop.run._cache_size()
  other = ByHistory(HOOK.table[::-1].copy())
  toy.decode(toy.SPECULATIVE, toy.PAIR, eos=toy.EOS, min_len=3, controls=_row_controls(
      repetition_penalty=2.0, forbidden=[(4, 0, 3), (2, 0, 99)], logits_fn=other))
  assert loop.run._cache_size() == before
