"""Prompts, controls, hooks, samples and traces as users ask for them."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specdec
from specdec.core import loop
from specdec.testing import tiny

TEXTS = ["A boat.", "The cat sleeps on the wall.", "hens", "Die Katze"]


@pytest.fixture(scope="module")
def pair():
  return tiny.pair()


def _both(pair, texts=TEXTS, **options) -> specdec.Result:
  """Greedy, speculatively and plainly: the same."""
  result = specdec.generate(pair, texts, task="", **options)
  plain = specdec.generate(pair, texts, task="", mode="plain", **options)
  assert result.ids == plain.ids and result.statuses == plain.statuses
  return result


def test_an_output_begins_with_its_prompt(pair):
  prompts = ["Ein Hund", "", "Zwei", "Die"]
  result = _both(pair, prompt=prompts)
  for record, prompt in zip(result.records, prompts):
    ids = pair.vocabulary.encode(prompt)[:-1] if prompt else []
    assert record.prompt_tokens == len(ids) and record.output_ids[:len(ids)] == ids
    assert record.output.startswith(prompt)
    assert record.num_generated > 0
  assert result.tokens == sum(len(r.output_ids) - r.prompt_tokens for r in result.records)
  assert _both(pair, prompt="Die").texts[3] == result.texts[3]
  ids = pair.vocabulary.encode("Die")[:-1]
  assert _both(pair, prompt=ids).ids == _both(pair, prompt=[ids] * 4).ids
  padded = np.array([[*p, 0, 0] for p in ([5, 6], [7, 8], [9, 9], [5, 5])])
  for given in (padded, jnp.asarray(padded)):
    assert _both(pair, prompt=given).ids == _both(pair, prompt=padded[:, :2].tolist()).ids
  assert _both(pair, prompt=[None] * 4).ids == _both(pair, prompt=[]).ids == _both(pair).ids
  by_ids = specdec.generate_ids(pair, [pair.vocabulary.encode(t) for t in TEXTS], prompt=prompts)
  assert by_ids.ids == result.ids


def test_a_prompt_can_fill_all_but_one_token(pair):
  ids = [5] * 11
  result = _both(pair, ["A boat."], prompt=[ids], max_decode_len=12)
  assert len(result.ids[0]) == 12 and result.records[0].num_generated == 1


@pytest.mark.parametrize("prompt, told", [
    (["a", "b"], "prompt has 2 entries for 4 inputs"), (3, "prompt is int"),
    (b"ab", "prompt is bytes"), ({"a": 1}, "prompt is dict"),
    ([[5], [5], [5], [5, 1]], "input 3 has the EOS id 1 in its prompt"),
    ([[5], [9999], [5], [5]], "input 1 has 9999 in its prompt"),
    ([[5], [5], [-1], [5]], "input 2 has -1 in its prompt"),
    ([[5], [[5], [5, 6]], [5], [5]], "input 1 has the prompt"),
    ([[5], {5}, [5], [5]], "input 1 has the prompt .5.;"),
    ([[5], [5] * 12, [5], [5]], "input 1 has a prompt of 12 tokens, which leaves none of "
     "max_decode_len 12"),
])
def test_prompts_that_do_not_fit_are_refused(pair, prompt, told):
  with pytest.raises(specdec.SpecdecError, match=told):
    specdec.generate(pair, TEXTS, prompt=prompt)


def test_controls_do_what_they_say(pair):
  free = _both(pair)
  result = _both(pair, min_decode_len=[0, 12, 5, 9])
  assert [len(i) >= n for i, n in zip(result.ids, [0, 12, 5, 9])] == [True] * 4
  used = sorted({i for ids in free.ids for i in ids} - {1})
  result = _both(pair, forbidden_ids=[*used[:3], (used[3], 0, 2)], min_decode_len=6)
  for ids in result.ids:
    assert not set(ids) & set(used[:3]) and used[3] not in ids[:2]
  result = _both(pair, no_repeat_ngram_size=[1, 2, 1, 2], min_decode_len=12)
  for ids, n in zip(result.ids, [1, 2, 1, 2]):
    grams = [tuple(ids[i:i + n]) for i in range(len(ids) - n + 1)]
    assert len(set(grams)) == len(grams)
  assert _both(pair, repetition_penalty=20.0, min_decode_len=12).ids != _both(
      pair, min_decode_len=12).ids
  # EOS ids of one's own, and none.
  ended = _both(pair, eos_ids=[free.ids[0][0], 1])
  assert ended.ids[0] == free.ids[0][:1] and ended.texts[0] == "" and ended.statuses[0] == "eos"
  assert set(_both(pair, eos_ids=()).statuses) == {"length"}


class Mutable:
  """A hook that could change behind a compiled program."""

  def __call__(self, logits, ids, lengths):
    return logits


def test_mistakes_of_a_hook_are_told_by_the_call_itself(pair):
  for call in (specdec.stream, specdec.iterate):
    with pytest.raises(specdec.SpecdecError, match="returned NoneType"):
      call(pair, TEXTS, logits_fn=lambda x, ids, lengths: None)


def test_results_without_anything_have_their_shapes(pair):
  assert specdec.generate(pair, [], num_decodes=2).decodes.shape == (0, 2, 0)
  assert specdec.generate(pair, []).decode_scores.shape == (0, 1)
  width = pair.target.scorer.vocab_size
  nothing = specdec.generate(pair, TEXTS, task="", forbidden_ids=list(range(width)))
  assert nothing.decodes.shape == (4, 1, 0) and set(nothing.statuses) == {"forbidden"}


def test_contradictory_controls_are_refused_or_told(pair):
  for options, told in (
      ({"min_decode_len": 13}, "min_decode_len is 13; expected an integer from 0 to max"),
      ({"min_decode_len": [0, 1, 2, 99]}, "min_decode_len is 99"),
      ({"min_decode_len": [1, 2]}, "min_decode_len has 2 values for 4 inputs"),
      ({"repetition_penalty": 0}, "repetition_penalty is 0"), ({"top_p": 1e-40}, "top_p is 1e-40"),
      ({"eos_ids": np.array(5)}, "eos_ids is"),
      ({"forbidden_ids": np.array(5)}, "forbidden_ids is"),
      ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1"),
      ({"no_repeat_ngram_size": 1.5}, "no_repeat_ngram_size is 1.5"),
      ({"forbidden_ids": 3}, "forbidden_ids is 3"), ({"forbidden_ids": ["a"]}, "id of forbidden"),
      ({"forbidden_ids": [(3, 4)]}, "an id of forbidden_ids is \\(3, 4\\)"),
      ({"forbidden_ids": [(3, 4, 4)]}, "no range of positions"),
      ({"forbidden_ids": [9999]}, "forbidden_ids holds 9999; expected ids below"),
      ({"eos_ids": [9999]}, "eos_ids holds 9999"), ({"num_decodes": 0}, "num_decodes is 0"),
      ({"rescale_log_probs": 1}, "rescale_log_probs is 1; expected True or False"),
      ({"logits_fn": 3}, "logits_fn is int; expected a callable"),
      ({"logits_fn": lambda x, ids, lengths: x[:, 1:]}, "logits_fn <lambda> returned float32 of"),
      ({"logits_fn": lambda x, ids, lengths: x + pair.max_decode_len}, "<lambda> is neither a"),
      ({"logits_fn": Mutable()}, "Mutable is neither a function"),
      ({"logits_fn": FavourOne}, "FavourOne is neither a function"),
      ({"logits_fn": jax.tree_util.Partial(max, "x")}, "logits_fn Partial holds str"),
  ):
    with pytest.raises(specdec.SpecdecError, match=told):
      specdec.generate(pair, TEXTS, **options)
  width = pair.target.scorer.vocab_size
  result = _both(pair, forbidden_ids=[(i, 2, 99) for i in range(width)], min_decode_len=4)
  assert set(result.statuses) == {"forbidden"} and {len(i) for i in result.ids} == {2}


class Favour(flax.struct.PyTreeNode):
  """A hook with an array."""

  bonus: jax.Array

  def __call__(self, logits, ids, lengths):
    return logits + self.bonus


@dataclasses.dataclass(frozen=True)
class FavourOne:
  """A hook without arrays: a static argument."""

  token: int

  def __call__(self, logits, ids, lengths):
    return jnp.where(jnp.arange(logits.shape[-1]) == self.token, logits + 50, logits)


def test_hooks_with_and_without_arrays(pair):
  bonus = np.zeros(pair.target.scorer.vocab_size, np.float32)
  bonus[7] = 50
  result = _both(pair, logits_fn=Favour(bonus))
  assert set(map(tuple, result.ids)) == {(7,) * 12}
  assert _both(pair, logits_fn=FavourOne(7)).ids == result.ids
  compiled = loop.run._cache_size()
  assert _both(pair, logits_fn=Favour(bonus[::-1].copy())).ids != result.ids
  _both(pair, logits_fn=FavourOne(7))
  assert loop.run._cache_size() == compiled


def test_samples_come_in_the_shape_and_order_of_t5x(pair):
  options = dict(task="", temperature=1.0, num_decodes=3, seed=2)
  result = specdec.generate(pair, TEXTS, **options)
  assert len(result.records) == 12 and len(result.texts) == 4
  assert [r.index for r in result.records] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
  assert {r.sample for r in result.records[:3]} == {0, 1, 2}
  assert result.decodes.shape[:2] == (4, 3) and result.decodes.dtype == np.int32
  for i, record in enumerate(result.records):
    row = result.decodes[i // 3, i % 3]
    assert row[:len(record.output_ids)].tolist() == record.output_ids
    assert not row[len(record.output_ids):].any()
    assert result.decode_scores[i // 3, i % 3] == np.float32(record.score)
  assert (np.diff(result.decode_scores) >= 0).all()
  assert result.ids == [r.output_ids for r in result.records[2::3]]
  # Sample 0 is what one sample alone would be.
  alone = specdec.generate(pair, TEXTS, **{**options, "num_decodes": 1})
  first = [r for r in result.records if r.sample == 0]
  assert [r.output_ids for r in first] == alone.ids
  # In other batches, too.
  again = specdec.generate(pair, TEXTS, batch_size=1, **options)
  assert [r.output_ids for r in again.records] == [r.output_ids for r in result.records]


def test_samples_can_be_ordered_by_adjusted_scores(pair):
  options = dict(task="", temperature=0.5, top_k=3, num_decodes=4, seed=2)
  result = specdec.generate(pair, TEXTS, rescale_log_probs=True, **options)
  assert (np.diff(result.decode_scores) >= 0).all()
  assert [s for row in result.decode_scores for s in row] == pytest.approx(
      [r.adjusted_score for r in result.records])
  raw = specdec.generate(pair, TEXTS, **options)
  key = lambda r: (r.index, r.sample)
  assert sorted(map(key, raw.records)) == sorted(map(key, result.records))
  assert all(r.adjusted_score > r.score for r in result.records)
  greedy = specdec.generate(pair, TEXTS, task="", num_decodes=2)
  assert {r.adjusted_score for r in greedy.records} == {0.0}


def test_a_trace_is_the_output_iteration_by_iteration(pair):
  result = specdec.generate(pair, TEXTS, task="", trace=True, temperature=1.0, prompt="Die")
  usual = specdec.generate(pair, TEXTS, task="", temperature=1.0, prompt="Die")
  assert result.ids == usual.ids and usual.records[0].trace is None
  assert "trace" not in usual.records[0].to_dict()
  rejected = 0
  for record in result.records:
    said = record.output_ids[:record.prompt_tokens]
    assert len(record.trace) == record.target_calls
    for iteration in record.trace:
      said = [*said, *iteration.committed]
      drafted = iteration.drafted
      assert len(iteration.target_probs) == len(iteration.draft_probs) == len(drafted)
      if iteration.rejected is not None:
        rejected += 1
        assert (*iteration.accepted, iteration.rejected, *iteration.untested) == drafted
    assert said == record.output_ids
    assert sum(i.num_accepted for i in record.trace) == record.accepted
    assert sum(len(i.drafted) for i in record.trace) == record.drafted
    assert record.to_dict()["trace"][0]["drafted"] == record.trace[0].drafted
  assert rejected
  plain = specdec.generate(pair, TEXTS, task="", trace=True, mode="plain").records[0]
  assert [i.committed for i in plain.trace] == [(i,) for i in plain.output_ids]
