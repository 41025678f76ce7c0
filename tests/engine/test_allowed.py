"""A trie of allowed sequences: nothing else comes out, and speculation stays exact."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specdec
from specdec.core import loop
from specdec.core import rules as rules_lib
from specdec.testing import goodness
from specdec.testing import tiny
from tests.core import test_controls
from tests.core import toy

_call = jax.jit(lambda hook, logits, ids, lengths: hook(logits, ids, lengths))
V = 9


def _next(sequences, prefix):
  """Tokens that lead on, by looking at every sequence."""
  n = len(prefix)
  return {s[n] for s in sequences if len(s) > n and s[:n] == prefix}


@settings(max_examples=60, deadline=None)
@given(st.sets(st.lists(st.integers(0, V - 1), min_size=1, max_size=5).map(tuple), min_size=1,
               max_size=12), st.randoms(use_true_random=False))
def test_allows_what_a_search_through_the_list_allows(sequences, random):
  sequences = sorted(sequences)
  hook = specdec.AllowedSequences.from_ids(sequences)
  prefixes = []
  for _ in range(16):
    chosen = random.choice(sequences)
    prefix = list(chosen[:random.randint(0, len(chosen))])
    if prefix and random.random() < 0.3:
      prefix[random.randrange(len(prefix))] = random.randrange(V)
    prefixes.append(tuple(prefix))
  ids, lengths = np.zeros((16, 8), np.int32), np.zeros(16, np.int32)
  for i, prefix in enumerate(prefixes):
    ids[i, 1:1 + len(prefix)] = prefix
    lengths[i] = 1 + len(prefix)
  out = np.asarray(_call(hook, np.ones((16, V), np.float32), ids, lengths))
  for row, prefix in zip(out, prefixes):
    assert set(np.flatnonzero(np.isfinite(row)).tolist()) == _next(sequences, prefix)


def test_joint_law_within_the_trie():
  """On the toy model that can be enumerated, speculatively."""
  sequences = [(2, 1), (2, 3, 1), (2, 3, 2, 1), (0, 0, 0, 0, 0, 0), (0, 3, 1), (3, 2, 2, 2, 1),
               (3, 2, 2, 0, 3, 1)]
  hook = specdec.AllowedSequences.from_ids(sequences)
  c = test_controls
  chosen = rules_lib.sampling(c.BATCH, 1.0)
  method = loop_method = c.Method(c.SCORER, c.DRAFTER, 2)
  state = toy.start(method, c.PAIR, c.KINDS, max_len=c.LENGTH)
  state = loop.run(loop_method, c.PAIR, state, toy.rules(
      chosen, c.BATCH, c.LENGTH, (c.EOS,), 0, rules_lib.controls(c.BATCH, logits_fn=hook, size=4)),
      toy.exits())

  def adjust(logits, tokens):
    allowed = _next(sequences, tuple(tokens))
    return np.where(np.isin(np.arange(c.V), list(allowed)), logits, -np.inf)

  assert set(toy.sequences(state)) == set(sequences)
  found = goodness.p_value(*toy.fits(state, c.TARGET, c.KINDS, chosen, c.EOS, c.LENGTH,
                                     adjust=adjust))
  assert found > c.RIGHT


def test_outputs_are_allowed_texts():
  pair = tiny.pair()
  texts = ["Ein Boot.", "Ein Hund und eine Katze.", "Zwei Kinder", "a", "the"]
  hook = specdec.AllowedSequences.from_texts(pair.vocabulary, texts)
  options = dict(task="", logits_fn=hook, max_decode_len=32)
  inputs = ["A boat.", "hens", "The cat sleeps on the wall."]
  result = specdec.generate(pair, inputs, **options)
  assert result.ids == specdec.generate(pair, inputs, mode="plain", **options).ids
  sampled = specdec.generate(pair, inputs, temperature=3.0, num_decodes=8, **options)
  outputs = {r.output for r in sampled.records}
  assert outputs <= set(texts) and len(outputs) > 1
  assert set(sampled.statuses) == {"eos"}
  # A prompt that leads nowhere.
  lost = specdec.generate(pair, inputs, prompt="old", **options)
  assert set(lost.statuses) == {"forbidden"} and {r.num_generated for r in lost.records} == {0}
  # Another set of the same size compiles nothing.
  compiled = loop.run._cache_size()
  other = specdec.AllowedSequences.from_texts(
      pair.vocabulary, ["Ein Hund.", "Ein Boot und eine Katze.", "Zwei Kinder", "a", "the"])
  assert other.token.shape == hook.token.shape
  specdec.generate(pair, inputs, **{**options, "logits_fn": other})
  assert loop.run._cache_size() == compiled


@pytest.mark.parametrize("sequences, told", [
    ([], "there are no allowed sequences"), ([[3, 1], []], "input 1 of the allowed sequences"),
    ([3, 1], "input 0 of the"), ("abc", "input 0 of the"), ([[1.5, 1]], "input 0 of the"),
    ([[-1, 1]], "input 0 of the"), ([[2**40]], "input 0 of the"), ([[[1], [2, 3]]], "input 0 of"),
])
def test_what_are_no_sequences_is_refused(sequences, told):
  with pytest.raises(specdec.SpecdecError, match=told):
    specdec.AllowedSequences.from_ids(sequences)


@pytest.mark.parametrize("texts, told", [
    ("Ein", "one text; expected a list"), ([], "no allowed sequences"), ([1], "input 0 of the"),
    (["a", " "], "input 1 of the allowed texts"), (["a", "日本"], "which the vocabulary writes as"),
])
def test_texts_that_cannot_be_written_are_refused(texts, told):
  with pytest.raises(specdec.SpecdecError, match=told):
    specdec.AllowedSequences.from_texts(tiny.pair().vocabulary, texts)


def test_is_a_pytree_of_arrays():
  hook = specdec.AllowedSequences.from_ids([(3, 1)])
  assert all(isinstance(x, np.ndarray | jnp.ndarray) for x in jax.tree.leaves(hook))
