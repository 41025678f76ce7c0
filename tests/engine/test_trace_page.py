"""Traces as HTML: its numbers are the trace's, its text is text, and what notebooks get."""

import dataclasses
from html.parser import HTMLParser
import re

import pytest
from rich.console import Console

import specdec
from specdec.engine import trace_page
from specdec.engine.result import Result
from specdec.engine.traces import Iteration
from specdec.engine.traces import Iterations
from specdec.testing import tiny

TEXTS = ("A small boat.", "The cat sleeps.")
EVIL = '<script>alert("x")</script> & \'<b onmouseover=x>\''
# Elements that HTML leaves open.
_VOID = ("meta", "link")


class Page(HTMLParser):
  """Elements in order, with the text in them; every one must be closed by its own name."""

  def __init__(self, html: str):
    super().__init__()
    self.elements, self._open, self.text = [], [], ""
    self.feed(html)
    self.close()
    assert not self._open, self._open

  def handle_starttag(self, tag, attrs):
    element = {"tag": tag, **dict(attrs), "text": "", "parents": list(self._open)}
    self.elements.append(element)
    if tag not in _VOID:
      self._open.append(element)

  def handle_endtag(self, tag):
    assert self._open.pop()["tag"] == tag

  def handle_data(self, data):
    self.text += data
    for element in self._open:
      element["text"] += data

  def of(self, name: str) -> list[dict]:
    """Elements of a class."""
    return [e for e in self.elements if name in (e.get("class") or "").split()]

  def rows(self, table: str) -> list[list[str]]:
    """Texts of the cells of all tables of a class, heads left out."""
    inside = lambda e: any(table in (p.get("class") or "") for p in e["parents"])
    rows = [e for e in self.elements if e["tag"] == "tr" and inside(e)
            and not any(p["tag"] == "thead" for p in e["parents"])]
    return [[e["text"] for e in self.elements if e["tag"] in ("td", "th")
             and any(p is row for p in e["parents"])] for row in rows]


def in_call(element) -> bool:
  return any("sd-line" in (p.get("class") or "").split() for p in element["parents"])


@pytest.fixture(scope="module")
def pair():
  return tiny.pair()


@pytest.fixture(scope="module", params=[
    {"temperature": 1.0, "seed": 1}, {}, {"mode": "plain", "temperature": 1.0},
    {"temperature": 1.0, "verifier": "block"}, {"drafter": "copy:min_match=0"}],
    ids=["sampled", "greedy", "plain", "block", "copy"])
def result(pair, request):
  options = dict(request.param)
  drafter = options.pop("drafter", None)
  return specdec.generate(pair.with_drafter(drafter) if drafter else pair, TEXTS, task="",
                          trace=True, **options)


def test_every_token_has_the_numbers_of_the_trace(result):
  expected = []
  for record in result.records:
    for number, i in enumerate(record.trace, 1):
      words = ["accepted"] * i.num_accepted + ["rejected"] * (i.rejected is not None)
      words += ["not looked"] * len(i.untested)
      numbers = zip(i.target_probs, i.draft_probs, i.accept_probs)
      expected += [(number, id_, *three, word)
                   for id_, three, word in zip(i.drafted, numbers, words, strict=True)]
      if i.next_id is not None:
        expected.append((number, i.next_id, i.next_prob, None, None, "the target's own"))
  page = Page(trace_page.page(result))
  shown = page.rows("sd-numbers")
  assert len(shown) == len(expected)
  tips = [e["text"] for e in page.of("sd-tip")]
  for row, tip, (number, id_, *numbers, word) in zip(shown, tips, expected, strict=True):
    call, shown_id, _, *probabilities, words = row
    assert (int(call), int(shown_id)) == (number, id_) and words.startswith(word)
    assert tip.startswith(words)
    for name, text, value in zip(("p", "q", "accept"), probabilities, numbers, strict=True):
      if value is None:
        assert text == "-" and f"{name} " not in tip.removeprefix(words)
      else:
        assert f"{name} {text}" in tip
        assert float(text.strip(">")) == pytest.approx(
            value, rel=0.06 if value < 1e-3 else 0, abs=0 if value < 1e-3 else 1.1e-3)
        assert (text in "01") == (value in (0, 1))


def test_every_call_is_a_line_that_reads_as_the_output(result):
  page = Page(trace_page.page(result))
  lines = page.rows("sd-lines")
  iterations = [i for record in result.records for i in record.trace]
  assert len(lines) == len(iterations)
  for row, i in zip(lines, iterations):
    assert row[2] == (f"{i.num_accepted} of {len(i.drafted)}" if i.drafted else "-")
    assert row[3] == f"+{len(i.committed)}"
  # Without style the marks are those of HTML, and the numbers stay hidden.
  assert {e["tag"] for e in page.of("sd-is-accepted")} == {"u"}
  assert {e["tag"] for e in page.of("sd-is-rejected")} == {"s"}
  assert {e["tag"] for e in page.of("sd-is-own")} == {"b"}
  assert all("hidden" in e for e in page.of("sd-tip"))
  texts = [e["text"] for e in page.of("sd-said")]
  assert texts == [record.output for record in result.records]


def test_tokens_are_reached_by_the_keyboard_and_described(result):
  page = Page(trace_page.page(result))
  tokens = [e for e in page.of("sd-token") if in_call(e)]
  tips = {e["id"]: e for e in page.of("sd-tip")}
  assert tokens and all(e["tabindex"] == "0" for e in tokens)
  assert [e["aria-describedby"] for e in tokens] == list(tips)
  assert len(tips) == len(page.of("sd-tip"))  # No id twice, over several inputs.


def test_a_page_needs_no_network(result):
  html = trace_page.page(result)
  page = Page(html)
  assert not re.search(r"https?:|url\(|@import", html)
  links = [e for e in page.elements if "src" in e or "href" in e]
  assert [e["href"] for e in links] == ["data:,"]
  policy = next(e["content"] for e in page.elements if "http-equiv" in e)
  assert policy.startswith("default-src 'none'") and "script-src 'sha256-" in policy


def test_style_knows_light_and_dark_and_all_classes(result):
  html = trace_page.page(result)
  style = Page(html).elements[[e["tag"] for e in Page(html).elements].index("style")]["text"]
  assert "prefers-color-scheme: dark" in style and "LIGHT color" not in style
  used = {name for e in Page(html).elements for name in (e.get("class") or "").split()}
  used -= {"sd-keys", "sd-output", "sd-line", "sd-p"}  # Hooks of the script, or as inherited.
  assert all(f".{name}" in style for name in used), used


def evil_record(record: specdec.Record, pieces=None) -> specdec.Record:
  trace = Iterations(record.trace, record.trace.prompt,
                     pieces or dict.fromkeys(record.trace.pieces, EVIL))
  return dataclasses.replace(record, input=EVIL, output=EVIL, trace=trace)


def test_text_is_never_markup(result):
  usual = trace_page.page(result, "pair")
  evil = Result(tuple(map(evil_record, result.records)), result.settings)
  html = trace_page.page(evil, EVIL)
  tags = lambda text: [e["tag"] for e in Page(text).elements]
  assert tags(html) == tags(usual)
  assert EVIL in Page(html).text and "alert(" in html and "<script>alert" not in html
  assert not any("onmouseover" in e for e in Page(html).elements)
  for shown in (evil, evil.records[0], evil.records[0].trace):
    assert "<script>alert" not in shown._repr_html_()


def test_pieces_that_cannot_be_seen_are_shown():
  pieces = {3: "\u2581", 4: "a\nb", 5: "\u202ez\x1b", 6: "\ud800", 7: "\u2581\u05d0"}
  trace = Iterations([Iteration((3, 4, 5, 6), 4, 7, (1.0,) * 4, (1.0,) * 4, (1.0,) * 4, 0.5)],
                     (), pieces)
  html = trace._repr_html_()
  html.encode()
  page = Page(html)
  shown = [e["text"].split("accepted:")[0].split("the target's own,")[0]
           for e in page.of("sd-token") if in_call(e)]
  assert shown == ["\u2423", "a\u21b5b", "\ufffdz\ufffd", "\ufffd", "\u05d0"]


@pytest.mark.parametrize("value, text", [
    (0.0, "0"), (1.0, "1"), (0.5, "0.500"), (0.99999, ">0.999"), (0.0004, "4.0e-04"),
    (1e-12, "1.0e-12"), (float("nan"), "nan"), (None, "-")])
def test_certainty_is_not_rounded_to(value, text):
  assert trace_page.probability(value) == text


def test_a_row_that_ends_inside_a_draft():
  trace = Iterations([Iteration((5, 1, 7), 2, None, (0.5,) * 3, (0.5,) * 3, (1.0,) * 3, None),
                      Iteration((), 0, None, (), (), (), None)], (), {5: "a", 1: "</s>", 7: "b"})
  rows = Page(trace._repr_html_()).rows("sd-numbers")
  assert [row[-1].split(",")[0].split(":")[0] for row in rows] == [
      "accepted", "accepted", "not looked at"]
  assert "ended" in rows[-1][-1]


def test_a_notebook_shows_the_same_lines(result):
  page, cell = Page(trace_page.page(result)), Page(result._repr_html_())
  for table in ("sd-lines", "sd-numbers"):
    assert cell.rows(table) == page.rows(table)
  record = result.records[1]
  only = Page(record._repr_html_())
  assert only.rows("sd-lines") == Page(record.trace._repr_html_()).rows("sd-lines")
  assert len(only.rows("sd-lines")) == len(record.trace)
  assert "<html" not in result._repr_html_()


def test_a_result_without_a_trace_says_how_to_get_one(pair):
  result = specdec.generate(pair, TEXTS, task="")
  page = Page(result._repr_html_())
  assert not page.of("sd-lines") and not page.of("sd-legend")
  assert [e["text"] for e in page.of("sd-said")] == result.texts
  assert "trace=True" in page.text and str(result) in page.text
  many = Result(result.records * 30, result.settings)
  assert "and 40 more" in many._repr_html_() and "and 40 more" in pretty(many)
  assert len(Page(trace_page.page(many)).of("sd-said")) == 60


def pretty(shown) -> str:
  """As IPython shows a value in a terminal."""
  class Printer:
    def text(self, text):
      self.said = text

  printer = Printer()
  shown._repr_pretty_(printer, False)
  return printer.said


def test_a_terminal_shows_lines_too(result):
  console = Console(force_terminal=True, width=400)
  for shown in (result, result.records[0], result.records[0].trace):
    with console.capture() as captured:
      console.print(shown)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", captured.get())
    assert plain == pretty(shown) + "\n"
    assert plain.count("{+") >= len(result.records[0].trace) - 1
  assert pretty(result).endswith(str(result))


def test_a_trace_is_a_tuple_that_travels(result):
  import copy
  import pickle

  trace = result.records[0].trace
  for again in (copy.deepcopy(trace), pickle.loads(pickle.dumps(trace))):
    assert again == trace and again._repr_html_() == trace._repr_html_()
  assert isinstance(trace, tuple) and isinstance(trace[0], specdec.Iteration)
  fields = result.records[0].to_dict()["trace"][0]
  assert fields["accept_probs"] == trace[0].accept_probs
  assert fields["next_prob"] == trace[0].next_prob
