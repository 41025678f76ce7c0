"""Cascades: exact at any depth, level at every level."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import loop
from specdec.core import probs
from specdec.core import rules as rules_lib
from specdec.core.contracts import Proposal
from specdec.core.rules import sampling
from specdec.core.state import Method
from specdec.core.verify import BlockVerifier
from specdec.core.verify import CoupledVerifier
from specdec.core.verify import LenientVerifier
from specdec.core.verify import TokenVerifier
from specdec.core.verify import Verdict
from specdec.drafters.cascade import CascadeDrafter
from specdec.drafters.cascade import CascadeParams
from specdec.drafters.copy import CopyDrafter
from specdec.drafters.transformer import TransformerDrafter
from specdec.drafters.uniform import UniformDrafter
from specdec.testing import contract
from specdec.testing import markov
from specdec.types import Source
from tests.core import toy
from tests.drafters import law


def two_deep(vocab_size=law.V, scorer=law.SCORER, **options) -> CascadeDrafter:
  """The small model drafts for the middle one."""
  return CascadeDrafter(scorer, TransformerDrafter(scorer, vocab_size), vocab_size, **options)


def three_deep(vocab_size=law.V, scorer=law.SCORER, **options) -> CascadeDrafter:
  """Something without a model drafts for the small model, which drafts for the middle one."""
  inner = CascadeDrafter(scorer, UniformDrafter(vocab_size), vocab_size, 1)
  return CascadeDrafter(scorer, inner, vocab_size, **options)


TWO = CascadeParams(law.MIDDLE, law.SMALL)
THREE = CascadeParams(law.MIDDLE, CascadeParams(law.SMALL))


# The contract.

def _subject(drafter, params, width=8):
  return contract.Subject(
      drafter, law.device(params), 8,
      lambda batch: Source(jnp.ones((batch, 1), jnp.int32), jnp.ones(batch, jnp.int32)))


def _weights(seed, width=8):
  return markov.random_weights(seed, width, kinds=2)


def test_battery():
  contract.check_all(_subject(two_deep(8, markov.MarkovScorer(8)),
                              CascadeParams(_weights(3), _weights(4))))


def test_battery_three_deep_at_other_widths():
  """The middle model lacks two ids, the small one has three too many."""
  narrow, wide = markov.MarkovScorer(6), markov.MarkovScorer(11)
  small = CascadeDrafter(wide, CopyDrafter(8), 8, 1, BlockVerifier())
  contract.check_all(_subject(
      CascadeDrafter(narrow, small, 8, 2),
      CascadeParams(_weights(3, 6), CascadeParams(_weights(4, 11)))))


@pytest.mark.parametrize("options", [{"gamma": 0}, {"verifier": LenientVerifier()}])
def test_what_would_not_be_a_draw_from_the_middle_model_is_refused(options):
  with pytest.raises(ValueError, match="expected gamma 1 or more and a lossless verifier"):
    two_deep(**options)


# Exactness.

@pytest.mark.parametrize("verifier", law.VERIFIERS)
@pytest.mark.parametrize("drafter, params", [(two_deep(), TWO), (three_deep(), THREE)],
                         ids=["two", "three"])
def test_joint_law(drafter, params, verifier):
  found, state = law.measure(Method(law.SCORER, drafter, 4, verifier), params)
  assert found > law.RIGHT
  assert np.asarray(state.stats.accepted).sum() > law.BATCH


def test_joint_law_with_block_verification_inside_and_confidence_outside():
  """Rows that stop where the middle model is unsure, and rows with a gamma of their own."""
  drafter = two_deep(gamma=3, verifier=BlockVerifier())
  confidence = np.resize(np.repeat([0.0, 0.5, 0.6, 0.0], 2), law.BATCH)
  gamma = np.resize(np.repeat([4, 4, 3, 1], 2), law.BATCH)
  found, state = law.measure(
      Method(law.SCORER, drafter, 4), TWO, settings=sampling(law.BATCH, 1.0),
      confidence=confidence, gamma=gamma)
  assert found > law.RIGHT
  per_call = np.asarray(state.stats.drafted / state.stats.target_calls)
  drafted = per_call.reshape(-1, 4, 2).mean((0, 2))
  assert (drafted <= [4, 4, 3, 1]).all() and drafted[0] > drafted[1] > drafted[2] > 0.1


@dataclasses.dataclass(frozen=True)
class PassesOn(TokenVerifier):
  """Lets every inner draft through, as if it had been drawn from the middle model."""

  def __call__(self, noise, proposal, target):
    count = proposal.num_drafted
    after = jnp.take_along_axis(target.probs, count[:, None, None], 1)[:, 0]
    return Verdict(count, probs.draw(noise.bonus, after))


@dataclasses.dataclass(frozen=True)
class SharesNoise(CascadeDrafter):
  """Draws inside an iteration with the keys of the iteration itself."""

  def _keys(self, context):
    return context.row_keys


class DropsCorrections(CascadeDrafter):
  """Ends its draft where an inner draft was rejected, before the token that replaced it."""

  def propose(self, params, state, context, gamma):
    proposal, state = super().propose(params, state, context, gamma)
    inner, _ = self.drafter.propose(params.drafter, state.drafter, self._inside(
        context, proposal.replace(num_drafted=proposal.num_drafted * 0), context.wanted),
        self.gamma)
    same = inner.tokens[:, 0] == proposal.tokens[:, 0]
    return proposal.replace(num_drafted=jnp.where(same, proposal.num_drafted, 0)), state


CONTROLS = {
    "unchecked inner drafts": two_deep(verifier=PassesOn()),
    "noise of the outer iteration": SharesNoise(law.SCORER, TransformerDrafter(
        law.SCORER, law.V), law.V),
    "corrections dropped": DropsCorrections(law.SCORER, TransformerDrafter(
        law.SCORER, law.V), law.V),
}


@pytest.mark.parametrize("control", CONTROLS)
def test_negative_control_fails(control):
  found, _ = law.measure(Method(law.SCORER, CONTROLS[control], 4), TWO)
  assert found < law.WRONG


# Equal ids.

NEAR = CascadeParams(toy.disturbed(toy.TARGET, 1, 1.0), toy.disturbed(toy.TARGET, 2))
DEEP = CascadeParams(NEAR.scorer, CascadeParams(NEAR.drafter))
# The inner gamma is larger than what is left of many drafts.
TALL = three_deep(toy.V, toy.SCORER, gamma=3)


def test_coupled_ids_are_those_of_plain_decoding():
  """At every gamma, with a coupled verifier at every level, whatever its name is."""
  options = dict(settings=toy.MIXED, max_len=toy.RAGGED, eos=toy.EOS)
  plain = toy.decode(Method(toy.SCORER, verifier=CoupledVerifier()), toy.PAIR, **options)
  weights = toy.weights(toy.TARGET, DEEP)
  method = Method(toy.SCORER, TALL, 8, CoupledVerifier())
  for gamma in range(1, 9):
    state = law.start(method, weights, law.source(toy.KINDS, 1), toy.MAX_LEN)
    rules = toy.rules(toy.MIXED, toy.BATCH, toy.RAGGED, toy.EOS, gamma=gamma)
    found = loop.run(method, weights, state, rules, toy.exits())
    np.testing.assert_array_equal(found.length, plain.length)
    np.testing.assert_array_equal(found.ids[:, :toy.MAX_LEN + 1], plain.ids[:, :toy.MAX_LEN + 1])
    assert int(found.stats.accepted.sum()) > 0


def test_a_coupled_draft_is_the_plain_draw_of_the_middle_model():
  """The very ids that a drafter without a cascade would draw with the same noise."""
  drafter = two_deep(8, markov.MarkovScorer(8))
  rows = [[0, 2, 3], [0], [0, 3, 3, 2]]
  settings = sampling(3, [1.0, 0.0, 0.7], [0, 0, 3])
  own = _subject(drafter, CascadeParams(_weights(3), _weights(4)))
  plain = _subject(TransformerDrafter(drafter.scorer, 8), _weights(3))
  _, found, _ = contract.propose(own, rows, settings, 5, coupled=True)
  _, wanted, _ = contract.propose(plain, rows, settings, 5, coupled=True)
  np.testing.assert_array_equal(found.tokens, wanted.tokens)
  np.testing.assert_allclose(found.probs, wanted.probs, atol=1e-6)


def test_greedy_equals_plain_greedy():
  plain = toy.decode(toy.PLAIN, toy.PAIR, max_len=toy.RAGGED, eos=toy.EOS)
  for params in (NEAR, CascadeParams(NEAR.scorer, jax.tree.map(lambda x: x * np.nan,
                                                               NEAR.drafter)),
                 CascadeParams(jax.tree.map(lambda x: x * np.nan, NEAR.scorer), NEAR.drafter)):
    found = toy.decode(Method(toy.SCORER, two_deep(toy.V, toy.SCORER), toy.GAMMA),
                       toy.weights(toy.TARGET, params), max_len=toy.RAGGED, eos=toy.EOS)
    np.testing.assert_array_equal(found.ids, plain.ids)
    np.testing.assert_array_equal(found.status, plain.status)


# Level caches.

class _CountingCache(markov.MarkovCache):
  """And how often the model was called."""

  calls: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class CountingScorer(markov.MarkovScorer):
  """Counts its calls, and depends on all it was fed: a hole anywhere in its cache tells."""

  def init(self, weights, source, capacity, copies=1):
    cache = super().init(weights, source, capacity, copies)
    return _CountingCache(cache.buffer, cache.length, cache.kind, jnp.zeros_like(cache.length))

  def score(self, weights, tokens, cache):
    slots = cache.length[:, None] + jnp.arange(tokens.shape[1])
    logits, hidden, cache = super().score(weights, tokens, cache)
    total = jnp.take_along_axis(jnp.cumsum(cache.buffer, 1), slots, 1, mode="clip")
    logits += weights["logits"][total % self.vocab_size, tokens]
    return logits, hidden, cache.replace(calls=cache.calls + 1)


class FallsBehind(CascadeDrafter):
  """Has its drafter feed as many tokens as it would outside of a cascade."""

  def _inside(self, context, draft, lacking):
    return super()._inside(context, draft, lacking).replace(lag=2)


OUTER, LONG = 5, 256


def _perfect(drafter):
  """Decodes with models that are all the target."""
  target = markov.random_weights(7, toy.V, kinds=4)
  params = CascadeParams(target, CascadeParams(target, target))
  return toy.decode(Method(CountingScorer(toy.V), drafter, OUTER), toy.weights(target, params),
                    settings=1.0, max_len=LONG, eos=(), capacity_len=LONG)


def _all_the_same(kind):
  counting = CountingScorer(toy.V)
  inner = kind(counting, TransformerDrafter(counting, toy.V), toy.V, 1)
  return kind(counting, inner, toy.V, 2)


def test_a_cascade_of_the_target_itself_accepts_always_over_256_tokens():
  """A cache that falls behind at any level would cost calls of the model above it."""
  state = _perfect(_all_the_same(CascadeDrafter))
  assert state.length.tolist() == [LONG + 1] * toy.BATCH
  outer = -(-LONG // (OUTER + 1))
  assert state.stats.target_calls.tolist() == [outer] * toy.BATCH
  np.testing.assert_array_equal(state.stats.tested, state.stats.accepted)
  # Each draft of 5 takes two calls of the middle model, 3 tokens and 2; the last draft of
  # 3 takes one.
  assert state.draft_state.cache.calls.tolist() == [2 * outer - 1] * toy.BATCH
  # Two tokens for the middle model take one of the small one, with the token it is given.
  small = state.draft_state.drafter.cache.calls
  assert small.tolist() == [2 * outer - 1] * toy.BATCH


def test_a_drafter_that_falls_behind_costs_calls():
  state = _perfect(_all_the_same(FallsBehind))
  outer = -(-LONG // (OUTER + 1))
  # The output is none the worse.
  assert state.stats.target_calls.tolist() == [outer] * toy.BATCH
  calls = (state.draft_state.cache.calls, state.draft_state.drafter.cache.calls)
  assert min(int(x[0]) for x in calls) > 1.1 * (2 * outer - 1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ByHistory:
  """A hook that looks at the whole history: what was said comes up again, more or less."""

  scale: jax.Array

  def __call__(self, logits, ids, lengths):
    place = jnp.arange(ids.shape[1])
    weight = jnp.where((place > 0) & (place < lengths[:, None]), jnp.cos(1.0 * place), 0.0)
    said = (ids[..., None] == jnp.arange(logits.shape[1])) * weight[..., None]
    return logits + self.scale * said.sum(1) + jnp.sin(1.0 * lengths)[:, None] * logits


def test_controls_see_the_right_history_at_every_inner_position():
  """The middle model is the target: were any of them adjusted otherwise, drafts would fall."""
  controls = rules_lib.controls(toy.BATCH, 1.3, logits_fn=ByHistory(jnp.float32(2.0)))
  weights = toy.weights(toy.TARGET, CascadeParams(toy.TARGET, NEAR.drafter))
  state = toy.decode(Method(toy.SCORER, two_deep(toy.V, toy.SCORER), toy.GAMMA), weights,
                     settings=1.0, eos=(), controls=controls)
  np.testing.assert_array_equal(state.stats.tested, state.stats.accepted)
  assert int(state.stats.accepted.sum()) >= toy.BATCH * (toy.MAX_LEN - 1) * 3 // 4
  # It does something, and to the drafts of the small model as well.
  without = toy.decode(Method(toy.SCORER, two_deep(toy.V, toy.SCORER), toy.GAMMA), weights,
                       settings=1.0, eos=())
  assert (np.asarray(without.ids) != np.asarray(state.ids)).any(1).all()


# A drafter that lives on hidden states.

class _Seen(flax.struct.PyTreeNode):
  """The hidden state [B, 2] that the newest committed token came of."""

  hidden: jax.Array


@dataclasses.dataclass(frozen=True)
class OnHidden:
  """Drafts one token: the second of the two that the middle model's hidden state names."""

  abstains = False

  def init(self, params, source, capacity, copies=1):
    return _Seen(jnp.zeros((source.length.shape[0] * copies, 2)))

  def catch_up(self, params, state, ids, length, width):
    return state

  def propose(self, params, state, context, gamma):
    token = state.hidden[:, 1].astype(jnp.int32)
    return Proposal(jnp.broadcast_to(token[:, None], (token.shape[0], gamma)), None,
                    jnp.ones_like(token)), state

  def commit(self, params, state, context, num_accepted, hidden):
    return _Seen(jnp.take_along_axis(hidden, num_accepted[:, None, None], 1)[:, 0])


def test_hidden_states_are_those_of_the_middle_model():
  """The toy's name the last two tokens fed, so that they can be told from the ids."""
  drafter = CascadeDrafter(toy.SCORER, OnHidden(), toy.V, 1)
  method = Method(toy.SCORER, drafter, 3)
  weights = toy.weights(toy.TARGET, CascadeParams(NEAR.scorer))
  rules = toy.rules(1.0, toy.BATCH, toy.MAX_LEN, ())
  state = toy.start(method, weights, toy.KINDS, max_len=toy.MAX_LEN)
  partly = 0
  for _ in range(5):
    before = jax.tree.map(jnp.copy, state)
    state = loop.run(method, weights, state, rules, toy.exits(max_iterations=1))
    ids, length = np.asarray(state.ids), np.asarray(state.length)
    accepted = np.asarray(state.stats.accepted - before.stats.accepted)
    for i in range(toy.BATCH):
      # A whole draft's last token was never fed.
      if accepted[i] == 3:
        continue
      partly += 1
      wanted = [0 if length[i] < 3 else ids[i, length[i] - 3], ids[i, length[i] - 2]]
      assert np.asarray(state.draft_state.drafter.hidden)[i].tolist() == wanted
    assert state.draft_state.hidden is None
  assert partly > 10
