"""Pages of README and docs: their fenced blocks, and the commands in them."""

import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))

_FENCED = re.compile(r"^( *)```([^`\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
  """A fenced block.

  Attributes:
    page: its file.
    line: of its first fence, from 1.
    language: behind the fence; "" for none.
    text: between the fences.
    answers: nothing but blank lines stands between it and the block before.
  """

  page: pathlib.Path
  line: int
  language: str
  text: str
  answers: bool

  def __str__(self) -> str:
    return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: pathlib.Path, text: str | None = None) -> list[Block]:
  """The fenced blocks of a page, in order.

  Raises:
    ValueError: a fence is open at the end, or closes none.
  """
  text = page.read_text(encoding="utf-8") if text is None else text
  found, end = [], None
  for match in _FENCED.finditer(text):
    answers = end is not None and not text[end:match.start()].strip()
    found.append(Block(page, text.count("\n", 0, match.start()) + 1, match[2].strip(),
                       match[3], answers))
    end = match.end()
  if len(re.findall(r"^ *```", text, re.MULTILINE)) != 2 * len(found):
    raise ValueError(f"a block of {page} is not closed")
  return found


def commands(text: str) -> list[str]:
  """What a shell block has to type: lines that go on are joined, comments of their own gone."""
  lines = re.sub(r"\\\n\s*", " ", text).splitlines()
  return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def links(page: pathlib.Path) -> list[str]:
  """Targets of a page's links and pictures that are no addresses, outside of code."""
  text = _FENCED.sub("", page.read_text(encoding="utf-8"))
  text = re.sub(r"`[^`\n]*`", "", text)
  found = re.findall(r"\]\(([^()\s]+)\)", text)
  return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(page: pathlib.Path) -> set[str]:
  """What a link can name behind `#`: headings, and what the API page documents."""
  text = _FENCED.sub("", page.read_text(encoding="utf-8"))
  plain = [re.sub(r"[^\w\- ]", "", title.lower()).strip() for title in
           re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
  return {re.sub(r"[ \-]+", "-", title) for title in plain} | set(documented(page))


def documented(page: pathlib.Path) -> list[str]:
  """Names that an API page asks the docstrings of."""
  return re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
