"""The floor of drafters: exact, and with the acceptance that the paper gives it."""

import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core.rules import sampling
from specdec.core.state import Method
from specdec.core.verify import CoupledVerifier
from specdec.drafters.uniform import UniformDrafter
from specdec.testing import contract
from specdec.testing import markov
from specdec.testing import oracle
from specdec.types import Source
from tests.core import toy
from tests.drafters import law

DRAFTER = UniformDrafter(law.V)


def test_battery():
  contract.check_all(contract.Subject(
      UniformDrafter(8), None, 8,
      lambda batch: Source(jnp.ones((batch, 1), jnp.int32), jnp.ones(batch, jnp.int32)),
      ties=True))


@pytest.mark.parametrize("verifier", law.VERIFIERS)
def test_joint_law(verifier):
  found, state = law.measure(Method(law.SCORER, DRAFTER, 3, verifier), None)
  assert found > law.RIGHT
  assert np.asarray(state.stats.accepted).sum() > law.BATCH / 4


def test_acceptance_is_that_of_the_paper():
  """beta = sum min(p, 1 / V), at the first position, exactly."""
  _, state = law.measure(Method(law.SCORER, DRAFTER, 1), None,
                         settings=sampling(law.BATCH, 1.0))
  first = np.asarray(state.ids)[:, 1]
  assert set(np.unique(first)) == set(range(law.V))
  # The toy's law differs from place to place; over all of them alpha lies between the
  # betas of its contexts.
  betas = [oracle.acceptance(oracle.distribution(logits, 1.0), np.full(law.V, 1 / law.V))
           for kind in (0, 1) for logits in markov.table(law.TARGET, kind).reshape(-1, law.V)]
  alpha = np.asarray(state.stats.accepted).sum() / np.asarray(state.stats.tested).sum()
  assert min(betas) < alpha < max(betas)


def test_what_is_forbidden_is_not_drafted_and_a_repetition_is_unlikely():
  """The controls apply to q as to p: position by position, by what is drafted before."""
  subject = contract.Subject(
      UniformDrafter(8), None, 8,
      lambda batch: Source(jnp.ones((batch, 1), jnp.int32), jnp.ones(batch, jnp.int32)))
  rows = 512
  at = contract.context(subject, [[0, 2, 3]] * rows, sampling(rows, 1.0))
  controls = toy.rules(1.0, rows, 20, controls=None).controls
  controls = controls.replace(no_repeat_ngram=jnp.ones(rows, jnp.int32))
  at = at.replace(rules=at.rules.replace(controls=controls))
  proposal, _ = subject.drafter.propose(None, (), at, 4)
  tokens, q = np.asarray(proposal.tokens), np.asarray(proposal.probs)
  for row in range(rows):
    for i in range(4):
      before = {2, 3, *tokens[row, :i].tolist()}
      expected = np.array([0.0 if token in before else 1 / (8 - len(before))
                           for token in range(8)])
      np.testing.assert_allclose(q[row, i], expected, atol=1e-6)
      assert tokens[row, i] not in before


@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_coupled_ids_are_those_of_plain_decoding(gamma):
  plain = toy.decode(Method(toy.SCORER, verifier=CoupledVerifier()), toy.PAIR,
                     settings=toy.MIXED, max_len=toy.RAGGED, eos=toy.EOS, capacity_len=32)
  method = Method(toy.SCORER, UniformDrafter(toy.V), gamma, CoupledVerifier())
  found = toy.decode(method, toy.PAIR, settings=toy.MIXED, max_len=toy.RAGGED, eos=toy.EOS,
                     capacity_len=32)
  np.testing.assert_array_equal(found.ids, plain.ids)


def test_greedy_equals_plain_greedy():
  plain = toy.decode(toy.PLAIN, toy.PAIR, max_len=toy.RAGGED, eos=toy.EOS)
  found = toy.decode(Method(toy.SCORER, UniformDrafter(toy.V), 3), toy.PAIR,
                     max_len=toy.RAGGED, eos=toy.EOS)
  np.testing.assert_array_equal(found.ids, plain.ids)
  np.testing.assert_array_equal(found.status, plain.status)
