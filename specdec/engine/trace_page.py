"""Traces as HTML: a page of its own, and what a notebook shows.

A line per target call. Each token carries its numbers, shown when the pointer is on it or the
keyboard's focus; a table below has them all. Style alone does that: the script adds arrow keys,
and nothing is lost where it is stripped. Without style, too, the marks are those of HTML.
"""

import base64
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import functools
import hashlib
import html
import math
import pathlib
from typing import Any
import unicodedata

import numpy as np

from specdec.analysis import figures
from specdec.core import probs
from specdec.engine.result import Record
from specdec.engine.result import Result
from specdec.engine.settings import Settings
from specdec.engine.traces import Iterations
from specdec.types import Status

_ASSETS = pathlib.Path(__file__).parents[1] / "assets" / "trace_page"
# Outputs of a result that a notebook shows: `page` has no limit.
MOST = 20
# Characters of what stood before a call; the end of it is what matters.
_BEFORE = 56

_COLOURS = ("ink", "muted", "grid", "paper", "accepted", "rejected", "own", "target", "drafter")
# Stands for a space where it is all there is to see.
_BLANK = "\u2423"
# What a token was, its element and class, and the words for it.
_KINDS = {
    "accepted": ("u", "accepted: it stands"),
    "rejected": ("s", "rejected"),
    "untested": ("i", "not looked at, as a token before it was rejected"),
    "unused": ("i", "not looked at, as the output had ended"),
    "own": ("b", "the target's own"),
}
_OWN = {
    "correction": "the target's own, in place of the rejected one",
    "bonus": "the target's own, after a draft that stands whole",
    "plain": "the target's own; nothing was drafted",
}


@dataclasses.dataclass(frozen=True)
class Token:
  """A token of an iteration, with what is known of it.

  Attributes:
    id: of the vocabulary.
    piece: as the vocabulary has it.
    kind: a key of `_KINDS`.
    words: what became of it.
    p: the target's probability.
    q: the drafter's; None for the target's own.
    accept: how likely it was to stand; None likewise.
  """

  id: int
  piece: str
  kind: str
  words: str
  p: float | None
  q: float | None = None
  accept: float | None = None


def tokens(trace: Iterations) -> list[list[Token]]:
  """The tokens of each iteration: its draft in order, then the target's own."""
  out = []
  for iteration in trace:
    behind = "unused" if iteration.rejected is None else "untested"
    kinds = ["accepted"] * iteration.num_accepted + ["rejected"] * (iteration.rejected is not None)
    kinds += [behind] * (len(iteration.drafted) - len(kinds))
    numbers = zip(iteration.drafted, kinds, iteration.target_probs, iteration.draft_probs,
                  iteration.accept_probs)
    found = [Token(i, trace.text([i]), kind, _KINDS[kind][1], p, q, accept)
             for i, kind, p, q, accept in numbers]
    if iteration.next_id is not None:
      words = _OWN["correction" if iteration.rejected is not None else
                   "bonus" if iteration.drafted else "plain"]
      found.append(Token(iteration.next_id, trace.text([iteration.next_id]), "own", words,
                         iteration.next_prob))
    out.append(found)
  return out


def page(result: Result, about: str = "") -> str:
  """A page that needs no other file and no network.

  Args:
    result: of any number of inputs, traced or not.
    about: what it was made with, in words.
  """
  return "\n".join([begin(result.settings, about), *map(output, result.records),
                    end(str(result))])


def begin(settings: Settings, about: str = "") -> str:
  """The page up to its outputs; see `page`."""
  digest = base64.b64encode(hashlib.sha256(_asset("script.js").encode()).digest()).decode()
  # Nothing is fetched and no other script runs, whatever a text holds.
  policy = (f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
            "img-src data:")
  return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
          f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
          '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
          '<meta name="color-scheme" content="light dark">\n'
          '<link rel="icon" href="data:,">\n<title>specdec: what became of each draft</title>\n'
          f'{_style()}\n</head>\n<body class="sd-body">\n<main class="specdec sd-page">\n'
          f"<h1>What became of each draft</h1>\n{_about(settings, about)}\n{_legend(settings)}")


def end(totals: str) -> str:
  """The page behind its outputs.

  Args:
    totals: of the run, a line.
  """
  return (f'<p class="sd-totals">{html.escape(visible(totals))}</p>\n</main>\n'
          f"<script>{_asset('script.js')}</script>\n</body>\n</html>")


def cell(shown: Any) -> str:
  """What a notebook shows of a `Result`, a `Record` or `Iterations`."""
  parts = [_style(), '<div class="specdec">']
  if isinstance(shown, Iterations):
    parts += [_legend(None), _lines(shown)]
  elif isinstance(shown, Record):
    parts += [_legend(None) if shown.trace is not None else "", output(shown)]
  else:
    traced = any(record.trace is not None for record in shown.records)
    parts += [_about(shown.settings), _legend(shown.settings) if traced else ""]
    parts += map(output, shown.records[:MOST])
    if len(shown.records) > MOST:
      parts.append(f"<p>and {len(shown.records) - MOST} more, which are not shown here</p>")
    hint = "" if traced else "; with trace=True each call is shown"
    parts.append(f'<p class="sd-totals">{html.escape(str(shown))}{hint}</p>')
  return "\n".join(filter(None, [*parts, "</div>", f"<script>{_asset('script.js')}</script>"]))


def output(record: Record) -> str:
  """An output: its input, its text, a line per target call and all numbers."""
  sample = f", sample {record.sample + 1}" if record.sample else ""
  notes = [f"{record.num_generated} token{'s' * (record.num_generated != 1)} in "
           f"{record.target_calls} target call{'s' * (record.target_calls != 1)}"]
  if record.tested:
    notes.append(f"{record.accepted} of {record.tested} tested tokens stood (alpha "
                 f"{record.accepted / record.tested:.3f})")
  if record.status != Status.EOS.label:
    notes.append(Status[record.status.upper()].text)
  if record.truncated:
    notes.append("the input was cut to the encoder's limit")
  if not record.lossless:
    notes.append("NOT lossless")
  heading = html.escape(visible(record.input)) or "(ids)"
  parts = [
      '<section class="sd-output">',
      f'<h2 dir="auto"><span class="sd-place">{record.index + 1}{sample}</span> {heading}</h2>',
      f'<p class="sd-said" dir="auto">{html.escape(visible(record.output))}</p>',
      f'<p class="sd-notes">{html.escape("; ".join(notes))}</p>']
  if record.trace is not None:
    parts.append(_lines(record.trace))
  return "\n".join([*parts, "</section>"])


def _lines(trace: Iterations) -> str:
  """The table of lines, and the table of numbers."""
  found = tokens(trace)
  # Tokens are described by elements with ids, which are those of no other output.
  prefix = "sd" + hashlib.sha256(repr((trace, trace.prompt)).encode()).hexdigest()[:10]
  rows = []
  for number, (before, mine) in enumerate(zip(trace.befores(), found), 1):
    iteration = trace[number - 1]
    drafted = len(iteration.drafted)
    stood = f"{iteration.num_accepted} of {drafted}" if drafted else "-"
    marked = "".join(_marked(token, f"{prefix}-{number}-{i}", begins=not before and i == 0)
                     for i, token in enumerate(mine))
    rows.append(f'<tr><th scope="row">{number}</th><td class="sd-line" dir="auto">'
                f'<span class="sd-before">{html.escape(_tail(visible(trace.text(before))))}</span>'
                f'{marked}</td><td>{stood}</td><td>+{len(iteration.committed)}</td></tr>')
  head = '<thead><tr><th scope="col">{}</th></tr></thead>'.format
  columns = '</th><th scope="col">'.join
  return "\n".join([
      # JupyterLab leaves the arrow keys alone in it.
      '<table class="sd-lines" data-lm-suppress-shortcuts="true">',
      head(columns(["call", "draft", "stood", "added"])), "<tbody>", *rows, "</tbody></table>",
      "<details><summary>All numbers</summary>",
      '<table class="sd-numbers">',
      head(columns(["call", "id", "piece", "p", "q", "accept", "what became of it"])), "<tbody>",
      *_numbers(found), "</tbody></table></details>"])


def _numbers(found: Sequence[Sequence[Token]]) -> Iterator[str]:
  for number, mine in enumerate(found, 1):
    for token in mine:
      cells = [str(number), str(token.id), visible(token.piece).replace(" ", _BLANK),
               *map(probability, (token.p, token.q, token.accept)), token.words]
      yield f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in cells)}</tr>"


def _marked(token: Token, name: str, begins: bool) -> str:
  """A token with its numbers; the space before it stands outside of its mark."""
  text = visible(token.piece)
  bare = text.lstrip(" ")
  space = "" if begins else text[:len(text) - len(bare)]
  word = html.escape(bare or _BLANK)
  tag, _ = _KINDS[token.kind]
  numbers = "".join(
      f'<span class="sd-number"><span>{label} {probability(value)}</span>'
      f'<span class="sd-bar sd-{label}" style="--v:{_width(value)}"></span></span>'
      for label, value in (("p", token.p), ("q", token.q), ("accept", token.accept))
      if value is not None)
  return (f'{space}<{tag} class="sd-token sd-is-{token.kind}" tabindex="0" '
          f'aria-describedby="{name}">{word}'
          f'<span class="sd-tip" role="tooltip" dir="ltr" id="{name}" hidden>'
          f'<span class="sd-words">{html.escape(token.words)}</span>{numbers}</span></{tag}>')


def probability(value: float | None) -> str:
  """A probability in few digits; 0 and 1 are written so only when they are exact."""
  if value is None:
    return "-"
  if value in (0, 1) or not math.isfinite(value):
    return f"{value:g}"
  text = f"{value:.3f}" if value >= 0.001 else f"{value:.1e}"
  return ">0.999" if text == "1.000" else text


def _width(value: float) -> str:
  return f"{100 * min(max(value, 0.0), 1.0):.1f}%" if math.isfinite(value) else "0%"


def visible(text: str) -> str:
  """A text in one line that shows what it holds, and cannot turn the writing around."""
  def shown(c: str) -> str:
    if c in "\n\r\u2028\u2029":
      return "\u21b5"
    joins = c in "\u200c\u200d"  # Parts of a word or of an emoji.
    return "\ufffd" if unicodedata.category(c).startswith("C") and not joins else c

  return "".join(map(shown, text))


def _tail(text: str) -> str:
  """The end of a text, from a word on where there is one."""
  text = text.lstrip()
  if len(text) <= _BEFORE:
    return text
  text = text[-_BEFORE:]
  return "\u2026" + text[max(text.find(" "), 0):]


def _about(settings: Settings, about: str = "") -> str:
  several = lambda value: "by input" if isinstance(value, tuple) else f"{value:g}"
  parts = [about] if about else []
  if settings.effective_gamma == 0:
    parts.append("plain decoding")
  else:
    parts += [f"gamma {settings.gamma}", f"{settings.verifier} verification"]
    if not settings.lossless:
      parts.append(f"lenience {several(settings.lenience)}, NOT lossless")
  parts.append(f"temperature {several(settings.temperature)}")
  parts += [f"{name} {several(getattr(settings, name))}" for name in ("top_k", "top_p")
            if np.any(getattr(settings, name))]
  parts.append(f"seed {settings.seed}")
  line = html.escape(" \u00b7 ".join(parts))
  return f'<p class="sd-about">{line}</p>'


def _legend(settings: Settings | None) -> str:
  """What the marks mean."""
  samples = (("accepted", "accepted"), ("rejected", "rejected"), ("untested", "not looked at"),
             ("own", "the target's own"))
  marks = "".join(f'<li><{_KINDS[kind][0]} class="sd-token sd-is-{kind}">{words}'
                  f"</{_KINDS[kind][0]}></li>" for kind, words in samples)
  greedy = ""
  if settings is not None and np.all(np.asarray(settings.temperature) <= probs.MIN_TEMPERATURE):
    greedy = " At temperature 0, each is 1 for the likeliest token and 0 for the others."
  return (
      f'<div class="sd-legend"><ul>{marks}</ul>\n<p>A line is a call of the target: what stood '
      "before, the drafted tokens, and the token that the target adds. Point at a token, or go to "
      "it with Tab, for its numbers: p, its probability under the target; q, under the drafter; "
      f"accept, how likely it was to stand.{greedy} "
      '<span class="sd-keys" hidden><kbd>\u2191</kbd> <kbd>\u2193</kbd> go from call to call, '
      "<kbd>\u2190</kbd> <kbd>\u2192</kbd> from token to token.</span></p></div>")


@functools.cache
def _asset(name: str) -> str:
  return (_ASSETS / name).read_text(encoding="utf-8")


@functools.cache
def _style() -> str:
  """The style, in the colours of the figures."""
  variables = lambda palette: " ".join(f"--{name}: {palette[name]};" for name in _COLOURS)
  style = _asset("style.css").replace("LIGHT", variables(figures.LIGHT)).replace(
      "DARK", variables(figures.DARK))
  return f"<style>\n{style}</style>"
