"""What README and docs tell a reader to type works."""

import re

import pytest

from specdec.engine import pairs
from tests.docs import pages
from tests.docs import typed

WITH_BLOCKS = [page for page in pages.PAGES if pages.blocks(page)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
  """The tiny pair in the place of the demo's: what is tested here is what pages say."""
  return typed.make_assets(tmp_path_factory.mktemp("assets"))


@pytest.fixture
def reader(demo, tmp_path, monkeypatch, capsys):
  """Makes somebody who types a page, in a folder of its own."""
  def make(page):
    folder = tmp_path / "folder"
    typed.prepare(folder, demo, page)
    monkeypatch.setattr(pairs, "ASSETS", demo.parent)
    monkeypatch.chdir(folder)
    return typed.Reader(folder, capsys.readouterr)
  return make


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: str(page.relative_to(pages.ROOT)))
def test_what_a_page_says_works_from_top_to_bottom(page, reader):
  reader(page).work_through(pages.blocks(page))


def test_every_reason_not_to_type_a_command_is_needed():
  commands = [command for page in WITH_BLOCKS for block in pages.blocks(page)
              if block.language == "sh" for command in pages.commands(block.text)]
  for begins in typed.NOT_RUN:
    assert any(re.match(begins, command) for command in commands), begins
  ours = [c for c in commands if c.startswith("specdec ")]
  assert sum(typed.reason(c) is None for c in ours) > len(ours) / 2


@pytest.mark.parametrize(("text", "told"), [
    ("```\nspecdec vocab a\n```\n", "no language"),
    ("```ruby\nputs 1\n```\n", "of ruby"),
    ("```sh\ncurl example.org\n```\n", "no command of specdec"),
    ("```sh\nspecdec vocab --gama=3 a\n```\n", "unknown flag --gama"),
    ("```sh\nspecdec bench --gama=3\n```\n", "unknown flag --gama"),
    ("```sh\npip install '.[nothing]'\n```\n", "no extra nothing"),
    ("```sh\nscripts/reproduce.shh\n```\n", "no scripts/reproduce.shh"),
    ("```sh\nspecdec vocab a\n```\n\n```text\nspecdec: no\n```\n", "specdec vocab a"),
    ("```sh\nspecdec vocab --gama=3 a\n```\n\n```text\nspecdec: no\n```\n", "unknown flag"),
    ("```python\nassert False, 'so wrong'\n```\n", "so wrong"),
])
def test_a_page_that_is_wrong_fails(text, told, reader):
  page = pages.DOCS / "wrong.md"
  with pytest.raises(Exception, match=told):
    reader(page).work_through(pages.blocks(page, text))


def test_blocks_of_output_belong_to_the_command_above_them():
  text = "```sh\na\n```\n\n```text\nb\n```\nwords\n```text\nc\n```\n"
  assert [b.answers for b in pages.blocks(pages.DOCS / "x.md", text)] == [False, True, False]
  with pytest.raises(ValueError, match="not closed"):
    pages.blocks(pages.DOCS / "x.md", "```sh\na\n")
  assert pages.commands("a \\\n  b  # c\n# d\n\ne\n") == ["a  b  # c", "e"]


def test_three_dots_stand_for_anything():
  assert typed.matches("specdec: a ... d", "specdec: a b c\n d")
  assert not typed.matches("specdec: a ... e", "specdec: a b c d")
