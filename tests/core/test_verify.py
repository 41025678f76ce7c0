"""The verifier against Algorithm 1 in NumPy, and against the theorem it implements."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec.core import keys
from specdec.core import probs
from specdec.core import verify
from specdec.core.contracts import Proposal
from specdec.testing import goodness
from specdec.testing import markov
from specdec.testing import oracle
from tests.core import broken
from tests.core import toy

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


def _first_token_law(verifier, p, q, lenience, points=1 << 16):
  """Exact law of the first token after a draft of one, noise integrated out on a grid."""
  size = len(p)
  grid = jnp.asarray((np.arange(points) + 0.5) / points, jnp.float32)
  pair = jnp.stack([jnp.full(points, 0.5), grid], -1)
  spread = lambda x: jnp.broadcast_to(jnp.asarray(x, jnp.float32), (points, *np.shape(x)))
  law = np.zeros(size)
  for token in np.flatnonzero(q):
    ask = lambda accept: judge(
        verifier, verify.Noise(accept[:, None], pair, pair),
        jnp.full((points, 1), token, jnp.int32), spread(q)[:, None],  # noqa: B023
        spread(np.stack([p, p])), np.ones(points, np.int32), lenience)
    stands = np.asarray(ask(grid).num_accepted).mean()
    law[token] += q[token] * stands
    if stands < 1:
      corrected = np.asarray(ask(jnp.full(points, 1 - STEP, jnp.float32)).next_token)
      law += q[token] * (1 - stands) * np.bincount(corrected, minlength=size) / points
  return law


def _toy_distributions(count):
  """p and q after histories of the Markov toy and of a drafter that is near it."""
  target = markov.random_weights(0, 5, kinds=1)
  drafter = toy.disturbed(target, 1)
  for a, b in itertools.islice(itertools.product(range(5), repeat=2), count):
    yield tuple(np.float32(oracle.distribution(markov.table(w, 0)[a, b], 1.0))
                for w in (target, drafter))


@pytest.mark.parametrize("lenience", [1.0, 0.5, 0.3, 0.1])
def test_no_token_is_more_than_1_over_l_times_as_likely(lenience):
  """And what is accepted is sum min(q, p / l), as in section A.5 of the paper."""
  alphas = []
  for p, q in _toy_distributions(12):
    law = _first_token_law(verify.LenientVerifier(), p, q, lenience)
    np.testing.assert_allclose(law.sum(), 1, atol=1e-5)
    assert (law <= p / lenience + 1e-4).all()
    stands = np.minimum(q, p / lenience)
    # The exact law: what was accepted, and the usual residual for the rest.
    residual = np.maximum(p - q, 0) / np.maximum(p - q, 0).sum()
    np.testing.assert_allclose(law, stands + (1 - stands.sum()) * residual, atol=1e-4)
    alphas.append(stands.sum())
  assert np.mean(alphas) > oracle.acceptance(p, q) or lenience == 1.0


def test_p_after_a_lenient_rejection_breaks_that_bound():
  excess = [(_first_token_law(broken.LenientNoResidual(), p, q, 0.5) - p / 0.5).max()
            for p, q in _toy_distributions(12)]
  assert max(excess) > 0.01


def test_a_greedy_row_accepts_what_is_nearly_as_likely_as_the_favourite():
  logits = jnp.log(np.float32([[0.5, 0.3, 0.15, 0.05]] * 4))[:, None].repeat(2, 1)
  one_hot = jnp.asarray(np.eye(4, dtype=np.float32)[:1])[None].repeat(4, 0).repeat(2, 1)
  noise = verify.Noise(jnp.full((4, 1), 0.99), jnp.zeros((4, 2)), jnp.zeros((4, 2)))
  drafts = jnp.arange(4, dtype=jnp.int32)[:, None]
  q = jax.nn.one_hot(drafts, 4)
  for lenience, accepted in ((1.0, [1, 0, 0, 0]), (0.55, [1, 1, 0, 0]), (0.25, [1, 1, 1, 0]),
                             (0.05, [1, 1, 1, 1])):
    target = verify.Target(one_hot, logits, jnp.ones(4, bool), jnp.full(4, lenience))
    verdict = _verify(verify.LenientVerifier(), noise,
                      Proposal(drafts, q, jnp.ones(4, jnp.int32)), target)
    assert verdict.num_accepted.tolist() == accepted
    # The token after it is the target's own favourite.
    assert verdict.next_token.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("gamma, size", [(1, 7), (3, 7), (3, 200)])
def test_blocks_equal_the_oracle(gamma, size, deterministic):
  batch = 400
  noise, draft, q, p, num_drafted = _instances(np.random.default_rng(gamma), batch, gamma, size)
  noise.accept[:20] = 0.0
  q = None if deterministic else q
  verdict = judge(verify.BlockVerifier(), noise, draft, q, p, num_drafted)
  different = 0
  for row in range(batch):
    expected = oracle.verify_block(noise.accept[row], noise.residual[row], noise.bonus[row],
                                   draft[row], None if deterministic else q[row], p[row],
                                   num_drafted[row])
    different += (int(verdict.num_accepted[row]), int(verdict.next_token[row])) != expected
  # The chance to stand is a quotient of sums: its float32 rounding decides once in a while.
  assert different <= 1


def test_a_block_of_one_is_a_token():
  noise, draft, q, p, num_drafted = _instances(np.random.default_rng(3), 300, 1, 9)
  block, token = (judge(v, noise, draft, q, p, num_drafted)
                  for v in (verify.BlockVerifier(), verify.TokenVerifier()))
  np.testing.assert_array_equal(block.num_accepted, token.num_accepted)
  np.testing.assert_array_equal(block.next_token, token.next_token)


def test_coupled_tokens_are_the_targets_own_draws():
  rng = np.random.default_rng(5)
  _, draft, q, p, num_drafted = _instances(rng, 300, 3, 9)
  race = rng.random((300, 4, 9)).astype(np.float32).clip(1e-6, 1 - 1e-6)
  own = np.argmax(p / -np.log(race), -1)
  draft[:150] = own[:150, :3]
  empty = jnp.zeros((300, 2))
  verdict = judge(verify.CoupledVerifier(), verify.Noise(jnp.zeros((300, 3)), empty, empty, race),
                  draft, q, p, num_drafted)
  n = np.asarray(verdict.num_accepted)
  np.testing.assert_array_equal(n[:150], num_drafted[:150])
  np.testing.assert_array_equal(verdict.next_token, own[np.arange(300), n])
  for row in range(150, 300):
    same = np.cumprod(draft[row, :num_drafted[row]] == own[row, :num_drafted[row]])
    assert n[row] == same.sum()


def test_clocks_draw_in_proportion_and_never_the_impossible():
  weights = np.float32([0.1, 0.0, 0.6, 0.3])
  noise = keys.by_position(keys.row_keys(1, jnp.arange(20000)), jnp.ones((20000, 1)),
                           jnp.arange(4))[:, 0]
  drawn = np.asarray(probs.race(noise, jnp.asarray(weights)))
  counts = np.bincount(drawn, minlength=4)
  fit = goodness.chi_square(dict(enumerate(counts.tolist())), dict(enumerate(weights.tolist())))
  assert not counts[1] and goodness.p_value(fit) > 1e-4
