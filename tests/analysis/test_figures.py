"""What figures show, as data; that they are drawn; and the page with all of them."""

import dataclasses
from html.parser import HTMLParser
import json
import math
import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from specdec.analysis import curves
from specdec.analysis import figures
from specdec.analysis import gallery
from specdec.analysis import records
from specdec.analysis import tables
from specdec.analysis import theory
from specdec.analysis import traces
from specdec.cli.main import run
from tests.analysis import measured

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def record(tmp_path):
  rows = [measured.ROW, {**measured.ROW, "gamma": 5, "speed_up": 1.5, "speed_up_interval": None}]
  return records.read(measured.write(tmp_path / "record.json", rows=rows))


def at(curve, alpha):
  return float(np.interp(alpha, curve.alphas, curve.values))


# Data.

def test_curves_of_tokens_pass_through_known_points():
  found = {c.parameter: c for c in curves.tokens_curves()}
  assert list(found) == [1, 3, 5, 7, 10, math.inf]
  for gamma in (1, 3, 5, 7, 10):
    assert at(found[gamma], 0) == 1 and at(found[gamma], 1) == gamma + 1
  assert at(found[5], 0.8) == pytest.approx(3.69, abs=0.005)
  assert at(found[math.inf], 0.5) == pytest.approx(2, abs=1e-3)


def test_curves_of_gamma_pass_through_known_points():
  found = {c.parameter: c for c in curves.gamma_curves()}
  place = np.argmin(np.abs(found[0.01].alphas - 0.9))
  assert found[0.01].values[place] == 24
  for c, curve in found.items():
    improves = curve.values > 0
    assert (improves == (curve.alphas > c + 1e-12)).all()
    assert (np.diff(curve.values) >= 0).all()


def test_table_1_lies_on_the_curves_of_speed_and_operations():
  speed = {c.parameter: c for c in curves.speed_curves()}
  operations = {c.parameter: c for c in curves.operations_curves()}
  points = curves.paper_points()
  assert len(points) == 6
  for alpha, gamma, faster, dearer in points:
    assert at(speed[gamma], alpha) == pytest.approx(faster, abs=0.006)
    assert at(operations[gamma], alpha) == pytest.approx(dearer, abs=0.006)


def test_measured_points(record):
  point, _ = curves.speed_points([record])
  assert (point.alpha, point.value, point.gamma) == (0.75, 1.6, 3)
  assert point.predicted == pytest.approx(theory.speed_up(0.75, 3, 0.095, 1.4))
  point, _ = curves.tokens_points([record])
  assert point.value == 2.7 and point.predicted == pytest.approx(2.734375)
  best, = curves.gamma_points([record])
  assert (best.value, best.predicted) == (3, theory.best_gamma(0.75, 0.095))
  assert best.label == "EnDe, T5-small, t=0, c=0.095"
  lonely = dataclasses.replace(record, rows=record.rows[:1])
  assert curves.gamma_points([lonely]) == []  # One gamma is no choice.
  lenient = dataclasses.replace(record, rows=(dataclasses.replace(record.rows[0], lenience=0.5),))
  assert curves.speed_points([lenient]) == []


def test_a_timeline_is_made_of_measured_calls(record):
  accepted = {7: ([3, 7, 7], "somewhere"), 3: ([0, 3, 3, 3, 3, 3], "elsewhere")}
  found = curves.timelines(record.timings, "here", accepted, 0.5)
  assert found.unit == "ms" and "here" in found.durations
  assert found.acceptance == "gamma 7: somewhere; gamma 3: elsewhere"
  seven, three, plain = found.lines
  assert (seven.gamma, three.gamma, plain.gamma) == (7, 3, 0)
  # 4 + 8 + 8 tokens at gamma 7; the others stop there, too.
  assert [line.tokens for line in found.lines] == [20, 20, 20]
  assert [s.tokens for s in three.spans if s.model == "target"] == [1, 4, 4, 4, 4, 3]
  # Encoders, then gamma drafter calls and a target call of gamma + 1 tokens each.
  assert seven.end == pytest.approx(1e3 * (0.22 + 3 * (7 * 0.01 + 0.17)))
  assert plain.end == pytest.approx(1e3 * (0.2 + 20 * 0.1))
  assert [s.model for s in seven.spans[:3]] == ["target encoder", "drafter encoder", "drafter"]
  for line in found.lines:
    for a, b in zip(line.spans, line.spans[1:]):
      assert a.end == b.begin


def test_a_timeline_without_a_record_says_so():
  found = gallery.timelines([], [])
  assert found.unit == "one-token target calls" and "not measured" in found.durations
  assert found.acceptance.count("drawn at alpha 0.75") == 2
  assert found.lines[-1].end == pytest.approx(curves.TIMELINE_TOKENS)
  assert gallery.timelines([], []) == found


def test_timelines_of_several_gammas_are_of_one_text(tmp_path):
  files = []
  for drafts in ([5, 7, 9], [5]):
    lines = [{"input": text, "output_ids": [*drafts, own], "prompt_tokens": 0, "trace": [
        {"drafted": drafts, "num_accepted": len(drafts), "next_id": own}]}
             for text, own in (("one", 1), ("two", 2))]
    path = tmp_path / f"gamma_{len(drafts)}.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    files += traces.read(path)
  timings = records.Timings("d", (0.1,) * 4, 0.01)
  record = records.Record("r", "t", "trained", "float32", "cpu", 1, (), timings, {})
  for text, line in (("one", 1), ("two", 2)):
    assert f"gamma 3: gamma_3.jsonl, line {line}" in gallery.timelines(
        [record], files, text).acceptance


def test_a_timeline_of_short_calls_takes_smaller_gammas(record):
  for calls, gammas in ((5, [4, 2, 0]), (4, [3, 2, 0]), (2, [1, 0]), (1, [0])):
    timings = dataclasses.replace(record.timings, target_call_s=(0.1,) * calls)
    found = curves.timelines(timings, "here", {}, 0.7)
    assert [line.gamma for line in found.lines] == gammas


# Traces.

def test_lines_of_the_example(tmp_path):
  trace, = traces.read(measured.write(tmp_path / "t.jsonl", measured.TRACE))
  assert trace.gamma == 3 and trace.tokens == 6
  pieces = lambda ids: [f"\u2581{i}" for i in ids]
  assert traces.lines(trace, pieces) == [
      traces.Line("", " 5", " 20", " 6", 2), traces.Line(" 5 6", " 7 8 9", "", " 1", 4)]


def test_a_draft_that_ends_a_row_is_not_rejected(tmp_path):
  fields = {**measured.TRACE, "output_ids": [5, 1],
            "trace": [{"drafted": [5, 1, 7], "num_accepted": 2, "next_id": None}]}
  trace, = traces.read(measured.write(tmp_path / "t.jsonl", fields))
  line, = traces.lines(trace, lambda ids: [str(i) for i in ids])
  assert (line.accepted, line.rejected, line.own, line.tokens) == ("51", "", "", 2)


def test_traces_that_come_with_the_package():
  found = traces.shipped()
  assert found and all(t.tokens and t.input for t in found)
  assert any(i.num_accepted < len(i.drafted) for i in found[0].iterations)


@pytest.mark.parametrize("contents, expected", [
    ("", "is empty; expected a line of specdec generate --trace"),
    ("{", "line 1 is not JSON"),
    ("{}", "line 1 has no trace; expected a line of specdec generate --trace"),
    ('{"trace": [], "output_ids": "abc", "prompt_tokens": 0}', "line 1 is damaged"),
    ('{"trace": [{"drafted": [1]}], "output_ids": [1], "prompt_tokens": 0}', "is damaged"),
    ('{"trace": [{"drafted": [1], "num_accepted": 2, "next_id": 1}], "output_ids": [1], '
     '"prompt_tokens": 0}', "is damaged"),
    ('{"trace": [], "output_ids": [1], "prompt_tokens": 0}', "do not add up"),
])
def test_a_wrong_trace_is_told_in_one_line(mistake, tmp_path, contents, expected):
  (tmp_path / "t.jsonl").write_text(contents, encoding="utf-8")
  assert expected in mistake("figure", "1", f"--output={tmp_path / 'o'}",
                             f"--trace_file={tmp_path / 't.jsonl'}")
  assert not (tmp_path / "o").exists()


# Drawings.

@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
  """All figures, with a record and a trace whose text is hard to draw."""
  folder = tmp_path_factory.mktemp("figures")
  record = measured.write(folder / "record.json", rows=[
      {**measured.ROW, "gamma": g, "task": "$a_b$ & <c>"} for g in (2, 3, 4)])
  trace = measured.write(folder / "trace.jsonl", measured.TRACE)
  assert run(["figure", "1", "tokens", "3", "4", "timeline", f"--output={folder / 'out'}",
              f"--record={record}", f"--trace_file={trace}"]) == 0
  return folder / "out"


@pytest.mark.parametrize("number, name", figures.NAMES.items())
def test_files_are_what_their_names_say(drawn, number, name):
  svg = ElementTree.parse(drawn / f"figure_{number}_{name}.svg").getroot()
  assert svg.tag == f"{SVG}svg" and len(list(svg.iter(f"{SVG}path"))) > 5
  png = (drawn / f"figure_{number}_{name}.png").read_bytes()
  assert png.startswith(b"\x89PNG")
  width, height = (int.from_bytes(png[i:i + 4], "big") for i in (16, 20))
  assert width == 1440 and 200 < height < 1200


def test_the_same_figure_is_the_same_file(drawn):
  figure, _ = gallery.draw("speed", [], [], traces.shipped()[0], lambda ids: [])
  assert figures.svg(figure) == figures.svg(
      gallery.draw("speed", [], [], traces.shipped()[0], lambda ids: [])[0])


def _texts(figure):
  """Every text with its box, in pixels, and the figure's own box."""
  import matplotlib
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.text import Text

  with matplotlib.rc_context(figures.SETTINGS):
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    found = [(t.get_text(), t.get_window_extent(renderer), t.get_fontsize())
             for t in figure.findobj(Text) if t.get_text() and t.get_visible()]
  return found, figure.bbox


@pytest.mark.parametrize("name", figures.NAMES.values())
def test_no_label_is_cut_tiny_or_upon_another(name, record):
  trace = traces.shipped()[0]
  figure, _ = gallery.draw(name, [record], [], trace, lambda ids: [f"\u2581{i}" for i in ids])
  found, whole = _texts(figure)
  assert found
  for text, box, size in found:
    assert size >= 7.5, text
    assert whole.x0 <= box.x0 and box.x1 <= whole.x1 + 1, text
    assert whole.y0 <= box.y0 and box.y1 <= whole.y1 + 1, text
  for i, (text, a, _) in enumerate(found):
    for other, b, _ in found[:i]:
      wide = min(a.x1, b.x1) - max(a.x0, b.x0)
      high = min(a.y1, b.y1) - max(a.y0, b.y0)
      # Letters leave room in their boxes; words that follow each other touch.
      assert wide < 3 or high < 4, (text, other)


def test_a_long_line_of_the_example_keeps_its_end():
  line = traces.Line(" before" * 30, " accepted" * 5, " no", " own", 6)
  found, whole = _texts(figures.example([line]))
  texts = [t for t, _, _ in found]
  assert " no" in texts and " own" in texts and " accepted" * 5 in texts
  assert any(t.startswith("\u2026") and t.endswith("before") for t in texts)
  found, _ = _texts(figures.example([traces.Line("", "accepted" * 40, "no", "own", 42)]))
  assert all(box.x1 <= whole.x1 for _, box, _ in found)


def _luminance(colour):
  parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
  linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055)**2.4 for x in parts]
  return np.dot(linear, (0.2126, 0.7152, 0.0722))


@pytest.mark.parametrize("palette", [figures.LIGHT, figures.DARK])
def test_colours_are_legible(palette):
  assert set(palette) == set(figures.LIGHT)
  ground = _luminance(palette["paper"])
  for name, colour in palette.items():
    low, high = sorted((ground, _luminance(colour)))
    contrast = (high + 0.05) / (low + 0.05)
    if name in ("target", "drafter", "target_encoder", "drafter_encoder"):
      assert contrast >= 3, name  # Of areas, by WCAG; of text it is 4.5.
    elif name not in ("paper", "grid"):
      assert contrast >= 4.5, name
  assert len(set(palette.values())) == len(palette)


# The page.

class _Page(HTMLParser):
  """Collects what matters of a page, and complains of tags that do not match."""

  VOID = ("meta", "br", "path", "use", "rect", "circle", "line")

  def __init__(self, text):
    super().__init__()
    self.open, self.ids, self.links, self.counts = [], [], [], {}
    self.feed(text)
    assert self.open == []

  def handle_startendtag(self, tag, attrs):
    self._note(tag, attrs)

  def handle_starttag(self, tag, attrs):
    self._note(tag, attrs)
    if tag not in self.VOID:
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def _note(self, tag, attrs):
    self.counts[tag] = self.counts.get(tag, 0) + 1
    for name, value in attrs:
      if name == "id":
        self.ids.append(value)
      if name in ("href", "xlink:href", "src"):
        self.links.append(value)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
  folder = tmp_path_factory.mktemp("report")
  record = measured.write(folder / "record.json", device="<script>alert(1)</script>")
  trace = measured.write(folder / "trace.jsonl", measured.TRACE, input="</svg><b>\"x\"")
  assert run(["report", f"--output={folder / 'r.html'}", f"--record={record}",
              f"--trace_file={trace}"]) == 0
  return (folder / "r.html").read_text(encoding="utf-8")


def test_the_page_holds_everything(report):
  page = _Page(report)
  assert page.counts["table"] == len(tables.NAMES) and page.counts["svg"] == 5
  assert len(page.ids) == len(set(page.ids))
  assert {f"table-{n}" for n in tables.NAMES} <= set(page.ids)
  assert {f"figure-{n}" for n in figures.NAMES.values()} <= set(page.ids)
  for svg in re.findall(r"<svg.*?</svg>", report, re.DOTALL):
    ElementTree.fromstring(svg)
  assert "1.60x (1.50x to 1.70x)" in report


def test_the_page_needs_no_network_and_no_script(report):
  page = _Page(report)
  links = [x for x in page.links if not x.startswith("#")]
  assert links == ["https://arxiv.org/abs/2211.17192"]  # To be clicked, not loaded.
  assert {x[1:] for x in page.links if x.startswith("#")} <= set(page.ids)
  assert not {"script", "link", "img", "iframe", "b"} & set(page.counts)
  assert "@import" not in report and not re.search(r"url\((?!#)", report)


def test_the_page_follows_light_and_dark(report):
  drawings = re.findall(r"<svg.*?</svg>", report, re.DOTALL)
  for svg in drawings:
    # No colour of its own, and no text in the default black.
    assert not re.search(r"#[0-9a-f]{6}\b", svg, re.IGNORECASE)
    assert all("fill: var(--" in tag for tag in re.findall(r"<text [^>]*>", svg))
  used = set(re.findall(r"var\((--[a-z0-9-]+)\)", report))
  head = report[:report.index("</style>")]
  light, dark = head.split("prefers-color-scheme: dark")
  for name in used:
    assert f"{name}:" in light
    assert f"{name}:" in dark or name in ("--sans", "--mono")


# The command line.

def test_missing_matplotlib_is_told_by_the_name_of_the_extra(mistake, tmp_path, monkeypatch):
  for name in [m for m in sys.modules if m.split(".")[0] == "matplotlib"]:
    monkeypatch.delitem(sys.modules, name)
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  for args in (["figure", "2", f"--output={tmp_path / 'out'}"],
               ["report", f"--output={tmp_path / 'r.html'}"]):
    assert "pip install 'specdec-jax[plots]'" in mistake(*args)
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("args, expected", [
    (["figure"], "no figure is named; expected numbers from 1 to 5"),
    (["figure", "6", "--output=x"], "there is no figure '6'; expected one of 1 (example), 2"),
    (["figure", "2"], "--output is missing; name a folder"),
    (["figure", "2", "--output=/nowhere/x/y"], "cannot make the folder --output /nowhere/x/y"),
    (["figure", "2", "--output=/dev/null"], "/dev/null is no folder"),
    (["figure", "2", "--output="], "is no folder; give the name of one"),
    (["figure", "1", "--output=x", "--example=2"], "--example belongs to --trace_file"),
    (["figure", "1", "--output=x", "--pair=demo"], "--pair belongs to --trace_file"),
    (["figure", "5", "--output=x", "--record=/nowhere"], "cannot read --record /nowhere"),
    (["figure", "5", "--output=x", "--trace_file=/nowhere"], "cannot read --trace_file /nowhere"),
    (["report"], "--output is missing; name the page"),
    (["report", "now", "--output=x"], "'now' is no flag of specdec report"),
    (["report", "--output=/nowhere/r.html"], "there is no folder /nowhere"),
])
def test_mistakes(mistake, args, expected, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert expected in mistake(*args)
  assert list(tmp_path.iterdir()) == []


def test_files_that_exist_are_kept(mistake, drawn, tmp_path):
  before = (drawn / "figure_2_tokens.png").stat().st_mtime_ns
  assert "exists; add --overwrite" in mistake("figure", "2", f"--output={drawn}")
  assert (drawn / "figure_2_tokens.png").stat().st_mtime_ns == before
  page = tmp_path / "r.html"
  page.write_text("mine", encoding="utf-8")
  assert "exists; add --overwrite" in mistake("report", f"--output={page}")
  assert page.read_text(encoding="utf-8") == "mine"


def test_an_example_that_is_not_there(mistake, tmp_path):
  trace = measured.write(tmp_path / "t.jsonl", measured.TRACE)
  assert "--example is 2; expected an integer from 1 to 1" in mistake(
      "figure", "1", "--output=x", f"--trace_file={trace}", "--example=2")


def test_a_record_that_holds_nothing(mistake, tmp_path):
  record = measured.write(tmp_path / "a.json", rows=[], timings=None)
  assert "holds nothing that a table or figure shows" in mistake(
      "report", f"--output={tmp_path / 'r.html'}", f"--record={record}")


def test_captions_say_where_all_is_from(drawn, record, tmp_path):
  trace, = traces.read(measured.write(tmp_path / "t.jsonl", measured.TRACE))
  pieces = lambda ids: [str(i) for i in ids]
  _, caption = gallery.draw("timeline", [record], [trace], trace, pieces)
  assert "measured calls, t5_1_1_large, widened weights" in caption
  assert "gamma 7: drawn at alpha 0.75; gamma 3: t.jsonl, line 1" in caption
  _, caption = gallery.draw("example", [], [], trace, pieces)
  assert "Input: A dog. (t.jsonl, line 1)" in caption
  _, caption = gallery.draw("speed", [record], [], trace, pieces)
  assert "Filled marks were measured (t5_1_1_large" in caption
  assert json.dumps(caption)
