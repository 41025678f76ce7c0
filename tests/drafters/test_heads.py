"""Heads on the target's hidden states: a lossless drafter, whatever they say."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import keys
from specdec.core import loop
from specdec.core import rules
from specdec.core.rules import sampling
from specdec.core.state import Exits
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.core.state import capacity_for
from specdec.core.verify import BlockVerifier
from specdec.core.verify import CoupledVerifier
from specdec.core.verify import TokenVerifier
from specdec.drafters.heads import HeadsDrafter
from specdec.drafters.heads import HeadsState
from specdec.engine import heads as heads_lib
from specdec.engine.models import make_model
from specdec.engine.models import make_source
from specdec.errors import SpecdecError
from specdec.testing import contract
from specdec.testing import goodness
from specdec.testing import markov
from specdec.testing import tiny
from specdec.types import Rules
from specdec.types import Source
from tests.core import toy

V, K, WIDTH = 4, 4, 2


@dataclasses.dataclass(frozen=True)
class ToyEnds:
  """Layers for the toy, whose hidden state is its last two tokens."""

  def embed(self, weights, ids):
    return weights["table"][ids]

  def output(self, weights, hidden):
    return jnp.sin(hidden @ weights["inner"]) @ weights["outer"]


def toy_params(seed: int = 0, vocab_size: int = V, num_heads: int = K):
  rng = np.random.default_rng(seed)
  normal = lambda *shape: jnp.asarray(rng.normal(0, 1, shape), jnp.float32)
  return {"target": {"table": normal(vocab_size, WIDTH), "inner": normal(WIDTH, 16),
                     "outer": normal(16, vocab_size) / 2},
          "heads": {"kernel": normal(num_heads, WIDTH, 2 * WIDTH),
                    "bias": normal(num_heads, WIDTH)}}


DRAFTER = HeadsDrafter(V, K, WIDTH, ToyEnds())


def last_two(ids: np.ndarray) -> np.ndarray:
  return np.array([0, *ids][-2:], np.float32)


def subject(kind=HeadsDrafter, vocab_size: int = 8) -> contract.Subject:
  return contract.Subject(
      kind(vocab_size, K, WIDTH, ToyEnds()), toy_params(vocab_size=vocab_size), vocab_size,
      lambda batch: Source(jnp.ones((batch, 1), jnp.int32), jnp.ones(batch, jnp.int32)),
      hidden=last_two)


def test_battery():
  contract.check_all(subject())


@dataclasses.dataclass(frozen=True)
class _FirstState(HeadsDrafter):
  """Keeps the state at the begin of the draft, whatever was accepted."""

  def commit(self, params, state, context, num_accepted, hidden):
    new = super().commit(params, state, context, jnp.zeros_like(num_accepted), hidden)
    return new.replace(length=context.length + num_accepted + 1)


def test_the_state_of_another_position_fails_the_battery():
  with pytest.raises(AssertionError):
    contract.check_state_depends_on_committed_tokens_alone(subject(_FirstState), 3)


# The toy of the core's tests of the joint law.
BATCH, EOS, LENGTH = 1 << 15, 1, 6
KINDS = np.arange(BATCH) % 2
TARGET = markov.random_weights(0, V, kinds=2)
WEIGHTS = Weights(jax.tree.map(jnp.asarray, TARGET), toy_params())
SCORER = markov.MarkovScorer(V)
SETTINGS = {
    "plain": (1.0, 0, 0.0),
    "mixed": tuple(np.resize(np.repeat(column, 2), BATCH) for column in zip(
        (1.0, 0, 0.0), (0.0, 0, 0.0), (0.7, 3, 0.0), (1.5, 0, 0.9))),
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("verifier, gamma", [
    (TokenVerifier(), K), (BlockVerifier(), 3), (CoupledVerifier(), 2)])
def test_joint_law(verifier, gamma, settings):
  method, chosen = Method(SCORER, DRAFTER, gamma, verifier), sampling(BATCH, *SETTINGS[settings])
  state = toy.start(method, WEIGHTS, KINDS, max_len=LENGTH)
  state = loop.run(method, WEIGHTS, state, toy.rules(chosen, BATCH, LENGTH, (EOS,)), toy.exits())
  assert goodness.p_value(*toy.fits(state, TARGET, KINDS, chosen, EOS, LENGTH)) > 1e-4
  assert np.asarray(state.stats.accepted).sum() > BATCH / 10


def test_rows_draft_only_where_they_have_the_state_of_their_newest_token():
  speculative, plain = (Method(SCORER, DRAFTER, g) for g in (2, 0))
  asked = toy.rules(1.0, 8, 20, (-1,))
  state = toy.start(speculative, WEIGHTS, np.zeros(8, int), max_len=20)
  drafted = []
  for method, iterations in ((speculative, 1), (speculative, 1), (plain, 2), (speculative, 1),
                             (speculative, 1)):
    before = np.asarray(state.stats.drafted)
    state = loop.run(method, WEIGHTS, state, asked, toy.exits(iterations))
    drafted.append(np.asarray(state.stats.drafted) - before)
  np.testing.assert_array_equal(drafted, np.array([[0], [2], [0], [0], [2]]) * np.ones(8, int))
  hidden = [last_two(np.array(ids)[:-1]) for ids in ([0, *s] for s in toy.sequences(state))]
  np.testing.assert_array_equal(state.draft_state.hidden, hidden)
  np.testing.assert_array_equal(state.draft_state.length, state.length)


def test_a_loop_that_watches_comes_back_after_one_call():
  """Or heads, which have nothing at first, would be left out for good."""
  speculative, plain = (Method(SCORER, DRAFTER, g, watch=True) for g in (2, 0))
  asked = toy.rules(1.0, 8, 20, (-1,))
  state = toy.start(speculative, WEIGHTS, np.zeros(8, int), max_len=20)
  state = loop.run(plain, WEIGHTS, state, asked, toy.exits())
  assert int(state.iterations) == 1
  state = loop.run(speculative, WEIGHTS, state, asked, toy.exits())
  assert not np.asarray(state.running).any()


def test_one_plain_call_behind_is_the_state_of_another_token():
  """Its length tells, even where a draft that stood has made up for the calls."""
  at = contract.context(subject(), [[0, 2, 3]] * 3, sampling(3, 1.0))
  state = HeadsState(jnp.zeros((3, WIDTH)), jnp.array([2, 3, 4], jnp.int32))
  np.testing.assert_array_equal(DRAFTER.has_draft(None, state, at), [False, True, False])


def test_more_tokens_than_heads_are_refused():
  assert DRAFTER.max_gamma == K
  with pytest.raises(SpecdecError, match=f"gamma is {K + 1}; expected at most {K}"):
    contract.propose(subject(), [[0, 2]], sampling(1, 1.0), K + 1)


# The tiny T5.
MAX_LEN = 12
ROWS = [[5, 9, 12, 1], [7, 1], [20, 21, 22, 23, 24, 25, 1]]


def t5_heads(target, num_heads: int = 3, scale: float = 0.05):
  rng, size = np.random.default_rng(0), target.config.emb_dim
  return heads_lib.of_params(target, {
      "kernel": (scale * rng.normal(size=(num_heads, size, 2 * size))).astype(np.float32),
      "bias": np.zeros((num_heads, size), np.float32)})


def run(target, gamma, temperature, rows=ROWS):
  drafter, params = t5_heads(target)
  method = Method(target.scorer, drafter if gamma else None, gamma)
  weights = Weights(target.weights, params if gamma else None)
  batch = len(rows)
  state = loop.start(
      method, weights, make_source(rows, width=8), Source(
          np.zeros((batch, 1), np.int32), np.ones(batch, np.int32)),
      keys.row_keys(5, np.arange(batch)), np.ones(batch, bool), capacity_for(MAX_LEN, 3))
  asked = Rules(rules.sampling(batch, temperature), rules.limits(batch, MAX_LEN),
                rules.controls(batch), rules.speculation(batch))
  return loop.run(method, weights, state, asked, Exits(np.int32(2**30), np.int32(2**30)))


def test_greedy_equals_plain_on_a_t5():
  target = tiny.pair().target
  plain, drafted = run(target, 0, 0.0), run(target, 3, 0.0)
  np.testing.assert_array_equal(plain.length, drafted.length)
  np.testing.assert_array_equal(plain.ids[:, :MAX_LEN + 1], drafted.ids[:, :MAX_LEN + 1])
  assert np.asarray(drafted.stats.drafted).sum() > 0


def test_heads_share_the_arrays_of_their_target():
  target = tiny.pair().target
  _, params = t5_heads(target)
  ours = {id(x) for x in jax.tree.leaves(target.weights)}
  assert all(id(x) in ours for x in jax.tree.leaves(params["target"]))
  assert len(jax.tree.leaves(params["target"])) == 2


@pytest.mark.parametrize("variant", [{}, {"logits_via_embedding": True}])
def test_output_layer_is_the_targets_own(variant):
  """Scaled where the target scales, tied where it is tied."""
  config = tiny.config(**variant)
  params = tiny.params(tiny.config())
  if variant:
    params["decoder"].pop("logits_dense")
  target = make_model("tiny", config, params, tiny.vocabulary())
  scorer, source = target.scorer, make_source(ROWS[:1], width=8)
  tokens = jnp.array([[0, 5, 7]], jnp.int32)
  logits, hidden, _ = scorer.score(target.weights, tokens, scorer.init(target.weights, source, 8))
  ends = scorer.ends(target.weights)
  np.testing.assert_allclose(scorer.output(ends, hidden), logits, atol=1e-5)
  np.testing.assert_array_equal(scorer.embed(ends, tokens[0]),
                                target.weights["token_embedder"]["embedding"][tokens[0]])


def test_heads_are_kept_and_refused_for_another_target(tmp_path):
  target = tiny.pair().target
  _, params = t5_heads(target)
  heads_lib.save(tmp_path / "heads", target, params["heads"], "random")
  drafter, loaded = heads_lib.load(tmp_path / "heads", target)
  assert drafter.max_gamma == 3
  np.testing.assert_array_equal(loaded["heads"]["kernel"], params["heads"]["kernel"])
  with pytest.raises(SpecdecError, match="trained for another target than tiny/drafter"):
    heads_lib.load(tmp_path / "heads", tiny.pair().drafter.model)


def test_fingerprint_is_the_same_in_every_dtype():
  params = tiny.params(tiny.config())
  low, high = (make_model("tiny", tiny.config(dtype=dtype), params, tiny.vocabulary())
               for dtype in ("bfloat16", "float32"))
  assert heads_lib.fingerprint(low) == heads_lib.fingerprint(high)
  assert heads_lib.fingerprint(high) != heads_lib.fingerprint(tiny.pair().drafter.model)
