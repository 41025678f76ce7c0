"""`specdec bench`: its screen and its mistakes."""

import json

import pytest

from specdec.bench import peers
from specdec.cli.main import run

SMALL = ("--pair=tiny", "--task=none", "--gamma=1", "--max_decode_len=4", "--repeats=1")


def test_a_pair_on_a_text(memory_pair, monkeypatch, tmp_path, capsys):
  from specdec.bench import memory

  readers = memory.readers
  monkeypatch.setattr(memory, "readers", lambda size: readers(2**20))
  path = tmp_path / "record.json"
  assert run(["bench", *SMALL, f"--json={path}", "A small boat."]) == 0
  shown = capsys.readouterr().out
  for words in ("target call, 2 tokens", "loop overhead", "memory read", "paper's formula",
                "rows as in plain decoding", "1 of 1", "measured: "):
    assert words in shown
  assert json.loads(path.read_text())["target"] == "tiny/target"


def test_several_batch_sizes(memory_pair, capsys):
  assert run(["bench", *SMALL, "--source_len=4", "--batch_size=1,2"]) == 0
  shown = capsys.readouterr().out
  assert "plain tokens/s" in shown and "2, 2" in shown


@pytest.mark.parametrize("args, expected", [
    (["--gamma=0"], "gamma is 0; expected an integer from 1 to 64"),
    (["--batch_size=0"], "--batch_size is '0'; expected integers from 1"),
    (["--batch_size=1,x"], "--batch_size is '1,x'; expected integers from 1"),
    (["--alphas=1.5"], "--alphas is '1.5'; expected numbers from 0 to 1"),
    (["--repeats=0"], "repeats is 0"),
    (["--source_len=0"], "source_len is 0"),
    (["--max_decode_len=1"], "max_decode_len is 1; expected an integer from 2"),
    (["--target_size=huge"], "there is no T5 size 'huge'; expected one of base, large"),
    (["--pair=demo", "--target_size=base"], "--pair does not go with --target_size"),
    (["--pair=nowhere"], "there is no pair 'nowhere'"),
    (["A text."], "texts need a model that knows words; add --pair"),
    (["--task=translate"], "--task belongs to --pair"),
    (["--baseline=vllm"], "there is no baseline 'vllm'; expected one of t5x, hf"),
    (["--batch_size=1,2", "--baseline=hf"], "--baseline goes with a single --batch_size"),
    (["--json=/nowhere/x.json"], "there is no folder /nowhere"),
])
def test_mistakes(mistake, args, expected):
  assert expected in mistake("bench", *args)


def test_a_baseline_that_is_not_installed(mistake, monkeypatch):
  monkeypatch.setattr(peers, "_installed", lambda package: False)
  assert "git clone" in mistake("bench", "--baseline=t5x")
  assert "pip install torch" in mistake("bench", "--baseline=hf")
