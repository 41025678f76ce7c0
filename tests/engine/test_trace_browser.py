"""The page of `specdec generate --trace_html` in a real browser: pointer, keys, light and dark."""

import os
import pathlib

import pytest

import specdec
from specdec.engine import trace_page
from specdec.testing import tiny
from tests.engine import browser as browser_lib

TEXTS = ("A small boat.", "The cat sleeps.", "Why does nobody answer the telephone?")
# The numbers that can be seen: of the token in focus or under the pointer.
TIPS = ("[...document.querySelectorAll('.sd-tip')].filter(e => e.checkVisibility())"
        ".map(e => e.textContent)")
FOCUSED = ("(document.activeElement.closest('.sd-token') || {getAttribute: () => null})"
           ".getAttribute('aria-describedby')")


@pytest.fixture(scope="module")
def result():
  return specdec.generate(tiny.pair(), TEXTS, task="", trace=True, temperature=1.0, seed=3)


@pytest.fixture(scope="module")
def files(tmp_path_factory, result):
  """The page, and a notebook's page with two cells."""
  folder = tmp_path_factory.mktemp("page")
  page, cells = folder / "page.html", folder / "cells.html"
  page.write_text(trace_page.page(result, "tiny"), encoding="utf-8")
  cells.write_text("<!DOCTYPE html><meta charset=utf-8><body class=vscode-dark>"
                   f"{result._repr_html_()}<p>text</p>{result.records[0]._repr_html_()}",
                   encoding="utf-8")
  return page, cells


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
  program = browser_lib.find()
  if program is None:
    pytest.skip(f"no Chromium: none of {', '.join(browser_lib.NAMES)} is on the path")
  opened = browser_lib.Browser(program, tmp_path_factory.mktemp("profile"))
  yield opened
  opened.close()


@pytest.fixture
def opened(browser, files):
  """The page, freshly opened; in the end nothing was complained of and nothing fetched."""
  browser.messages.clear()
  browser.requests.clear()
  browser.open(files[0])
  yield browser
  assert browser.messages == []
  assert all(url.startswith(("file://", "data:")) for url in browser.requests)
  assert sum(url.startswith("file://") for url in browser.requests) >= 1


def numbers(result) -> list[list[str]]:
  """What each token of each call should show, over all outputs."""
  out = []
  for record in result.records:
    for call in trace_page.tokens(record.trace):
      out.append([token.words + "".join(
          f"{name} {trace_page.probability(value)}"
          for name, value in (("p", token.p), ("q", token.q), ("accept", token.accept))
          if value is not None) for token in call])
  return out


def test_the_pointer_shows_the_numbers_of_a_token(opened, result):
  assert opened.value(TIPS) == []
  expected = [tip for call in numbers(result)[:3] for tip in call]
  for i, tip in enumerate(expected):
    name = opened.value(f"document.querySelectorAll('td .sd-token')[{i}]"
                        ".getAttribute('aria-describedby')")
    opened.point(f"[aria-describedby={name}]")
    assert opened.value(TIPS) == [tip]
  box = opened.value("(() => { const r = [...document.querySelectorAll('.sd-tip')].find("
                     "e => e.checkVisibility()).getBoundingClientRect();"
                     "return [r.left, r.top, r.right, r.bottom]; })()")
  width, height = opened.value("[innerWidth, innerHeight]")
  assert box[0] >= 0 and box[1] >= 0 and box[2] <= width and box[3] <= height
  opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
  assert opened.value(TIPS) == []


def test_arrow_keys_step_through_calls_and_tokens(opened, result):
  expected = numbers(result)
  for call in expected:  # Past the end of each output into the next.
    opened.press("ArrowDown")
    assert opened.value(TIPS) == [call[0]]
    assert opened.value("document.querySelectorAll('[aria-current=step]').length") == 1
  opened.press("ArrowDown")
  assert opened.value(TIPS) == [expected[-1][0]]
  opened.press("ArrowUp")
  assert opened.value(TIPS) == [expected[-2][0]]
  longest = max(range(len(expected)), key=lambda i: len(expected[i]))
  assert len(expected[longest]) > 2
  opened.press("Escape")
  assert opened.value(TIPS) == [] and opened.value(FOCUSED) is None
  opened.value("document.querySelectorAll('.sd-lines tbody tr')"
               f"[{longest}].querySelector('.sd-token').focus()")
  seen = []
  for _ in expected[longest]:
    seen += opened.value(TIPS)
    opened.press("ArrowRight")
  assert seen == expected[longest]
  assert opened.value(TIPS) == [expected[longest][-1]]  # The end of the line is the end.
  opened.press("Home")
  assert opened.value(TIPS) == [expected[longest][0]]
  opened.press("End", "ArrowLeft")
  assert opened.value(TIPS) == [expected[longest][-2]]


def test_tab_enters_once_and_comes_back_to_where_it_was(opened):
  opened.press("Tab")
  first = opened.value(FOCUSED)
  assert first is not None
  opened.press("ArrowDown")
  second = opened.value(FOCUSED)
  assert second not in (None, first)
  opened.press("Tab")
  assert opened.value("document.activeElement.tagName") == "SUMMARY"
  assert opened.value("document.querySelectorAll('td .sd-token[tabindex=\"0\"]').length") == 1
  opened.value("document.querySelector('td .sd-token[tabindex=\"0\"]').focus()")
  assert opened.value(FOCUSED) == second


def _luminance(colour: str) -> float:
  parts = [float(x) / 255 for x in colour[colour.index("(") + 1:-1].split(",")[:3]]
  linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_light_and_dark_can_be_read_with_and_without_colour(browser, files):
  style = lambda kind: (
      f"(s => [s.color, s.textDecorationLine, s.textDecorationStyle, s.borderTopStyle])"
      f"(getComputedStyle(document.querySelector('.sd-is-{kind}')))")
  papers = []
  for dark in (False, True):
    browser.open(files[0], dark=dark)
    paper = browser.value("getComputedStyle(document.querySelector('.specdec')).backgroundColor")
    papers.append(_luminance(paper))
    marks = []
    for kind in ("accepted", "rejected", "untested", "own"):
      colour, *mark = browser.value(style(kind))
      lighter, darker = sorted([_luminance(colour), papers[-1]], reverse=True)
      assert (lighter + 0.05) / (darker + 0.05) > 4.5, (kind, dark)
      marks.append(tuple(mark))
    assert len(set(marks)) == 4
  assert papers[0] > 0.9 and papers[1] < 0.05


def test_without_script_the_pointer_and_tab_still_show_numbers(browser, files, result):
  browser.open(files[0], script=False)
  expected = numbers(result)
  browser.point("td .sd-token")
  assert browser.value(TIPS) == [expected[0][0]]
  browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
  for tip in expected[0]:
    browser.press("Tab")
    assert browser.value(TIPS) == [tip]
  assert not browser.value("document.querySelector('.sd-keys').checkVisibility()")


def test_cells_of_a_notebook_have_keys_of_their_own(browser, files, result):
  browser.open(files[1])
  # The notebook's dark theme counts, not the reader's system, which is light here.
  paper = browser.value("getComputedStyle(document.querySelector('.specdec')).backgroundColor")
  assert _luminance(paper) < 0.05
  browser.press("ArrowDown")  # Belongs to the notebook while no token has the focus.
  assert browser.value(TIPS) == []
  browser.value("document.querySelectorAll('.specdec')[1].querySelector('td .sd-token').focus()")
  browser.press("ArrowDown")
  assert browser.value(TIPS) == [numbers(result)[1][0]]
  assert browser.value("[...document.querySelectorAll('.specdec')].map("
                       "e => e.querySelectorAll('[aria-current]').length)") == [0, 1]


@pytest.mark.skipif("SPECDEC_SCREENSHOTS" not in os.environ,
                    reason="SPECDEC_SCREENSHOTS names no folder for pictures")
def test_pictures_for_people(browser, files):
  folder = pathlib.Path(os.environ["SPECDEC_SCREENSHOTS"])
  for name, dark in (("light", False), ("dark", True)):
    browser.open(files[0], dark=dark)
    browser.press("ArrowDown", "ArrowDown")
    browser.screenshot(folder / f"{name}.png")
