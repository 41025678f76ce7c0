"""The notebooks run from top to bottom, in a fresh kernel and far from the checkout; git keeps
them without what they printed."""

import json
import pathlib

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "scripts" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def read(name: str) -> dict:
  return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


@pytest.fixture
def executed(tmp_path, monkeypatch):
  """Runs a notebook: name -> its cells by id, with outputs."""
  import nbclient
  import nbformat

  # Nothing of the reader's own settings, and nothing left in a home.
  for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR",
                   "MPLCONFIGDIR"):
    (tmp_path / variable).mkdir()
    monkeypatch.setenv(variable, str(tmp_path / variable))
  folder = tmp_path / "work"
  folder.mkdir()

  def run(name: str) -> dict[str, dict]:
    book = nbformat.reads(json.dumps(read(name)), as_version=4)
    nbformat.validate(book)
    nbclient.NotebookClient(book, timeout=900, kernel_name="python3",
                            resources={"metadata": {"path": str(folder)}}).execute()
    return {cell["id"]: cell for cell in book.cells}

  return run


def printed(cell: dict) -> str:
  return "".join(o["text"] for o in cell["outputs"] if o.get("name") == "stdout")


def shown(cell: dict, kind: str) -> list[str]:
  """What a cell displayed, of a MIME type."""
  return ["".join(o["data"][kind]) for o in cell["outputs"] if kind in o.get("data", {})]


def test_there_are_notebooks():
  assert NAMES == ["quickstart", "reproduce"]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_kept_without_what_it_printed(name):
  cells = read(name)["cells"]
  assert len({cell["id"] for cell in cells}) == len(cells)
  for cell in cells:
    assert cell["metadata"] == {}
    if cell["cell_type"] == "code":
      assert cell["outputs"] == [] and cell["execution_count"] is None, cell["id"]


def test_the_quickstart_runs(executed):
  cells = executed("quickstart")
  assert not any(o["output_type"] == "error" for c in cells.values() for o in c.get("outputs", []))
  assert not printed(cells["install"])  # Nothing is installed where specdec is.
  assert printed(cells["stream"]).count("|") > 2
  html, = shown(cells["trace"], "text/html")
  assert "sd-lines" in html and "sd-is-rejected" in html
  timed = printed(cells["time"]).splitlines()
  assert len(timed) == 4 and all(line.endswith("same text: True") for line in timed)
  assert "the best gamma is" in printed(cells["theory"])
  drafted = printed(cells["drafters"]).splitlines()
  assert len(drafted) == 3 and all(line.endswith("same text: True") for line in drafted)
  for plotted in ("theory", "drafters"):
    assert len(shown(cells[plotted], "image/png")) == 1


def test_the_paper_is_reproduced(executed):
  from specdec.analysis import figures
  from specdec.analysis import tables

  cells = executed("reproduce")
  assert "speed-up: 3.20x" in printed(cells["theory"])
  assert shown(cells["tables"], "text/markdown") == [
      tables.build(name).markdown() for name in tables.NAMES]
  assert len(shown(cells["figures"], "image/svg+xml")) == len(figures.NAMES)
  assert printed(cells["alpha"]).count("alpha 0.") == 2
  assert "here: demo/target" in shown(cells["record"], "text/markdown")[0]
  predicted, counted = (float(word.rstrip(",")) for word in printed(cells["check"]).split()
                        if word[0].isdigit())
  assert abs(predicted - counted) < 1
