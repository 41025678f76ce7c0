"""The compiled loop is read: nothing large is copied, transposed or cast in an iteration."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from specdec.bench import hlo
from specdec.bench import runs
from specdec.models.t5 import cache as cache_lib
from specdec.models.t5.scorer import T5Scorer
from tests.bench import models


def moved(workload, gamma):
  """What the loop moves of the caches and weights that it reads."""
  decode = runs.Decode(workload, gamma)
  state, weights = decode.start(), workload.weights(gamma)
  arrays = [weights.target["decoder"], state.target_cache]
  if gamma:
    arrays += [weights.drafter["decoder"], state.draft_state]
  sizes = {x.size for x in jax.tree.leaves(arrays)
           if x.ndim >= 2 and jnp.issubdtype(x.dtype, jnp.floating)}
  module = hlo.Module(decode.program.as_text())
  assert module.loop_bodies() and len(sizes) > 6
  return module.moved(sizes)


@pytest.mark.parametrize("batch, gamma", [(1, 0), (1, models.GAMMA), (3, models.GAMMA)])
def test_no_cache_or_weight_is_moved(batch, gamma):
  assert moved(models.workload(batch), gamma) == []


def test_a_cache_that_is_copied_is_seen(monkeypatch):
  # The obvious way to write a single row: the compiler makes copies of it.
  monkeypatch.setattr(cache_lib, "_scatter", cache_lib._update_slice)
  jax.clear_caches()
  lines = moved(models.workload(), 0)
  jax.clear_caches()
  assert any(" copy(" in line for line in lines), lines


def held(weights, tokens):
  """Weights that depend on the tokens, or the compiler would cast them before the loop."""
  return jax.lax.optimization_barrier((weights, tokens))[0]


@dataclasses.dataclass(frozen=True)
class Casting(T5Scorer):
  """Keeps bfloat16 weights and computes in float32: casts them in every call."""

  def score(self, weights, tokens, cache):
    cast = lambda x: x.astype(jnp.float32)
    return super().score(jax.tree.map(cast, held(weights, tokens)), tokens, cache)


@dataclasses.dataclass(frozen=True)
class Turning(T5Scorer):
  """Turns its kernels around in every call, and back."""

  def score(self, weights, tokens, cache):
    turned = jax.tree.map(lambda x: x.T, held(weights, tokens))
    back = jax.tree.map(lambda x: x.T, held(turned, tokens))
    return super().score(back, tokens, cache)


@pytest.mark.parametrize("kind, opcode", [(Casting, "convert"), (Turning, "transpose")])
def test_a_weight_that_is_moved_is_seen(kind, opcode):
  scorer = kind(models.TARGET)
  part = models.part(models.TARGET)
  target = dataclasses.replace(part, scorer=scorer, weights=jax.tree.map(
      lambda x: x.astype(jnp.bfloat16) if kind is Casting else x, part.weights))
  lines = moved(models.workload(target=target), 0)
  assert any(f" {opcode}(" in line for line in lines), lines


def test_the_reader_follows_calls():
  text = """HloModule m

%inner (p: f32[3,5]) -> f32[5,3] {
  %p = f32[3,5]{1,0} parameter(0)
  ROOT %t = f32[5,3]{1,0} transpose(%p), dimensions={1,0}
}

%body (s: (s32[], f32[3,5])) -> (s32[], f32[3,5]) {
  %s = (s32[], /*index=1*/f32[3,5]{1,0}) parameter(0)
  %x = f32[3,5]{1,0} get-tuple-element(%s), index=1
  %f = f32[5,3]{1,0} fusion(%x), kind=kLoop, calls=%inner
  ROOT %r = (s32[], f32[3,5]{1,0}) tuple(%x, %x)
}

%cond (s: (s32[], f32[3,5])) -> pred[] {
  ROOT %c = pred[] constant(false)
}

ENTRY %main (a: (s32[], f32[3,5])) -> (s32[], f32[3,5]) {
  %a = (s32[], f32[3,5]{1,0}) parameter(0)
  %once = f32[3,5]{0,1} copy(%a)
  ROOT %w = (s32[], f32[3,5]{1,0}) while(%a), condition=%cond, body=%body
}
"""
  module = hlo.Module(text)
  assert module.entry == "main"
  assert sorted(module.loop_bodies()) == ["body", "cond"]
  assert [line.split()[1] for line in module.moved({15})] == ["%t"]
  assert module.moved({14}) == []
