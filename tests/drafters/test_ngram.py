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
  # Of this seed, histories that the battery asks for have several successors.
  tables = ngrams.count(sequences or corpus(1, V), order, V, **options)
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


def draft(it: contract.Subject, rows, settings, wanted=64, **controls):
  """Drafts up to three tokens after each of four rows; one program per tables."""
  assert len(rows) == 4
  at = contract.context(it, rows, sampling(4, *settings))
  rules = at.rules.replace(controls=rules_lib.controls(4, size=2, **controls))
  wanted = jnp.broadcast_to(jnp.asarray(wanted), (4,))
  proposal, _ = contract._propose(it.drafter, it.params, (), at.replace(
      rules=rules, wanted=wanted), 3)
  return jax.tree.map(np.asarray, proposal)


def logits_after(it: contract.Subject, histories) -> list[np.ndarray]:
  """What the tables say after histories, spread over the vocabulary."""
  out = []
  for law in looked_up(it.params, histories):
    logits = np.full(V, -np.inf)
    logits[list(law)] = np.log(list(law.values()))
    out.append(logits)
  return out


ROWS = [[0], [0, 2, 3], [0, 7, 7], [0, 3, 5, 6, 2, 3, 2]]
TRIGRAMS = subject(3)


@pytest.mark.parametrize("settings", [
    (1.0, 0, 0.0), (0.5, 0, 0.0), (1.7, 2, 0.0), (1.0, 0, 0.6), (0.9, 3, 0.8), (0.0, 0, 0.0)])
def test_q_is_the_oracles(settings):
  proposal = draft(TRIGRAMS, ROWS, settings)
  assert (proposal.num_drafted == 3).all()
  histories = [row + proposal.tokens[i, :j].tolist() for i, row in enumerate(ROWS)
               for j in range(3)]
  for q, logits in zip(proposal.probs.reshape(-1, V), logits_after(TRIGRAMS, histories)):
    np.testing.assert_allclose(q, oracle.distribution(logits, *settings), atol=1e-5)


@pytest.mark.parametrize("options, by_oracle", [
    ({"repetition_penalty": 1.4}, {"penalty": 1.4}),
    ({"no_repeat_ngram": 2}, {"ngram": 2}),
    ({"forbidden": [(2, 0, 4), (3, 0, 99)]}, {"forbidden": [(2, 0, 4), (3, 0, 99)]})])
def test_controls_act_on_q_as_on_dense_logits(options, by_oracle):
  proposal = draft(TRIGRAMS, ROWS, (1.0,), **options)
  usual = draft(TRIGRAMS, ROWS, (1.0,))
  assert proposal.num_drafted.sum() >= 6
  assert not np.allclose(proposal.probs, usual.probs), "the control changes nothing here"
  for i, row in enumerate(ROWS):
    for j in range(proposal.num_drafted[i]):
      history = row + proposal.tokens[i, :j].tolist()
      logits = oracle.adjust(logits_after(TRIGRAMS, [history])[0], history[1:], **by_oracle)
      np.testing.assert_allclose(proposal.probs[i, j], oracle.distribution(logits, 1.0), atol=1e-5)


CHAIN = subject(2, [[2, 3, 4, 5, 1]] * 3)


def test_a_row_stops_where_all_its_candidates_are_forbidden():
  """2 is followed by 3 alone and 3 by 4 alone, so without 4 the draft ends after 3."""
  rows = [[0, 2], [0, 3], [0], [0, 2]]
  temperature = np.array([0.0, 1.0, 1.0, 1.0])
  proposal = draft(CHAIN, rows, (temperature,), forbidden=[(4, 0, 99)])
  assert proposal.num_drafted.tolist() == [1, 0, 2, 1]
  assert proposal.tokens[2, :2].tolist() == [2, 3]
  assert draft(CHAIN, rows, (temperature,)).num_drafted.tolist() == [3, 3, 3, 3]


def test_nothing_is_drafted_beyond_what_some_row_wants():
  proposal = draft(CHAIN, [[0], [0, 2], [0], [0]], (1.0,), wanted=[2, 1, 0, 0])
  assert proposal.num_drafted.tolist() == [2, 2, 2, 2]
  assert proposal.probs[:, :2].any(-1).all() and not proposal.probs[:, 2:].any()


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


MIXED = tuple(np.resize(np.repeat(column, 2), BATCH) for column in zip(
    (1.0, 0, 0.0), (0.0, 0, 0.0), (0.7, 3, 0.0), (1.5, 0, 0.9), (1.2, 2, 0.95)))
CONTROLS = {"repetition_penalty": 1.3, "forbidden": [(2, 0, 2), (3, 4, 5)]}


def run(order: int, settings, verifier=None, **controls):
  """Decodes a batch with tables that miss rare successors: q is 0 where p is not."""
  method = Method(SCORER, ngram.NgramDrafter(4, order), 3, verifier or TokenVerifier())
  tables = ngrams.count(spoken(), order, 4, successors=2)
  weights = jax.tree.map(jnp.asarray, Weights(TARGET, tables))
  rules = toy.rules(settings, BATCH, LENGTH, (EOS,),
                    controls=rules_lib.controls(BATCH, size=4, **controls))
  return loop.run(method, weights, toy.start(method, weights, KINDS, max_len=LENGTH), rules,
                  toy.exits())


@pytest.mark.parametrize("order, verifier, controls", [
    (2, TokenVerifier(), {}), (2, BlockVerifier(), {}), (3, TokenVerifier(), CONTROLS),
    (3, CoupledVerifier(), {})])
def test_joint_law(order, verifier, controls):
  """Of 32768 rows with mixed settings."""
  chosen = sampling(BATCH, *MIXED)
  state = run(order, chosen, verifier, **controls)
  adjust = lambda logits, tokens: oracle.adjust(logits, tokens, penalty=1.3,
                                                forbidden=CONTROLS["forbidden"])
  fits = toy.fits(state, TARGET, KINDS, chosen, EOS, LENGTH, adjust=adjust if controls else None)
  assert goodness.p_value(*fits) > 1e-4
  assert np.asarray(state.stats.accepted).sum() > BATCH / 2


def test_greedy_output_is_plain_output():
  """Ragged limits, EOS inside of drafts, controls on for some rows."""
  kinds = np.arange(8) % 4
  target = markov.random_weights(0, 12, kinds=4)
  scorer = markov.MarkovScorer(12)
  plain, weights = Method(scorer), jax.tree.map(jnp.asarray, Weights(target))
  options = {"max_len": toy.RAGGED, "eos": toy.EOS, "controls": rules_lib.controls(
      8, [1.0, 1.0, 1.5, 1.0, 1.0, 1.2, 1.0, 1.0], [0, 2, 0, 0, 3, 0, 0, 2], size=4)}
  said = toy.decode(plain, weights, kinds, **options)
  sequences = [list(s) for s in toy.sequences(said)]
  tables = ngrams.count([*sequences, *corpus(3, 12, count=10)], 3, 12)
  found = toy.decode(Method(scorer, ngram.NgramDrafter(12, 3), 3),
                     weights.replace(drafter=on_device(tables)), kinds, **options)
  for name in ("ids", "length", "status"):
    np.testing.assert_array_equal(getattr(found, name), getattr(said, name))
  assert int(found.stats.accepted.sum()) > 8


def test_trigrams_are_accepted_more_often_than_bigrams():
  """Of a target that looks at two tokens."""
  stats = [run(order, 1.0).stats for order in (2, 3)]
  bigram, trigram = (float(s.accepted.sum() / s.tested.sum()) for s in stats)
  assert 0.5 < bigram < trigram - 0.1, (bigram, trigram)
