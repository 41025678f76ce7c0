"""The site: its links, its navigation, its figures, its tables, and that it builds."""

import importlib
import importlib.util
import re
import subprocess
import sys

import pytest
import yaml

import specdec
from specdec.bench import tables
from specdec.errors import SpecdecError
from tests.docs import pages

NAMED = [*pages.PAGES, pages.ROOT / "CONTRIBUTING.md"]


def relative(page):
  return str(page.relative_to(pages.ROOT))


@pytest.mark.parametrize("page", NAMED, ids=relative)
def test_every_link_leads_somewhere(page):
  for target in pages.links(page):
    path, _, anchor = target.partition("#")
    to = (page.parent / path).resolve() if path else page
    assert to.exists(), f"{target} is not there"
    if page.is_relative_to(pages.DOCS):
      # The site has nothing else.
      assert to.is_relative_to(pages.DOCS), f"{target} is not on the site"
    if anchor:
      assert anchor in pages.anchors(to), f"{target}: {relative(to)} has no such heading"


def _settings():
  return yaml.safe_load((pages.ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def _leaves(nav):
  for entry in nav:
    if isinstance(entry, dict):
      (entry,) = entry.values()
    yield from _leaves(entry) if isinstance(entry, list) else [entry]


def test_every_page_is_in_the_navigation():
  listed = list(_leaves(_settings()["nav"]))
  assert sorted(listed) == sorted(str(p.relative_to(pages.DOCS)) for p in pages.PAGES[1:])
  text = (pages.DOCS / "notes" / "README.md").read_text(encoding="utf-8")
  for note in (pages.DOCS / "notes").glob("0*.md"):
    assert f"]({note.name})" in text, f"notes/README.md does not list {note.name}"


def test_the_reference_names_all_that_is_public_and_nothing_else():
  names = pages.documented(pages.DOCS / "api.md")
  assert len(names) == len(set(names))
  for name in names:
    module, _, attribute = name.rpartition(".")
    try:
      found = importlib.import_module(name)
    except ImportError:
      found = getattr(importlib.import_module(module), attribute)
    assert found.__doc__, f"{name} has no docstring"
  public = {name for name in specdec.__all__ if not name.startswith("_")}
  assert {f"specdec.{name}" for name in public} == {
      name for name in names if name.count(".") == 1}


def test_tables_are_those_of_the_records():
  shown = []
  for name in tables.PAGES:
    text = (pages.ROOT / name).read_text(encoding="utf-8")
    assert tables.insert(text) == text, f"{name}: run scripts/readme_tables.py"
    shown += tables.names(text)
  assert sorted(shown) == ["bench", "drafter", "summary"]
  marked = [page for page in pages.PAGES if "tables: scripts/" in page.read_text(encoding="utf-8")]
  assert sorted(map(relative, marked)) == sorted(tables.PAGES)


def test_a_marker_without_the_other_is_told():
  text = (pages.DOCS / "speed.md").read_text(encoding="utf-8")
  with pytest.raises(SpecdecError, match="expected one line '<!-- bench tables"):
    tables.insert(text.replace(tables.END.format("bench"), ""))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
  """The figures as `specdec figure` draws them today."""
  pytest.importorskip("matplotlib")
  from specdec.cli.main import run

  folder = tmp_path_factory.mktemp("figures")
  assert run(["figure", "1", "2", "3", "4", "5", f"--output={folder}"]) == 0
  return folder


def _content(svg):
  """What a drawing says and how much of what is in it; not how a version of matplotlib wrote it."""
  return re.findall(r"<!-- (.*?) -->", svg), len(re.findall(r"<path ", svg))


def test_figures_are_those_that_the_command_draws(drawn):
  shipped = sorted((pages.DOCS / "figures").glob("*.svg"))
  assert [path.name for path in shipped] == sorted(path.name for path in drawn.glob("*.svg"))
  for path in shipped:
    ours, theirs = (_content(p.read_text(encoding="utf-8")) for p in (path, drawn / path.name))
    assert ours[0] and ours == theirs, (
        f"{path.name} is out of date: specdec figure 1 2 3 4 5 --output=docs/figures --overwrite")


@pytest.mark.skipif(any(importlib.util.find_spec(name) is None for name in (
    "mkdocs", "material", "mkdocstrings_handlers")), reason="the extra docs is not installed")
def test_the_site_builds_without_a_warning(tmp_path):
  done = subprocess.run(
      [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
      cwd=pages.ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  api = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
  for name in specdec.__all__:
    assert name.startswith("_") or f'id="specdec.{name}"' in api, name
