"""`specdec generate` with controls, streams and traces."""

import json
import re

import pytest

import specdec
from specdec.engine import trace_page
from specdec.testing import tiny

TEXTS = ("A small boat.", "The cat sleeps.")


def _expected(**options) -> specdec.Result:
  return specdec.generate(tiny.pair(), TEXTS, task="", **options)


def test_controls_reach_the_library(generate, tmp_path):
  prompts, allowed = tmp_path / "prompts.txt", tmp_path / "allowed.txt"
  prompts.write_text("Die\n\n")
  allowed.write_text("Ein Boot.\nthe\n")
  hook = specdec.AllowedSequences.from_texts(tiny.pair().vocabulary, ["Ein Boot.", "the"])
  for flags, options in (
      (["--prompt=Die"], {"prompt": "Die"}),
      ([f"--prompt_file={prompts}"], {"prompt": ["Die", ""]}),
      (["--min_decode_len=9", "--forbidden_ids=5,7:0:3"],
       {"min_decode_len": 9, "forbidden_ids": [5, (7, 0, 3)]}),
      (["--repetition_penalty=3", "--no_repeat_ngram_size=2", "--eos_ids=none"],
       {"repetition_penalty": 3.0, "no_repeat_ngram_size": 2, "eos_ids": ()}),
      (["--eos_ids=1,9"], {"eos_ids": (1, 9)}),
      ([f"--allowed_file={allowed}"], {"logits_fn": hook}),
      (["--temperature=1", "--num_decodes=3", "--rescale_log_probs"],
       {"temperature": 1.0, "num_decodes": 3, "rescale_log_probs": True}),
  ):
    code, out, _ = generate(*TEXTS, "--output_file=-", *flags)
    assert code == 0
    expected = [record.to_dict() for record in _expected(**options).records]
    assert [json.loads(line) for line in out.splitlines()] == expected


def test_a_stream_prints_the_same_text(generate):
  code, out, err = generate(*TEXTS, "--stream", "--temperature=1")
  assert code == 0
  assert out.splitlines() == _expected(temperature=1.0).texts
  assert err.startswith("2 outputs, ")


def test_a_row_without_choice_is_warned_of(generate, tmp_path):
  path = tmp_path / "allowed.txt"
  path.write_text("Ein Boot.\n")
  code, _, err = generate(*TEXTS, "--prompt=Die", f"--allowed_file={path}")
  assert code == 0
  assert "warning: 2 of 2 outputs: every id was forbidden" in err


def test_a_trace_can_be_read_without_colour(generate):
  code, out, _ = generate(*TEXTS, "--trace", "--temperature=1", "--seed=1")
  assert code == 0 and "\x1b" not in out
  records = _expected(trace=True, temperature=1.0, seed=1).records
  lines = out.splitlines()
  assert len(lines) == sum(len(r.trace) + 2 for r in records)
  at = 0
  for record in records:
    assert lines[at].startswith(record.input)
    for i, iteration in enumerate(record.trace, 1):
      number, _, rest = lines[at + i].strip().partition(" ")
      assert number == str(i)
      assert rest.count("[-") == (iteration.rejected is not None)
      assert rest.count("{+") == (iteration.next_id is not None)
      assert rest.count("|") == 1
    said = [re.sub(r"\[-.*?-\]|\{\+|\+\}|\|", "", line)[6:] for line in lines[at + 1:
            at + 1 + len(record.trace)]]
    assert said[-1].removesuffix("</s>").strip().startswith(record.output[:6].strip())
    at += len(record.trace) + 2
    assert lines[at - 1] == f"   => {record.output}"
  assert "[-" in out and "{+" in out


def test_a_page_shows_the_traces_and_the_outputs_stay_as_they_are(generate, tmp_path):
  page, out = tmp_path / "page.html", tmp_path / "out.jsonl"
  flags = ["--temperature=1", "--seed=1", "--num_decodes=2"]
  expected = _expected(trace=True, temperature=1.0, seed=1, num_decodes=2)
  code, said, err = generate(*TEXTS, f"--trace_html={page}", *flags)
  assert code == 0 and said.splitlines() == [record.output for record in expected.records]
  assert page.read_text(encoding="utf-8") == trace_page.page(expected, "tiny").replace(
      f"{expected}<", err.strip() + "<") + "\n"
  # Lines of JSON have a trace when it is asked for.
  for trace in ([], ["--trace"]):
    assert generate(*TEXTS, f"--trace_html={page}", f"--output_file={out}", "--overwrite", *trace,
                    *flags)[0] == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(("trace" in record) == bool(trace) for record in records)
  assert len(records[0]["trace"][0]["accept_probs"]) == len(records[0]["trace"][0]["drafted"])


@pytest.mark.parametrize("flags", [["--mode=plain"], ["--drafter=copy"],
                                   ["--verifier=lenient", "--lenience=0.1"], ["--gamma=auto"]])
def test_a_page_of_any_kind_of_run(generate, tmp_path, flags):
  page = tmp_path / "page.html"
  code, _, _ = generate("A small boat.", f"--trace_html={page}", *flags)
  html = page.read_text(encoding="utf-8")
  assert code == 0 and "sd-lines" in html and html.endswith("</html>\n")
  assert ("NOT lossless" in html) == ("--verifier=lenient" in flags)


def test_a_trace_has_colours_on_a_terminal(generate, monkeypatch):
  monkeypatch.setenv("FORCE_COLOR", "1")
  _, out, _ = generate(*TEXTS, "--trace", "--temperature=1", "--seed=1")
  assert "\x1b[32m" in out and "\x1b[9;31m" in out and "\x1b[34m" in out


def test_a_trace_is_kept_as_data(generate, tmp_path):
  path = tmp_path / "out.jsonl"
  assert generate(*TEXTS, "--trace", f"--output_file={path}")[0] == 0
  records = [json.loads(line) for line in path.read_text().splitlines()]
  for record in records:
    committed = [i for t in record["trace"] for i in (
        *t["drafted"][:t["num_accepted"]], *([] if t["next_id"] is None else [t["next_id"]]))]
    assert committed == record["output_ids"]
