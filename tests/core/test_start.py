"""How a batch begins: prompts of any length, several rows per input; and its trace."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import keys
from specdec.core import loop
from specdec.core.state import capacity_for
from specdec.testing import markov
from specdec.testing import oracle
from specdec.types import Source
from specdec.types import Status
from tests.core import toy

BATCH, GAMMA, MAX_LEN = toy.BATCH, toy.GAMMA, toy.MAX_LEN
PROMPTS = [(), (2, 3), (5,), (4, 4, 4, 2), (7, 8), (), (9,), (2, 5, 11, 3, 8)]
TRACED = dataclasses.replace(toy.SPECULATIVE, trace=True)


def test_prompts_are_read_in_one_call_and_left_where_the_loop_goes_on():
  state = toy.start(toy.SPECULATIVE, toy.PAIR, toy.KINDS, max_len=MAX_LEN, prompts=PROMPTS)
  for row, prompt in enumerate(PROMPTS):
    committed = [0, *prompt]
    assert int(state.length[row]) == len(committed)
    assert state.ids[row].tolist() == committed + [0] * (state.ids.shape[1] - len(committed))
    # The target has been fed all of them but the last.
    assert int(state.target_cache.length[row]) == len(prompt)
    for cache, fed in ((state.target_cache, committed[:-1]), (state.draft_state, committed[:-2])):
      assert np.asarray(cache.buffer[row])[:len(fed)].tolist() == fed


@pytest.mark.parametrize("method", [toy.PLAIN, toy.SPECULATIVE])
def test_a_row_goes_on_after_its_prompt_as_if_it_had_said_it_itself(method):
  own = toy.decode(method, toy.PAIR, max_len=toy.RAGGED, eos=toy.EOS)
  said = toy.sequences(own)
  prompts = [s[:min(len(s) // 2, 5)] for s in said]
  assert {0, 5} <= {len(p) for p in prompts}
  again = toy.decode(method, toy.PAIR, max_len=toy.RAGGED, eos=toy.EOS, prompts=prompts)
  assert toy.sequences(again) == said
  np.testing.assert_array_equal(again.status, own.status)


def test_prompts_of_neighbours_do_not_matter():
  together = toy.decode(toy.SPECULATIVE, toy.PAIR, settings=toy.MIXED, eos=toy.EOS,
                        prompts=PROMPTS)
  for row in (0, 3, 6):
    others = [p if i == row else () for i, p in enumerate(PROMPTS)]
    alone = toy.decode(toy.SPECULATIVE, toy.PAIR, settings=toy.MIXED, eos=toy.EOS, prompts=others)
    assert toy.sequences(alone)[row] == toy.sequences(together)[row]


def test_scores_leave_the_prompt_out():
  prompts = [(3, 4, 5)] * BATCH
  state = toy.decode(toy.SPECULATIVE, toy.PAIR, prompts=prompts, max_len=3)
  assert (np.asarray(state.status) == Status.LENGTH).all()
  assert toy.sequences(state) == prompts and not np.asarray(state.log_prob).any()


def test_copies_are_rows_of_their_own_and_the_source_is_read_once():
  copies, kinds = 2, np.arange(4)
  args = (toy.SPECULATIVE, toy.PAIR)
  source = Source(jnp.asarray(kinds)[:, None], jnp.ones(4, jnp.int32))
  row_keys = keys.row_keys(0, jnp.repeat(jnp.arange(4), copies), jnp.tile(jnp.arange(copies), 4))
  rest = (toy.prompt([()] * BATCH), row_keys, jnp.ones(BATCH, bool))
  capacity = capacity_for(MAX_LEN, toy.MAX_GAMMA)
  rules = toy.rules(1.0, BATCH, toy.RAGGED, toy.EOS)
  found = loop.run(*args, loop.start(*args, source, *rest, capacity, copies), rules, toy.exits())
  repeated = Source(jnp.repeat(source.ids, copies, 0), jnp.ones(BATCH, jnp.int32))
  expected = loop.run(*args, loop.start(*args, repeated, *rest, capacity), rules, toy.exits())
  toy.assert_same(found, expected)
  assert len(set(toy.sequences(found))) > 4, "copies of an input differ"


def test_adjusted_log_prob_is_that_of_what_was_sampled_from():
  """One token from each row: its log-probability under the adjusted distribution."""
  state = toy.decode(toy.SPECULATIVE, toy.PAIR, settings=toy.MIXED, max_len=1, eos=())
  columns = zip(toy.KINDS, *(np.asarray(x) for x in (
      toy.MIXED.temperature, toy.MIXED.top_k, toy.MIXED.top_p)), toy.sequences(state))
  expected = [np.log(oracle.distribution(markov.table(toy.TARGET, kind)[0, 0], *settings)[token])
              for kind, *settings, (token,) in columns]
  np.testing.assert_allclose(state.adjusted_log_prob, expected, rtol=1e-4, atol=1e-6)
  assert (np.asarray(state.adjusted_log_prob) >= np.asarray(state.log_prob) - 1e-5).any()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_trace_tells_what_happened(temperature):
  state = toy.decode(TRACED, toy.PAIR, settings=temperature, max_len=toy.RAGGED, eos=toy.EOS,
                     prompts=PROMPTS)
  usual = toy.decode(toy.SPECULATIVE, toy.PAIR, settings=temperature, max_len=toy.RAGGED,
                     eos=toy.EOS, prompts=PROMPTS)
  toy.assert_same(state.replace(trace=None), usual)
  trace = jax.tree.map(np.asarray, state.trace)
  refused = 0
  for row, sequence in enumerate(toy.sequences(state)):
    calls = int(state.stats.target_calls[row])
    said = list(PROMPTS[row])
    for i in range(calls):
      accepted, committed = trace.num_accepted[row, i], trace.num_committed[row, i]
      assert committed - accepted in (0, 1)
      drafted = trace.drafted[row, i][:trace.num_drafted[row, i]]
      said += drafted[:accepted].tolist()
      p, q = trace.target_probs[row, i], trace.draft_probs[row, i]
      assert (p[:accepted] > 0).all() and (q[:len(drafted)] > 0).all()
      if accepted < len(drafted) and committed > accepted:
        # Refused: p was below q, and at temperature 0 it was nothing.
        refused += 1
        assert p[accepted] < q[accepted] and (temperature > 0 or p[accepted] == 0)
      if committed > accepted:
        said.append(sequence[len(said)])
    assert tuple(said) == sequence
    assert trace.num_accepted[row].sum() == state.stats.accepted[row]
    assert trace.num_drafted[row].sum() == state.stats.drafted[row]
    assert not trace.num_committed[row, calls:].any()
  assert refused > 3
