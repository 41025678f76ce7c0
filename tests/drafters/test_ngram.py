"""N-gram drafts: look-ups against a dictionary, q against the oracle, and the exact law."""

import collections
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import loop
from specdec.core import rules as rules_lib
from specdec.core.rules import sampling
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.core.verify import BlockVerifier
from specdec.core.verify import CoupledVerifier
from specdec.core.verify import TokenVerifier
from specdec.drafters import ngram
from specdec.engine import ngrams
from specdec.testing import contract
from specdec.testing import goodness
from specdec.testing import markov
from specdec.testing import oracle
from specdec.types import Source
from tests.core import toy

V = 8
ORDERS = (1, 2, 3)


def corpus(seed: int, vocab_size: int, count: int = 60, eos: int = 1) -> list[list[int]]:
  """Sequences whose next token leans on the last two, ended by an EOS."""
  rng = np.random.default_rng(seed)
  laws = rng.dirichlet(np.full(vocab_size, 0.4), (vocab_size, vocab_size))
  out = []
  for _ in range(count):
    a, b, ids = 0, 0, []
    while len(ids) < 12 and (not ids or ids[-1] != eos):
      a, b = b, int(rng.choice(vocab_size, p=laws[a, b]))
      ids.append(b)
    out.append(ids)
  return out


def on_device(tables: ngram.Tables) -> ngram.Tables:
  return jax.tree.map(jnp.asarray, tables)


def subject(order: int, sequences=None, **options) -> contract.Subject:
  tables = ngrams.count(sequences or corpus(0, V), order, V, **options)
  # Counts tie, and so would their probabilities.
  rng = np.random.default_rng(1)
  tables = tables.replace(log_probs=tables.log_probs + rng.uniform(
      -0.01, 0, tables.log_probs.shape).astype(np.float32))
  return contract.Subject(
      ngram.NgramDrafter(V, order), on_device(tables), V,
      lambda batch: Source(jnp.ones((batch, 1), jnp.int32), jnp.ones(batch, jnp.int32)))


@pytest.mark.parametrize("order", ORDERS)
def test_battery(order):
  contract.check_all(subject(order))


def test_an_order_that_there_is_not_is_refused():
  with pytest.raises(ValueError, match="expected 1 to 3"):
    ngram.NgramDrafter(V, 4)


class Dictionary:
  """The same tables, one look-up at a time."""

  def __init__(self, sequences, order: int, successors: int = 10**6):
    self.order, self.successors = order, successors
    self.seen = collections.defaultdict(collections.Counter)
    for ids in sequences:
      whole = [0, *ids]
      for i in range(1, len(whole)):
        for n in range(min(order, i + 1)):
          self.seen[tuple(whole[i - n:i])][whole[i]] += 1

  def after(self, tokens) -> dict[int, float]:
    """Successors and how often they follow, of the longest history that was seen."""
    for n in reversed(range(min(self.order, len(tokens) + 1))):
      found = self.seen.get(tuple(tokens[len(tokens) - n:]))
      if found:
        likeliest = sorted(found.items(), key=lambda x: (-x[1], x[0]))[:self.successors]
        return {token: n / found.total() for token, n in likeliest}
    raise AssertionError("nothing was counted")


_look_up = jax.jit(ngram.successors)


def looked_up(tables: ngram.Tables, histories) -> list[dict[int, float]]:
  """Rows for histories of any length, all in one call."""
  recent = np.full((len(histories), tables.order - 1), -1, np.int32)
  for i, history in enumerate(histories):
    for back in range(1, min(tables.order - 1, len(history)) + 1):
      recent[i, -back] = history[-back]
  ids, log_probs = map(np.asarray, _look_up(on_device(tables), jnp.asarray(recent)))
  return [{int(t): float(np.exp(p)) for t, p in zip(*row) if p > -np.inf}
          for row in zip(ids, log_probs)]


@pytest.mark.parametrize("successors", [2, 64])
@pytest.mark.parametrize("order", ORDERS)
def test_look_ups_are_those_of_a_dictionary(order, successors):
  """For every history of up to three tokens: seen, seen in part, and never seen."""
  # Few sequences, so that many histories of two are unknown, and ids 6 and 7 altogether.
  sequences = corpus(2, V - 2, count=6)
  tables = ngrams.count(sequences, order, V, successors)
  expected = Dictionary(sequences, order, successors)
  histories = [h for n in (1, 2, 3) for h in itertools.product(range(V), repeat=n)]
  found = looked_up(tables, histories)
  backed_off = 0
  for history, row in zip(histories, found):
    law = expected.after(history)
    assert row.keys() == law.keys(), history
    np.testing.assert_allclose([row[t] for t in law], list(law.values()), rtol=1e-5)
    backed_off += order > 1 and tuple(history[1 - order:]) not in expected.seen
  assert backed_off > 20 or order == 1


def test_a_million_histories_are_found():
  """All of them, and none that is not there; histories reach the end of int32's pairs."""
  rng = np.random.default_rng(0)
  pairs = np.unique(rng.integers(0, 2**31 - 1, (2**20, 2), dtype=np.int64).astype(np.int32), axis=0)
  count = len(pairs)
  tables = ngram.Tables(
      (np.zeros((0, 1), np.int32), pairs), np.arange(count + 2, dtype=np.int32),
      np.arange(count + 1, dtype=np.int32), np.zeros(count + 1, np.float32), 1)
  asked = np.concatenate([pairs[::97], pairs[:1], pairs[-1:], np.add(pairs[::97], [0, 1])])
  row = np.asarray(jax.jit(ngram.longest)(on_device(tables), jnp.asarray(asked, jnp.int32)))
  place = {tuple(pair): i for i, pair in enumerate(pairs.tolist())}
  expected = [place.get(tuple(pair), -1) + 1 for pair in asked.tolist()]
  np.testing.assert_array_equal(row, expected)
  assert expected.count(0) > 1000


@pytest.mark.parametrize("temperature, top_k, top_p", [
    (1.0, 0, 0.0), (0.5, 0, 0.0), (1.7, 2, 0.0), (1.0, 0, 0.6), (0.9, 3, 0.8), (0.0, 0, 0.0)])
@pytest.mark.parametrize("order", [1, 3])
def test_q_is_the_oracles(order, temperature, top_k, top_p):
  it = subject(order)
  rows = [[0], [0, 2, 3], [0, 7, 7], [0, 3, 5, 6, 2]]
  _, proposal, _ = contract.propose(it, rows, sampling(4, temperature, top_k, top_p), 3)
  tokens = np.asarray(proposal.tokens)
  assert (np.asarray(proposal.num_drafted) == 3).all()
  histories = [row + tokens[i, :j].tolist() for i, row in enumerate(rows) for j in range(3)]
  laws = looked_up(it.params, histories)
  for q, law in zip(np.asarray(proposal.probs).reshape(-1, V), laws):
    logits = np.full(V, -np.inf)
    logits[list(law)] = np.log(list(law.values()))
    np.testing.assert_allclose(q, oracle.distribution(logits, temperature, top_k, top_p), atol=1e-5)


def with_controls(at, **controls):
  return at.replace(rules=at.rules.replace(controls=rules_lib.controls(
      at.ids.shape[0], **controls)))


def test_controls_act_on_q_as_on_dense_logits():
  it = subject(3)
  rows = [[0, 2, 3, 2], [0, 4], [0, 5, 5, 5]]
  for options, by_oracle in (
      ({"repetition_penalty": 1.4}, {"penalty": 1.4}),
      ({"no_repeat_ngram": 2}, {"ngram": 2}),
      ({"forbidden": [(2, 0, 4), (3, 0, 99)]}, {"forbidden": [(2, 0, 4), (3, 0, 99)]})):
    at = with_controls(contract.context(it, rows, sampling(3, 1.0)), **options)
    proposal, _ = contract._propose(it.drafter, it.params, (), at, 3)
    tokens, drafted = np.asarray(proposal.tokens), np.asarray(proposal.num_drafted)
    assert drafted.sum() >= 5, options
    for i, row in enumerate(rows):
      for j in range(drafted[i]):
        history = row + tokens[i, :j].tolist()
        law = looked_up(it.params, [history])[0]
        logits = np.full(V, -np.inf)
        logits[list(law)] = np.log(list(law.values()))
        expected = oracle.distribution(oracle.adjust(logits, history[1:], **by_oracle), 1.0)
        np.testing.assert_allclose(proposal.probs[i, j], expected, atol=1e-5)


def test_a_row_stops_where_all_its_candidates_are_forbidden():
  """2 is followed by 3 alone and 3 by 4 alone, so without 4 the draft ends after 3."""
  it = subject(2, [[2, 3, 4, 5, 1]] * 3)
  rows = [[0, 2], [0, 3], [0]]
  at = with_controls(contract.context(it, rows, sampling(3, [0.0, 1.0, 1.0])),
                     forbidden=[(4, 0, 99)])
  proposal, _ = contract._propose(it.drafter, it.params, (), at, 4)
  assert np.asarray(proposal.num_drafted).tolist() == [1, 0, 2]
  assert np.asarray(proposal.tokens)[2, :2].tolist() == [2, 3]
  free = contract.context(it, rows, sampling(3, 1.0))
  proposal, _ = contract._propose(it.drafter, it.params, (), free, 4)
  assert np.asarray(proposal.num_drafted).tolist() == [4, 4, 4]


def test_nothing_is_drafted_beyond_what_some_row_wants():
  it = subject(2)
  at = contract.context(it, [[0], [0, 2]], sampling(2, 1.0))
  proposal, _ = contract._propose(it.drafter, it.params, (), at.replace(
      wanted=jnp.asarray([2, 1])), 4)
  assert np.asarray(proposal.num_drafted).tolist() == [2, 2]
  assert not np.asarray(proposal.probs)[:, 2:].any()


# The loop: tables that were counted from the target's own outputs, as a user would.
EOS, LENGTH = 1, 6
BATCH = 1 << 15
KINDS = np.arange(BATCH) % 2
TARGET = markov.random_weights(0, 4, kinds=2)
SCORER = markov.MarkovScorer(4)


@functools.cache
def spoken() -> list[list[int]]:
  """What the target says, plainly."""
  weights = jax.tree.map(jnp.asarray, Weights(TARGET))
  kinds = np.arange(2000) % 2
  state = toy.start(Method(SCORER), weights, kinds, max_len=LENGTH, seed=5)
  state = loop.run(Method(SCORER), weights, state,
                   toy.rules(1.0, 2000, LENGTH, (EOS,)), toy.exits())
  return [list(s) for s in toy.sequences(state)]


def method(order: int, **options) -> Method:
  return Method(SCORER, ngram.NgramDrafter(4, order), 3, **options)


def pair(order: int, **options) -> Weights:
  tables = ngrams.count(spoken(), order, 4, **options)
  return jax.tree.map(jnp.asarray, Weights(TARGET, tables))


MIXED = tuple(np.resize(np.repeat(column, 2), BATCH) for column in zip(
    (1.0, 0, 0.0), (0.0, 0, 0.0), (0.7, 3, 0.0), (1.5, 0, 0.9), (1.2, 2, 0.95)))
CONTROLS = {"repetition_penalty": 1.3, "forbidden": [(2, 0, 2), (3, 4, 5)]}


def adjusted(logits, tokens):
  return oracle.adjust(logits, tokens, penalty=1.3, forbidden=CONTROLS["forbidden"])


@pytest.mark.parametrize("verifier", [TokenVerifier(), BlockVerifier(), CoupledVerifier()])
@pytest.mark.parametrize("order, controls", [(2, None), (3, CONTROLS)])
def test_joint_law(order, controls, verifier):
  """32768 rows of mixed settings; the tables miss rare successors, so q is 0 where p is not."""
  chosen, weights = sampling(BATCH, *MIXED), pair(order, successors=2)
  kinds = KINDS
  run = method(order, verifier=verifier)
  state = toy.start(run, weights, kinds, max_len=LENGTH)
  options = controls and {"controls": rules_lib.controls(BATCH, size=4, **controls)}
  rules = toy.rules(chosen, BATCH, LENGTH, (EOS,), **(options or {}))
  state = loop.run(run, weights, state, rules, toy.exits())
  fits = toy.fits(state, TARGET, kinds, chosen, EOS, LENGTH, adjust=controls and adjusted)
  assert goodness.p_value(*fits) > 1e-4
  assert np.asarray(state.stats.accepted).sum() > BATCH / 2


@pytest.mark.parametrize("order", ORDERS)
def test_greedy_output_is_plain_output(order):
  """Ragged limits, EOS inside of drafts, controls on for some rows; ids alone may not tell."""
  kinds = np.arange(8) % 4
  target = markov.random_weights(0, 12, kinds=4)
  scorer = markov.MarkovScorer(12)
  plain, weights = Method(scorer), jax.tree.map(jnp.asarray, Weights(target))
  options = {"max_len": toy.RAGGED, "eos": toy.EOS, "controls": rules_lib.controls(
      8, [1.0, 1.0, 1.5, 1.0, 1.0, 1.2, 1.0, 1.0], [0, 2, 0, 0, 3, 0, 0, 2], size=4)}
  said = toy.decode(plain, weights, kinds, **options)
  sequences = [list(s) for s in toy.sequences(said)]
  tables = ngrams.count([*sequences, *corpus(3, 12, count=10)], order, 12)
  found = toy.decode(Method(scorer, ngram.NgramDrafter(12, order), 3),
                     weights.replace(drafter=on_device(tables)), kinds, **options)
  for name in ("ids", "length", "status"):
    np.testing.assert_array_equal(getattr(found, name), getattr(said, name))
  assert int(found.stats.accepted.sum()) > 8 or order == 1


def test_better_tables_are_accepted_more_often():
  """Unigrams, bigrams, trigrams of a target that looks at two tokens, in this order."""
  alphas = []
  for order in ORDERS:
    run, weights = method(order), pair(order)
    state = toy.start(run, weights, KINDS, max_len=LENGTH)
    state = loop.run(run, weights, state, toy.rules(1.0, BATCH, LENGTH, (EOS,)), toy.exits())
    alphas.append(float(state.stats.accepted.sum() / state.stats.tested.sum()))
  assert alphas[0] + 0.05 < alphas[1] < alphas[2] - 0.05, alphas
