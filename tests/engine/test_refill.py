"""Rows that are given to new inputs as they end: the same results as in any other batch."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import specdec
from specdec.bench import hlo
from specdec.core import keys
from specdec.core import loop
from specdec.core.state import capacity_for
from specdec.data.lines import LineFile
from specdec.engine import job as job_lib
from specdec.engine import refill
from specdec.engine.infer import Inference
from specdec.engine.run_folder import RunFolder
from specdec.models.t5.cache import Cache
from specdec.testing import tiny
from specdec.types import Source

GAMMA = 3
# All of them in 16 columns; and some in 32, in no order of length. Several batches of 4.
SHORT = [s[:n] for s, n in zip(tiny.SENTENCES * 2, (6, 9, 3, 8, 9, 2, 7, 9, 5, 1, 4, 7, 9, 8, 4,
                                                    6))]
TEXTS = [s[:n] for s, n in zip(tiny.SENTENCES, (6, 38, 3, 38, 9, 2, 38, 9, 5, 1, 4, 38))]


@pytest.fixture(scope="module")
def pair():
  return tiny.pair()


def decode(pair, batching, texts=SHORT, **settings):
  return specdec.generate(pair, texts, batching=batching, **{
      "task": "", "gamma": GAMMA, "batch_size": 4, "seed": 3, **settings})


def assert_same(found, expected):
  """Equal records but for rounding of the scores, which varies with the batch's shape."""
  for name in ("score", "adjusted_score"):
    scores = [[getattr(r, name) for r in result.records] for result in (found, expected)]
    np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-4)
  bare = lambda result: [dataclasses.replace(r, score=0.0, adjusted_score=0.0, trace=None)
                         for r in result.records]
  assert bare(found) == bare(expected)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_results_are_those_of_the_other_ways(pair, temperature):
  expected = decode(pair, "sorted", TEXTS, temperature=temperature)
  assert not temperature or len({len(ids) for ids in expected.ids}) > 3, "they end at once"
  assert len({job_lib.power_of_two(len(pair.vocabulary.encode(t)), 16) for t in TEXTS}) == 2
  assert_same(decode(pair, "arrival", TEXTS, temperature=temperature), expected)
  assert_same(decode(pair, "refill", TEXTS, temperature=temperature), expected)


def test_plain_decoding_is_refilled_as_well(pair):
  assert_same(decode(pair, "refill", mode="plain"), decode(pair, "sorted", mode="plain"))


def test_settings_and_prompts_of_an_input_stay_with_it(pair):
  count = len(SHORT)
  options = {
      "temperature": [0.0, 1.0, 0.7, 1.0] * (count // 4), "top_k": [0, 5] * (count // 2),
      "min_decode_len": np.arange(count) % 10, "repetition_penalty": [1.0, 1.5] * (count // 2),
      "prompt": [[5], [], [7], []] * (count // 4)}
  found = decode(pair, "refill", **options)
  assert_same(found, decode(pair, "sorted", **options))
  for i, record in enumerate(found.records):
    assert record.output_ids[:record.prompt_tokens] == options["prompt"][i]
    assert len(record.output_ids) >= options["min_decode_len"][i]


def test_samples_of_an_input_stand_together_with_their_traces(pair):
  options = {"num_decodes": 2, "temperature": 1.0, "rescale_log_probs": True, "trace": True}
  found, expected = (decode(pair, way, SHORT[:10], **options) for way in ("refill", "sorted"))
  assert_same(found, expected)
  assert [r.index for r in found.records] == sorted(list(range(10)) * 2)
  for a, b in zip(found.records, expected.records, strict=True):
    assert len(a.trace) == a.target_calls > 0
    bare = lambda trace: [(i.drafted, i.num_accepted, i.next_id) for i in trace]
    assert bare(a.trace) == bare(b.trace)


def test_constraints_hold(pair):
  hook = specdec.AllowedSequences.from_texts(pair.vocabulary, ["A cat.", "A boat.", "The cat"])
  found = decode(pair, "refill", logits_fn=hook, temperature=1.0)
  assert set(found.texts) <= {"A cat.", "A boat.", "The cat"}
  assert_same(found, decode(pair, "sorted", logits_fn=hook, temperature=1.0))


def test_a_drafter_that_may_have_nothing_to_draft_is_refilled(pair):
  other = pair.with_drafter("copy")
  found = decode(other, "refill", temperature=0.3)
  assert found.drafted
  assert_same(found, decode(other, "sorted", temperature=0.3))


def test_few_inputs_and_none(pair):
  for texts in ([], SHORT[:3], SHORT[:5]):
    assert_same(decode(pair, "refill", texts), decode(pair, "sorted", texts))


def test_an_insert_compiles_nothing_new(pair):
  decode(pair, "refill", TEXTS)
  sizes = lambda: [program._cache_size() for program in (loop.start, loop.insert, loop.run)]
  before = sizes()
  order = np.random.default_rng(0).permutation(len(TEXTS))
  decode(pair, "refill", [TEXTS[i] for i in order] * 2, temperature=0.9, seed=1)
  # A prefill and an insert for each of two widths of source, and one loop, were there.
  assert sizes() == before


def test_no_more_rows_are_idle_than_a_prefill_has(pair, monkeypatch):
  idle, real = [], loop.run

  def run(method, weights, state, rules, exits):
    running = int(np.asarray(state.running).sum())
    state = real(method, weights, state, rules, exits)
    idle.append((running, int(exits.min_ended), int(np.asarray(state.running).sum())))
    return state

  monkeypatch.setattr(loop, "run", run)
  decode(pair, "refill", SHORT * 2, batch_size=8)
  queued = [entry for entry in idle if entry[1] < 8]
  assert len(queued) > 8
  for begun, wanted, _ in queued:
    # It begins with fewer empty rows than a prefill of 2 fills, and comes back for those.
    assert begun >= 7 and wanted == 2 - (8 - begun)
  assert idle[-1][2] == 0


def test_records_come_as_soon_as_they_and_those_before_have_ended(pair, monkeypatch):
  calls, real = [], refill.Refill._go
  monkeypatch.setattr(refill.Refill, "_go", lambda self: calls.append(1) or real(self))
  records = specdec.iterate(pair, SHORT * 4, task="", gamma=GAMMA, batch_size=4,
                            batching="refill")
  next(records)
  first = len(calls)
  assert [r.index for r in records] == list(range(1, 4 * len(SHORT)))
  assert first < len(calls) / 4


def test_inputs_beyond_a_queue_begin_another(pair, monkeypatch):
  monkeypatch.setattr(job_lib, "_QUEUED_BATCHES", 2)
  made = job_lib.from_texts(pair, SHORT[:14], "", {"batch_size": 4, "batching": "refill"})
  assert [len(b.example_ids) for window in job_lib.plan(made) for b in window] == [8, 6]
  assert_same(decode(pair, "refill"), decode(pair, "sorted"))


def test_a_sample_needs_every_program(pair):
  made = job_lib.from_texts(pair, TEXTS, "", {"batch_size": 8, "batching": "refill"})
  (batch,), = job_lib.plan(made)
  few = refill.sample(made, batch)
  widths = lambda b: {job_lib.source_width([made.encoded[i] for i in group])
                      for group in refill.groups(b)}
  assert widths(few) == widths(batch) and len(few.example_ids) < len(batch.example_ids)


def test_what_does_not_go_with_it_is_refused(pair):
  with pytest.raises(specdec.SpecdecError, match=r"'refill' and gamma is 'auto'.*number for gamma"):
    decode(pair, "refill", gamma="auto")
  assert decode(pair, "refill", gamma="auto", mode="plain").records
  with pytest.raises(specdec.SpecdecError, match=r"'refill'.*streaming"):
    specdec.stream(pair, TEXTS, batching="refill")
  with pytest.raises(specdec.SpecdecError, match="batching is 'both'; expected one of sorted"):
    decode(pair, "both")


def test_a_shard_that_was_killed_comes_out_the_same(pair, tmp_path):
  path = tmp_path / "in.txt"
  path.write_text("\n".join(SHORT) + "\n")

  class Killed(BaseException):
    """Nobody catches it."""

  def run(name, progress=lambda record: None):
    made = Inference(pair, LineFile(path), 7, {
        "batch_size": 4, "gamma": GAMMA, "temperature": 1.0, "batching": "refill"}, task="")
    with RunFolder(tmp_path / name, {}, made.shards) as opened:
      made.run(opened, json.dumps, progress)
    return {p.name: p.read_bytes() for p in sorted((tmp_path / name).glob("outputs-*"))}

  def kill(record):
    if record["index"] == 9:
      raise Killed

  whole = run("whole")
  with pytest.raises(Killed):
    run("killed", kill)
  assert len(list((tmp_path / "killed").glob("outputs-*"))) == 1
  assert run("killed") == whole and len(whole) == 3


@pytest.fixture(scope="module")
def inserted(pair):
  """The compiled insert of a wide batch, and what it was compiled for."""
  method, weights = pair.method(GAMMA), pair.weights()
  capacity = capacity_for(40, GAMMA)
  state = jax.eval_shape(lambda w: loop.empty(method, w, 8, 48, capacity), weights)
  def start(weights):
    source = Source(np.ones((2, 16), np.int32), np.ones(2, np.int32), np.zeros(2, np.int32))
    prompt = Source(np.zeros((2, 1), np.int32), np.ones(2, np.int32))
    return loop.start(method, weights, source, prompt, keys.row_keys(0, np.arange(2)),
                      np.ones(2, bool), capacity=1)
  other = jax.eval_shape(start, weights)
  rows = jax.ShapeDtypeStruct((2,), np.int32)
  return state, loop.insert.lower(method, state, rows, other).compile()


def test_an_insert_copies_no_cache(inserted):
  state, program = inserted
  caches = [x for cache in (state.target_cache, state.draft_state)
            for x in jax.tree.leaves(cache) if x.ndim == 4]
  assert len(caches) == 8 and all(isinstance(c, Cache) for c in (
      state.target_cache, state.draft_state))
  size = sum(x.size * x.dtype.itemsize for x in caches)
  memory = program.memory_analysis()
  assert memory.alias_size_in_bytes >= size
  # The new rows, padded, and nothing of the size of a batch.
  assert memory.temp_size_in_bytes < size / 2
  module = hlo.Module(program.as_text())
  whole = {x.size for x in caches}
  for name in module.reachable([module.entry]):
    for i in module.computations[name].values():
      assert not (i.opcode in hlo.MOVES and i.size in whole), i.line
