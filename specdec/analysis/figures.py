"""Draws the paper's figures: theory's curves, measured points, and what happened in runs.

matplotlib is imported when the first figure is drawn. Colours are told apart by colour-blind
readers and in grey, and never say alone what a line or a mark means: lines carry their
labels, and accepted, rejected and own tokens their decorations.
"""

from collections.abc import Sequence
import io
import math
import re
from typing import TYPE_CHECKING
from typing import Any
import warnings

from specdec.analysis import curves
from specdec.analysis.curves import Curve
from specdec.analysis.curves import Point
from specdec.analysis.curves import Timelines
from specdec.analysis.traces import Line
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure

# The paper's numbers. They are names, too.
NAMES = {"1": "example", "2": "tokens", "3": "gamma", "4": "speed", "5": "timeline"}

# By role; each value occurs once, so that the report can put a variable in its place.
LIGHT = {
    "ink": "#1b1b1f", "muted": "#5d5d66", "grid": "#dcdce2", "paper": "#ffffff",
    "series1": "#00508f", "series2": "#b5470a", "series3": "#00755a", "series4": "#93337e",
    "series5": "#6a5300", "series6": "#4b4b4f",
    "accepted": "#05703c", "rejected": "#b3261e", "own": "#0b57a4",
    "target": "#2b4c7e", "drafter": "#c07a10", "target_encoder": "#757d8f",
    "drafter_encoder": "#9a8455",
}
DARK = {
    "ink": "#ececf1", "muted": "#a9a9b5", "grid": "#3a3a44", "paper": "#17171c",
    "series1": "#6cb8ff", "series2": "#ff9a57", "series3": "#4fd6ac", "series4": "#f09ad9",
    "series5": "#e3c65b", "series6": "#c4c4cc",
    "accepted": "#5fd68f", "rejected": "#ff8a80", "own": "#82b7ff",
    "target": "#7ba3de", "drafter": "#f2b04a", "target_encoder": "#8d95a8",
    "drafter_encoder": "#b8a98c",
}
# Hinting would round the pitch of letters to whole pixels, away from what stands under them.
SETTINGS = {"text.hinting": "no_hinting"}

_SERIES = tuple(LIGHT[f"series{i}"] for i in range(1, 7))
# One for each gamma or c, for marks and for lines that are printed in grey.
_DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (4, 1.5, 1, 1.5, 1, 1.5)), "-")
_MARKS = "osD^vP"
_WIDTH = 7.2


def example(lines: Sequence[Line], columns: int = 94) -> "Figure":
  """Figure 1: a line per target call, accepted, rejected and own tokens told apart.

  Args:
    lines: the iterations.
    columns: characters a line has room for; what stood before is cut from the left.
  """
  figure = _figure(_WIDTH, 0.95 + 0.235 * len(lines))
  axes = figure.add_axes((0.02, 0.02, 0.96, 0.96))
  axes.set_axis_off()
  rows = len(lines) + 2.6
  axes.set_xlim(0, columns + 5)
  axes.set_ylim(rows, 0)
  size = _WIDTH * 72 * 0.96 / ((columns + 5) * 0.6021)
  draw = _Typewriter(axes, size)
  for number, line in enumerate(lines, 1):
    y = number + 0.1
    begins = not line.before.strip()
    accepted = line.accepted.lstrip() if begins else line.accepted
    own = line.own.lstrip() if begins and not accepted else line.own
    # Where there is no room for all, what is oldest goes.
    accepted = _tail(accepted, columns - len(line.rejected) - len(own))
    before = _tail(line.before.lstrip(), columns - len(accepted) - len(line.rejected) - len(own))
    draw(0, y, f"{number:>3}", LIGHT["muted"])
    x = draw(5, y, before, LIGHT["muted"])
    x = draw(x, y, accepted, LIGHT["accepted"], "under")
    x = draw(x, y, line.rejected, LIGHT["rejected"], "strike")
    draw(x, y, own, LIGHT["own"], "box")
  y, x = rows - 0.75, 5.0
  for text, colour, mark in (("accepted", "accepted", "under"), ("rejected", "rejected", "strike"),
                             ("the target's own", "own", "box")):
    x = draw(x, y, text, LIGHT[colour], mark) + 3
  axes.text(columns + 5, y, f"{sum(line.tokens for line in lines)} tokens in {len(lines)} target "
            "calls", ha="right", va="center", color=LIGHT["ink"], fontsize=9)
  return figure


def _tail(text: str, room: int) -> str:
  """The end of a text that is too long, with a sign that it is."""
  if len(text) <= room:
    return text
  return "\u2026" + text[len(text) - room + 1:] if room > 1 else ""


class _Typewriter:
  """Writes text in a fixed pitch: one unit of the x axis per character."""

  def __init__(self, axes: "Axes", size: float):
    self._axes, self._size = axes, size

  def __call__(self, x: float, y: float, text: str, colour: str, mark: str = "") -> float:
    """Writes a text and its decoration; returns where the next one begins."""
    if not text:
      return x
    shown = "".join(c if c.isprintable() else "\ufffd" for c in text)
    self._axes.text(x, y, shown, color=colour, fontsize=self._size, family="monospace",
                    va="center", ha="left", parse_math=False,
                    weight="bold" if mark == "box" else "normal")
    # The space before a word is no part of it.
    begin, end = x + len(shown) - len(shown.lstrip()), x + len(shown)
    if mark == "under":
      self._axes.plot([begin, end], [y + 0.4, y + 0.4], color=colour, lw=1.4,
                      solid_capstyle="butt", clip_on=False)
    elif mark == "strike":
      self._axes.plot([begin, end], [y, y], color=colour, lw=1.1, solid_capstyle="butt",
                      clip_on=False)
    elif mark == "box":
      self._axes.plot([begin - 0.1, end + 0.1, end + 0.1, begin - 0.1, begin - 0.1],
                      [y - 0.44, y - 0.44, y + 0.44, y + 0.44, y - 0.44], color=colour, lw=0.8,
                      clip_on=False)
    return end


def tokens(points: Sequence[Point] = ()) -> "Figure":
  """Figure 2: expected tokens per target call against alpha."""
  figure, axes = _axes("alpha, acceptance rate", "tokens per target call")
  axes.set_ylim(0.5, 12)
  axes.set_yticks([1, 2, 4, 6, 8, 10, 12])
  found = curves.tokens_curves()
  for i, curve in enumerate(found):
    _line(axes, curve, i)
    if curve.parameter == math.inf:
      _label(axes, 0.905, 11.4, "\u03b3 = \u221e", i, "right")
    else:
      _label(axes, 1.008, float(curve.values[-1]), f"\u03b3 = {curve.parameter:g}", i)
  _marks(axes, points, [c.parameter for c in found])
  return figure


def gamma(points: Sequence[Point] = ()) -> "Figure":
  """Figure 3: optimal gamma against alpha, a curve per c."""
  figure, axes = _axes("alpha, acceptance rate", "optimal gamma", height=0.67)
  top = 30
  axes.set_ylim(0, top)
  for i, curve in enumerate(curves.gamma_curves()):
    axes.step(curve.alphas, curve.values, where="post", color=_SERIES[i], lw=1.6)
    # They leave the picture side by side: their labels stand above, further apart.
    leaves, at = float(curve.alphas[(curve.values >= top).argmax()]), 0.86 + 0.045 * i
    axes.plot([leaves, at, at], [top, top + 1.3, top + 1.7], color=_SERIES[i], lw=0.8,
              clip_on=False)
    axes.text(at, top + 2, f"c = {curve.parameter:g}", color=_SERIES[i], rotation=90, ha="center",
              va="bottom", fontsize=9)
  _marks(axes, points, None)
  return figure


def speed(points: Sequence[Point] = ()) -> "Figure":
  """Figure 4: speed-up (solid) and operations (dashed) against alpha at c = c_hat = 0."""
  figure, axes = _axes("alpha, acceptance rate", "factor")
  axes.set_ylim(0.5, 11.5)
  for i, (fast, dear) in enumerate(zip(curves.speed_curves(), curves.operations_curves())):
    axes.plot(fast.alphas, fast.values, color=_SERIES[i], lw=1.8)
    axes.plot(dear.alphas, dear.values, color=_SERIES[i], lw=1.4, ls=(0, (4, 2)))
    _label(axes, 1.008, float(fast.values[-1]), f"\u03b3 = {fast.parameter:g}", i)
    _label(axes, 0.025, float(dear.values[12]) + 0.38, f"\u03b3 = {dear.parameter:g}", i)
  axes.set_yticks(range(1, 12))
  for alpha, _, faster, dearer in curves.paper_points():
    for value in (faster, dearer):
      axes.plot([alpha], [value], marker="x", ms=5, color=LIGHT["ink"], ls="none", zorder=5)
  handles = [_handle(axes, color=LIGHT["muted"], lw=1.8, label="speed-up"),
             _handle(axes, color=LIGHT["muted"], lw=1.4, ls=(0, (4, 2)), label="operations"),
             _handle(axes, color=LIGHT["ink"], marker="x", ms=5, ls="none",
                     label="the paper's table 1")]
  _marks(axes, points, list(curves.SPEED_GAMMAS), handles, "upper center", (0.56, 1.0))
  return figure


def timeline(lines: Timelines) -> "Figure":
  """Figure 5: calls of both models on a time axis."""
  figure = _figure(_WIDTH, 0.95 + 0.78 * len(lines.lines))
  axes = figure.add_axes((0.085, 0.19, 0.8, 0.70))
  end = max(line.end for line in lines.lines)
  axes.set_xlim(0, end * 1.005)
  axes.set_ylim(len(lines.lines) - 0.45, -0.55)
  axes.set_yticks(range(len(lines.lines)), [
      f"\u03b3 = {line.gamma}" if line.gamma else "plain" for line in lines.lines])
  axes.set_xlabel(f"time for {lines.lines[-1].tokens} tokens, {lines.unit}")
  _quiet(axes, "x")
  axes.set_xticks([x for x in axes.get_xticks() if x <= end])
  points_per_unit = _WIDTH * 72 * 0.8 / end
  for y, line in enumerate(lines.lines):
    for span in line.spans:
      width = span.end - span.begin
      target = span.model == "target"
      # A drafter's calls are lower: they can be told apart without colour. Gaps between
      # calls leave most of a short one.
      height = 0.56 if target or "encoder" in span.model else 0.34
      axes.barh(y, width, left=span.begin, height=height,
                lw=min(0.5, 0.25 * width * points_per_unit),
                color=LIGHT[span.model.replace(" ", "_")], edgecolor=LIGHT["paper"])
      if target and line.gamma and width * points_per_unit > 7:
        axes.text((span.begin + span.end) / 2, y - 0.33, f"{span.tokens}", ha="center",
                  va="bottom", fontsize=7.5, color=LIGHT["ink"])
    calls = sum(span.model == "target" for span in line.spans)
    took = f"{line.end:.0f} ms" if lines.unit == "ms" else f"time {line.end:.3g}"
    axes.text(1.015, y, f"{calls} calls\n{took}", va="center", fontsize=8.5, color=LIGHT["ink"],
              transform=axes.get_yaxis_transform())
  present = dict.fromkeys(s.model for line in lines.lines for s in line.spans)
  from matplotlib.patches import Patch

  names = {"target": "target call, tokens it gave", "drafter": "drafter call",
           "target encoder": "target's encoder", "drafter encoder": "drafter's encoder"}
  axes.legend(handles=[Patch(color=LIGHT[m.replace(" ", "_")], label=names[m]) for m in names
                       if m in present], loc="lower right", bbox_to_anchor=(1.0, 0.99), ncol=4,
              frameon=False, fontsize=8.5, borderaxespad=0.2, handlelength=1.2,
              labelcolor=LIGHT["ink"])
  return figure


def svg(figure: "Figure", as_text: bool = False) -> str:
  """A drawing as SVG.

  Args:
    figure: from one of the functions above.
    as_text: keep letters as text in the reader's own fonts, on a transparent ground.
  """
  out = io.StringIO()
  settings = {"svg.fonttype": "none" if as_text else "path", "svg.hashsalt": "specdec"}
  _save(figure, out, settings, format="svg", transparent=as_text,
        metadata={"Date": None, "Creator": None})
  return out.getvalue()


def png(figure: "Figure", dpi: int = 200) -> bytes:
  """A drawing as PNG."""
  out = io.BytesIO()
  _save(figure, out, {}, format="png", dpi=dpi, metadata={"Software": None})
  return out.getvalue()


def with_variables(drawing: str, prefix: str) -> str:
  """An SVG drawing for a page: colours as CSS variables, ids that are its own.

  Args:
    drawing: from `svg(figure, as_text=True)`.
    prefix: of ids; differs from drawing to drawing.
  """
  drawing = drawing[drawing.index("<svg"):]
  for name, colour in LIGHT.items():
    drawing = re.sub(re.escape(colour), f"var(--{name.replace('_', '-')})", drawing,
                     flags=re.IGNORECASE)
  drawing = re.sub(r'id="([^"]+)"', rf'id="{prefix}-\1"', drawing)
  drawing = re.sub(r'href="#([^"]+)"', rf'href="#{prefix}-\1"', drawing)
  drawing = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", drawing)
  # Text in the page's own font.
  drawing = re.sub(r"font-family: [^;\"]*?sans-serif", "font-family: var(--sans)", drawing)
  drawing = re.sub(r"\s*<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
  # As wide as the page has room for.
  return re.sub(r'<svg ([^>]*?)width="[^"]+"', r"<svg \1", re.sub(
      r'<svg ([^>]*?)height="[^"]+"', r"<svg \1", drawing, count=1), count=1)


def _save(figure: "Figure", out: Any, settings: dict[str, Any], **options: Any) -> None:
  import matplotlib

  with matplotlib.rc_context({**SETTINGS, **settings}), warnings.catch_warnings():
    # A script that the font lacks is drawn as boxes, which speak for themselves.
    warnings.filterwarnings("ignore", message="Glyph .* missing from")
    figure.savefig(out, **options)


def _figure(width: float, height: float) -> "Figure":
  try:
    from matplotlib.figure import Figure
  except ImportError as error:
    raise SpecdecError("figures need matplotlib, which is not installed; pip install "
                       "'specdec-jax[plots]'") from error
  return Figure(figsize=(width, height), facecolor=LIGHT["paper"])


def _axes(x: str, y: str, height: float = 0.85) -> tuple["Figure", "Axes"]:
  figure = _figure(_WIDTH, 4.3)
  axes = figure.add_axes((0.1, 0.125, 0.8, height))
  axes.set_xlim(0, 1)
  axes.set_xlabel(x)
  axes.set_ylabel(y)
  _quiet(axes, "both")
  return figure, axes


def _quiet(axes: "Axes", grid: str) -> None:
  axes.grid(True, axis=grid, color=LIGHT["grid"], lw=0.7)
  axes.set_axisbelow(True)
  axes.set_facecolor("none")
  axes.tick_params(colors=LIGHT["ink"], labelsize=9, length=0)
  for side, spine in axes.spines.items():
    spine.set_visible(side == "bottom")
    spine.set_color(LIGHT["muted"])
  for label in (axes.xaxis.label, axes.yaxis.label):
    label.set_color(LIGHT["ink"])
    label.set_fontsize(10)


def _line(axes: "Axes", curve: Curve, i: int) -> None:
  axes.plot(curve.alphas, curve.values, color=_SERIES[i], lw=1.7, ls=_DASHES[i])


def _label(axes: "Axes", x: float, y: float, text: str, i: int, align: str = "left") -> None:
  axes.text(x, y, text, color=_SERIES[i], ha=align, va="center", fontsize=9, clip_on=False)


def _handle(axes: "Axes", **options: Any) -> Any:
  from matplotlib.lines import Line2D

  return Line2D([], [], **options)


def _marks(axes: "Axes", points: Sequence[Point], gammas: Sequence[float] | None,
           handles: Sequence[Any] = (), place: str = "upper left",
           anchor: tuple[float, float] = (0.0, 1.0)) -> None:
  """Measured points, filled, each tied to its prediction, hollow; and a legend."""
  handles = list(handles)
  for i, point in enumerate(points):
    colour = LIGHT["ink"]
    if gammas is not None and point.gamma in gammas:
      colour = _SERIES[gammas.index(point.gamma)]
    mark = _MARKS[i % len(_MARKS)]
    if point.predicted is not None:
      axes.plot([point.alpha] * 2, [point.value, point.predicted], color=colour, lw=0.8, zorder=4)
      axes.plot([point.alpha], [point.predicted], marker=mark, ms=6, mfc=LIGHT["paper"],
                mec=colour, ls="none", zorder=5)
    axes.plot([point.alpha], [point.value], marker=mark, ms=6, color=colour, ls="none", zorder=6)
    handles.append(_handle(axes, color=colour, marker=mark, ms=6, ls="none",
                           label=f"measured: {point.label}, \u03b3={point.gamma}"))
  if any(p.predicted is not None for p in points):
    handles.append(_handle(axes, color=LIGHT["ink"], marker="o", ms=6, mfc=LIGHT["paper"],
                           ls="none", label="predicted there"))
  if handles:
    legend = axes.legend(handles=handles, loc=place, bbox_to_anchor=anchor, fontsize=8,
                         framealpha=1, facecolor=LIGHT["paper"], edgecolor=LIGHT["grid"])
    for text in legend.get_texts():
      text.set_color(LIGHT["ink"])
      text.set_parse_math(False)
