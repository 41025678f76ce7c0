"""The verifier against Algorithm 1 in NumPy, and against the theorem it implements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import keys
from specdec.core import verify
from specdec.core.contracts import Proposal
from specdec.testing import oracle

# Plain names would hide that every comparison runs the compiled verifier.
_verify = jax.jit(lambda verifier, *args: verifier(*args), static_argnums=0)
STEP = 2.0**-23


def judge(verifier, noise, draft, q, p, num_drafted, lenience=1.0):
  """Verdict on drafts [B, G] with distributions q [B, G, V] (or None) and p [B, G + 1, V]."""
  p = jnp.asarray(p)
  batch = p.shape[0]
  target = verify.Target(p, jnp.log(p), (p == 1).any(-1).all(-1),
                         jnp.full((batch,), lenience, jnp.float32))
  return _verify(verifier, noise, Proposal(jnp.asarray(draft), q, jnp.asarray(num_drafted)), target)


def token_verifier(*args):
  return judge(verify.TokenVerifier(), *args)



def _distributions(rng, *shape):
  """Random rows [..., V] with zeros among them."""
  weights = rng.exponential(1, shape) ** 2 * (rng.random(shape) < 0.7)
  weights[..., 0] += 1e-3
  return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def _instances(rng, batch, gamma, size):
  p = _distributions(rng, batch, gamma + 1, size)
  q = _distributions(rng, batch, gamma, size)
  # Some positions where p and q are one array, and some where they are far apart.
  same = rng.random((batch, gamma)) < 0.3
  q = np.where(same[..., None], p[:, :gamma], q)
  draft = np.array([[rng.choice(size, p=np.float64(x) / np.float64(x).sum()) for x in row]
                    for row in q], np.int32).reshape(batch, gamma)
  grid = lambda *shape: rng.integers(0, 1 << 23, shape).astype(np.float32) * np.float32(STEP)
  noise = verify.Noise(grid(batch, gamma), grid(batch, 2), grid(batch, 2))
  num_drafted = rng.integers(0, gamma + 1, batch).astype(np.int32)
  return noise, draft, q, p, num_drafted


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("gamma, size", [(0, 7), (1, 7), (3, 7), (3, 200)])
def test_equals_the_oracle(gamma, size, deterministic):
  batch = 400
  noise, draft, q, p, num_drafted = _instances(np.random.default_rng(gamma), batch, gamma, size)
  noise.accept[:20] = 0.0
  verdict = token_verifier(noise, draft, None if deterministic else q, p, num_drafted)
  for row in range(batch):
    expected = oracle.verify(noise.accept[row], noise.residual[row], noise.bonus[row], draft[row],
                             None if deterministic else q[row], p[row], num_drafted[row])
    assert (int(verdict.num_accepted[row]), int(verdict.next_token[row])) == expected
  if (gamma, size) == (3, 7):  # The instances reach every outcome.
    outcomes = set(zip(np.asarray(verdict.num_accepted).tolist(), num_drafted.tolist()))
    assert outcomes == {(n, drafted) for drafted in range(4) for n in range(drafted + 1)}


def _rows(accept, residual, draft, q, p, batch):
  """A batch of single-token drafts that differ in noise alone."""
  spread = lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.float32), (batch, *np.shape(x)))
  pair = lambda x: jnp.stack([spread(0.5), jnp.broadcast_to(x, (batch,))], -1)
  noise = verify.Noise(jnp.broadcast_to(accept, (batch,))[:, None], pair(residual), pair(0.5))
  return token_verifier(noise, jnp.full((batch, 1), draft, jnp.int32),
                        None if q is None else spread(q)[:, None],
                        spread(np.stack([p, p])), jnp.ones(batch, jnp.int32))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_next_token_has_the_targets_law(seed, deterministic):
  """Noise integrated out on a fine grid: P(first token = y) = p(y), to 1e-5."""
  size, points = 5, 1 << 17
  rng = np.random.default_rng(seed)
  p, q = _distributions(rng, 2, size)
  if deterministic:
    q = np.eye(size, dtype=np.float32)[int(np.argmax(q))]
  grid = jnp.asarray((np.arange(points) + 0.5) / points, jnp.float32)
  law, accepted = np.zeros(size), 0.0
  for token in np.flatnonzero(q):
    handed = None if deterministic else q
    tested = _rows(grid, 0.5, token, handed, p, points)
    stands = np.asarray(tested.num_accepted).mean()
    accepted += q[token] * stands
    law[token] += q[token] * stands
    if stands < 1:
      # The largest uniform rejects whatever can be rejected.
      corrected = _rows(1 - STEP, grid, token, handed, p, points)
      assert not np.asarray(corrected.num_accepted).any()
      counts = np.bincount(np.asarray(corrected.next_token), minlength=size)
      law += q[token] * (1 - stands) * counts / points
  np.testing.assert_allclose(law, p, atol=1e-5)
  np.testing.assert_allclose(accepted, oracle.acceptance(p, q), atol=1e-5)


def test_equal_distributions_always_accept():
  """p == q bit for bit, at the largest uniform there is."""
  rng = np.random.default_rng(0)
  for size in (3, 100):
    p = _distributions(rng, 300, size)
    draft = np.array([rng.choice(np.flatnonzero(row)) for row in p], np.int32)[:, None]
    noise = verify.Noise(jnp.full((300, 1), 1 - STEP), jnp.full((300, 2), 0.5),
                         jnp.full((300, 2), 0.5))
    verdict = token_verifier(noise, draft, p[:, None], np.stack([p, p], 1),
                             np.ones(300, np.int32))
    assert np.asarray(verdict.num_accepted).all()


def test_an_empty_residual_falls_back_to_p():
  """A token that q rules out was drafted all the same, and p equals q: draw from p, no NaN."""
  p = np.array([0.0, 0.0, 0.25, 0.75], np.float32)
  verdict = _rows(0.0, jnp.array([0.1, 0.3, 0.9]), 0, p, p, 3)
  assert verdict.num_accepted.tolist() == [0, 0, 0]
  assert verdict.next_token.tolist() == [2, 3, 3]


def test_a_certain_token_drafted_deterministically_always_stands():
  p = np.array([0.0, 1.0, 0.0], np.float32)
  assert _rows(1 - STEP, 0.5, 1, None, p, 1).num_accepted.tolist() == [1]
  rejected = _rows(0.0, 0.5, 2, None, p, 1)
  assert (rejected.num_accepted.tolist(), rejected.next_token.tolist()) == ([0], [1])


def test_the_impossible_is_rejected_even_at_zero_noise():
  """And the comparison that lets it through, u <= p / q, is the mistake this guards against."""
  p, q = np.float32([0.0, 1.0]), np.float32([0.5, 0.5])
  verdict = _rows(0.0, 0.5, 0, q, p, 1)
  assert (verdict.num_accepted.tolist(), verdict.next_token.tolist()) == ([0], [1])
  u = np.float32(0.0)
  assert u <= p[0] / q[0] and u * q[0] <= p[0]  # Either form would have accepted it.


def test_tokens_behind_the_draft_do_not_matter():
  noise, draft, q, p, num_drafted = _instances(np.random.default_rng(8), 100, 3, 9)
  verdict = token_verifier(noise, draft, q, p, num_drafted)
  beyond = np.arange(3) >= num_drafted[:, None]
  q = np.where(beyond[..., None], np.float32(np.nan), q)
  p = p.copy()
  p[:, 1:] = np.where(beyond[..., None], np.float32(0.5), p[:, 1:])
  again = token_verifier(noise, np.where(beyond, 0, draft), q, p, num_drafted)
  np.testing.assert_array_equal(verdict.num_accepted, again.num_accepted)
  np.testing.assert_array_equal(verdict.next_token, again.next_token)


def test_noise_comes_from_streams_of_their_own():
  row_keys = keys.row_keys(0, jnp.arange(64))
  levels = (row_keys, keys.descend(row_keys, jnp.full(64, 1)))
  drawn = [verify.noise(level, jnp.full(64, n), 3) for n in (1, 2) for level in levels]
  drafted = [keys.uniforms(level, jnp.full(64, n), keys.place(
      keys.Role.DRAFT, jnp.arange(3))) for n in (1, 2) for level in levels]
  values = np.concatenate([np.ravel(x) for x in jax.tree.leaves((drawn, drafted))])
  # 3328 draws on a grid of 2**23 meet 0.7 times by chance.
  assert len(np.unique(values)) > len(values) - 6


def test_a_draft_can_grow_without_changing_the_noise_before_it():
  row_keys, committed = keys.row_keys(1, jnp.arange(5)), jnp.arange(5)
  small, large = (verify.noise(row_keys, committed, gamma) for gamma in (2, 4))
  np.testing.assert_array_equal(small.accept, large.accept[:, :2])
  np.testing.assert_array_equal(small.residual, large.residual)
  np.testing.assert_array_equal(small.bonus, large.bonus)
