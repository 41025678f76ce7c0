"""Bytes are counted by what a module says; the modules here are small enough to count by hand."""

import pytest

from specdec.bench import hlo
from specdec.bench import traffic

MODULE = """HloModule m, input_output_alias={{ {{0}}: (1, {{}}, may-alias) }}

%uses (p: bf16[256,128], q: bf16[8,256]) -> bf16[8,128] {{
  %p = bf16[256,128]{{1,0:T(8,128)(2,1)}} parameter(0)
  %q = bf16[8,256]{{1,0:T(8,128)(2,1)}} parameter(1)
  ROOT %d = bf16[8,128]{{1,0:T(8,128)(2,1)}} convolution(%q, %p), dim_labels=bf_io->bf
}}

%writes (c: bf16[64,128], n: bf16[8,128], i: s32[]) -> bf16[64,128] {{
  %c = bf16[64,128]{{1,0:T(8,128)(2,1)}} parameter(0)
  %n = bf16[8,128]{{1,0:T(8,128)(2,1)}} parameter(1)
  %i = s32[] parameter(2)
  ROOT %u = bf16[64,128]{{1,0:T(8,128)(2,1)}} dynamic-update-slice(%c, %n, %i, %i)
}}

%drafts (s: (bf16[256,128], bf16[64,128])) -> (bf16[256,128], bf16[64,128]) {{
  %s = (bf16[256,128]{{1,0:T(8,128)(2,1)}}, bf16[64,128]{{1,0:T(8,128)(2,1)}}) parameter(0)
  %w = bf16[256,128]{{1,0:T(8,128)(2,1)}} get-tuple-element(%s), index=0
  %h = bf16[8,128]{{1,0:T(8,128)(2,1)S(3)}} slice(%w), slice={{[0:8], [0:128]}}
  %k = bf16[64,128]{{1,0:T(8,128)(2,1)}} get-tuple-element(%s), index=1
  ROOT %r = (bf16[256,128]{{1,0}}, bf16[64,128]{{1,0}}) tuple(%w, %k)
}}

%more (s: (bf16[256,128], bf16[64,128])) -> pred[] {{
  ROOT %b = pred[] constant(false)
}}

%body (s: (bf16[256,128], bf16[64,128])) -> (bf16[256,128], bf16[64,128]) {{
  %s = (bf16[256,128]{{1,0:T(8,128)(2,1)}}, bf16[64,128]{{1,0:T(8,128)(2,1)}}) parameter(0)
  %w = bf16[256,128]{{1,0:T(8,128)(2,1)}} get-tuple-element(%s), index=0
  %k = bf16[64,128]{{1,0:T(8,128)(2,1)}} get-tuple-element(%s), index=1
  %x = bf16[8,256]{{1,0:T(8,128)(2,1)S(3)}} iota(), iota_dimension=0
{body}
  %t = (bf16[256,128]{{1,0:T(8,128)(2,1)}}, bf16[64,128]{{1,0:T(8,128)(2,1)}}) tuple(%w, %k)
  ROOT %r = (bf16[256,128]{{1,0}}, bf16[64,128]{{1,0}}) while(%t), condition=%more, body=%drafts
}}

ENTRY %main (weights: bf16[256,128], state: bf16[64,128]) -> (bf16[256,128], bf16[64,128]) {{
  %w = bf16[256,128]{{1,0:T(8,128)(2,1)}} parameter(0), metadata={{op_name="weights[\\'k\\']"}}
  %k = bf16[64,128]{{1,0:T(8,128)(2,1)}} parameter(1), metadata={{op_name="state.cache"}}
  %t = (bf16[256,128]{{1,0:T(8,128)(2,1)}}, bf16[64,128]{{1,0:T(8,128)(2,1)}}) tuple(%w, %k)
  ROOT %r = (bf16[256,128]{{1,0}}, bf16[64,128]{{1,0}}) while(%t), condition=%more, body=%body
}}
"""
WEIGHT, CACHE, SLICE = 256 * 128 * 2, 64 * 128 * 2, 8 * 128 * 2
TYPE = "bf16[256,128]{1,0:T(8,128)(2,1)"


def read(body, trips=0):
  return traffic.iteration(hlo.Module(MODULE.format(body=body)), trips)


def rewritten(iteration):
  return [m.origin for m in iteration.moves if m.rewrites]


def test_a_weight_that_is_multiplied_is_read_once():
  found = read(
      "  %y = bf16[8,128]{1,0:T(8,128)(2,1)S(3)} fusion(%w, %x), kind=kOutput, calls=%uses")
  assert found.read("weights") == WEIGHT
  assert found.read() == WEIGHT and found.written() == 0
  assert rewritten(found) == []


def test_fetching_a_weight_ahead_of_its_use_is_one_read_and_no_copy():
  found = read(f"""  %f = ({TYPE}S(3)}}, {TYPE}}}, u32[]{{:S(2)}}) copy-start(%w)
  %g = {TYPE}S(3)}} copy-done(%f)
  %y = bf16[8,128]{{1,0:T(8,128)(2,1)S(3)}} fusion(%g, %x), kind=kOutput, calls=%uses""")
  assert found.read("weights") == WEIGHT
  assert found.written() == 0
  assert rewritten(found) == []


def test_a_weight_that_is_turned_around_is_read_twice_and_rewritten():
  found = read("""  %z = bf16[256,128]{0,1:T(8,128)(2,1)} copy(%w)
  %y = bf16[8,128]{1,0:T(8,128)(2,1)S(3)} fusion(%z, %x), kind=kOutput, calls=%uses""")
  assert found.read("weights") == 2 * WEIGHT
  assert found.written() == WEIGHT
  assert rewritten(found) == ["weights['k']"]


def test_turning_around_into_the_fast_memory_is_a_rewrite_too():
  found = read("  %z = bf16[256,128]{0,1:T(8,128)(2,1)S(3)} copy(%w)")
  assert found.read("weights") == WEIGHT and found.written() == 0
  assert rewritten(found) == ["weights['k']"]


def test_a_cache_that_is_written_in_place_costs_what_is_new():
  found = read("""  %n = bf16[8,128]{1,0:T(8,128)(2,1)S(3)} slice(%w), slice={[0:8], [0:128]}
  %i = s32[] constant(0)
  %c = bf16[64,128]{1,0:T(8,128)(2,1)} fusion(%k, %n, %i), kind=kLoop, calls=%writes
  %d = bf16[64,128]{0,1:T(8,128)(2,1)} copy(%c)""")
  assert found.read("weights") == SLICE
  # In place, then moved: the copy is known for one of the cache, and is padded to twice its size.
  assert found.read("state") == CACHE
  assert found.written() == SLICE + 2 * CACHE
  assert rewritten(found) == ["state.cache"]


@pytest.mark.parametrize("trips", [1, 6])
def test_an_inner_loop_counts_as_often_as_it_runs(trips):
  assert read("", trips).read("weights") == trips * SLICE


def test_padding_to_tiles_is_read_too():
  plain, narrow, flat = traffic.arrays(
      "(bf16[512,64]{0,1:T(8,128)(2,1)}, bf16[512,64]{1,0:T(8,128)(2,1)S(3)}, f32[5]{0:T(128)})")
  assert plain.nbytes == 512 * 64 * 2 and plain.space == 0
  assert narrow.nbytes == 2 * plain.nbytes and narrow.space == 3
  assert flat.nbytes == 128 * 4


@pytest.mark.parametrize("line", [
    '  %h = bf16[8]{0} custom-call(%w), custom_call_target="xla_python_cpu_callback"',
    "  %h = (bf16[8]{0}, token[]) infeed(%w)",
    "  %h = bf16[64,128]{1,0:T(8,128)S(5)} copy(%k)"])
def test_whatever_reaches_the_host_is_seen(line):
  assert traffic.host_calls(hlo.Module(MODULE.format(body=""))) == []
  assert len(traffic.host_calls(hlo.Module(MODULE.format(body=line)))) == 1
