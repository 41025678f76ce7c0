"""specdec distill: mistakes in one line, and each kind from texts to a drafter that drafts."""

import importlib.util
import json

import numpy as np
import pytest

from specdec.cli.main import run
from specdec.engine import heads as heads_lib
from specdec.engine import models
from specdec.engine import pairs
from specdec.errors import SpecdecError
from specdec.testing import tiny
from specdec.training import outputs
from specdec.training import runs

TEXTS = [text.removeprefix("correct: ") for text in tiny.SENTENCES]


@pytest.fixture(scope="session")
def spoken(tmp_path_factory):
  """A file of outputs: the target's, as lines of all the forms that are read."""
  pair, path = tiny.pair(), tmp_path_factory.mktemp("spoken") / "out.jsonl"
  sources = [pair.vocabulary.encode(tiny.TASKS["translate"] + text) for text in TEXTS]
  made = outputs.make(pair.target, sources, path, seed=0, temperature=1.0, batch_size=16,
                      max_decode_len=12)
  forms = (lambda i, s, o: [s, o], lambda i, s, o: {"source_ids": s, "output_ids": o},
           lambda i, s, o: {"input": TEXTS[i], "output_ids": o, "status": "eos"})
  path.write_text("".join(json.dumps(forms[i % 3](i, *example)) + "\n"
                          for i, example in enumerate(made)))
  return made, str(path)


def test_a_line_that_was_not_written_to_its_end_is_made_again(tmp_path):
  pair, path = tiny.pair(), tmp_path / "out.jsonl"
  sources = [pair.vocabulary.encode(text) for text in TEXTS[:3]]
  again = lambda: outputs.make(pair.target, sources, path, seed=0, temperature=1.0, batch_size=16,
                               max_decode_len=12)
  made, written = again(), path.read_bytes()
  path.write_bytes(written[:-3])
  assert again() == made and path.read_bytes() == written


def test_a_work_folder_that_does_not_say_of_what_run_it_is_is_refused(tmp_path):
  runs.claim(tmp_path, {"steps": 3})
  runs.claim(tmp_path, {"steps": 3})
  (tmp_path / "run.json").write_text("")
  with pytest.raises(SpecdecError, match=r"run.json is broken .*; remove the folder, or name"):
    runs.claim(tmp_path, {"steps": 3})
  (tmp_path / "run.json").unlink()
  (tmp_path / "latest").mkdir()
  with pytest.raises(SpecdecError, match=r"holds checkpoints, and no run.json"):
    runs.claim(tmp_path, {"steps": 3})


@pytest.fixture
def distil(capsys, saved_pair, tmp_path):
  """Runs `specdec distill` on the tiny pair: arguments -> code, stdout, stderr."""
  def call(*args, output="drafter"):
    code = run(["distill", f"--pair={saved_pair}", f"--output={tmp_path / output}",
                "--steps=4", "--every=2", "--batch_tokens=512", *map(str, args)])
    return code, *capsys.readouterr()
  return call


@pytest.mark.parametrize("args, expected", [
    ([], "expected one of --input_file=FILE, with texts for the target to decode, and"),
    (["--input_file=a", "--outputs_file=b"], "both is given"),
    (["--input_file=/nowhere"], "cannot read --input_file /nowhere"),
    (["--outputs_file=/nowhere"], "cannot read --outputs_file /nowhere"),
    (["--input_file=a", "A text."], "'A text.' stands alone"),
    (["--outputs_file=a", "--temperature=1"], "--temperature is about decoding texts"),
    (["--input_file=a", "--temperature=-1"], "temperature is -1"),
    (["--input_file=a", "--max_source_len=1"], "max_source_len is 1; expected an integer from 2"),
    (["--outputs_file=a", "--steps=0"], "steps is 0; expected an integer from 1"),
    (["--outputs_file=a", "--heads=4"], "add --kind=heads"),
    (["--outputs_file=a", "--kind=heads", "--heads=0"], "heads is 0"),
    (["--outputs_file=a", "--kind=heads", "--size=small"], "--size is about a small T5"),
    (["--outputs_file=a", "--kind=trees"], "expected one of transformer, heads"),
    (["--outputs_file=a", "--loss=l2"], "expected one of forward_kl, reverse_kl, tv, ce"),
    (["--outputs_file=a", "--on_policy=2"], "on_policy is 2; expected a share from 0 to 1"),
    (["--outputs_file=a", "--on_policy=0.5", "--loss=ce"], "only the target's distributions"),
    (["--outputs_file=a", "--learning_rate=-1"], "learning_rate is -1"),
    (["--outputs_file=a", "--learning_rate=nan"], "learning_rate is nan"),
    (["--outputs_file=a", "--init_from=b", "--size=small"], "--size does not go with --init_from"),
    (["--outputs_file=a", "--pair=demo", "--target=b"], "--pair does not go with --target"),
    (["--outputs_file=a", "--target=/nowhere"], "there is no folder /nowhere"),
])
def test_mistakes(mistake, tmp_path, args, expected):
  assert expected in mistake("distill", f"--output={tmp_path / 'new'}", *args)


def test_the_output_is_a_new_folder(mistake, tmp_path):
  assert "there is no --output" in mistake("distill", "--input_file=a")
  assert "exists; give a new folder" in mistake("distill", f"--output={tmp_path}")


def test_mistakes_in_files(mistake, saved_pair, tmp_path):
  def told(content, *args, pair=True):
    (tmp_path / "file").write_text(content)
    return mistake("distill", f"--output={tmp_path / 'new'}", *args,
                   *([f"--pair={saved_pair}"] * pair))

  lines = f"--outputs_file={tmp_path / 'file'}"
  assert "there are no different outputs of the target" in told("", lines)
  assert "there is 1 different output" in told("[[5, 1], [6, 1]]\n" * 3, lines)
  for wrong in ("{", "[[5, 1]]", '[["a"], [1]]', "[[], [1]]", '{"input": "a"}', "7",
                '{"input": 3, "output_ids": [1]}', "[[-1], [1]]"):
    assert "line 2 of" in told(f"[[5, 1], [6, 1]]\n{wrong}\n", lines)
    assert "is not an output; expected [source ids, output ids]" in told(wrong, lines)
  assert "ids beyond the 128 logits" in told("[[5, 1], [500]]", lines)
  assert "empty" in told("", f"--input_file={tmp_path / 'file'}")
  assert "there is no task 'sing'" in told("A text.", "--task=sing",
                                           f"--input_file={tmp_path / 'file'}")
  assert "the shape of the drafter is open; name a --size" in told(
      "A text.", f"--input_file={tmp_path / 'file'}", f"--target={saved_pair}/target",
      pair=False)


def test_without_optax_it_says_what_to_install(mistake, monkeypatch, tmp_path):
  find = importlib.util.find_spec
  monkeypatch.setattr(importlib.util, "find_spec",
                      lambda name, *rest: None if name == "optax" else find(name, *rest))
  (tmp_path / "in.txt").write_text("A text.\n")
  assert "pip install 'specdec-jax[train]'" in mistake(
      "distill", f"--input_file={tmp_path / 'in.txt'}", f"--output={tmp_path / 'new'}")


def test_a_small_t5_from_texts(distil, saved_pair, tmp_path, monkeypatch):
  (tmp_path / "in.txt").write_text("\n".join(TEXTS))
  args = (f"--input_file={tmp_path / 'in.txt'}", "--temperature=1", "--batch_size=16")
  code, out, err = distil(*args)
  assert code == 0, err
  assert "drafter: a T5 of 0.0" in out and "alpha 0." in out
  assert "step 2: loss" in err and "step 4: loss" in err
  pair = pairs.load_pair(target=f"{saved_pair}/target", drafter=tmp_path / "drafter")
  assert pair.drafter.model.config.emb_dim == 16
  # Once more, elsewhere: nothing is decoded again, nothing trained, and it is the same.
  monkeypatch.setattr(outputs.generate, "generate_ids", lambda *a, **k: pytest.fail("decoded"))
  code, again, err = distil(*args, f"--work_dir={tmp_path / 'drafter.train'}", output="again")
  assert code == 0 and "step" not in err
  assert again.split(": ")[1] == out.split(": ")[1]
  # From there on, with other settings; in the same work folder it is refused.
  code, _, err = distil(*args, "--steps=6", f"--work_dir={tmp_path / 'drafter.train'}",
                        output="third")
  assert code == 2 and "holds a run with other settings (steps 4, now 6)" in err


def test_a_small_t5_of_another_shape_from_outputs(distil, spoken, tmp_path):
  made, path = spoken
  assert outputs.read(path, tiny.vocabulary(), tiny.TASKS["translate"], 128, 128) == made
  code, _, err = distil(f"--outputs_file={path}", "--emb_dim=8",
                        "--learning_rate=0.01")
  assert code == 0, err
  model = models.load_model(tmp_path / "drafter")
  assert model.config.emb_dim == 8 and model.config.mlp_dim == 32
  code, _, err = distil(f"--outputs_file={path}", f"--init_from={tmp_path / 'drafter'}",
                          output="better")
  assert code == 0, err
  assert models.load_model(tmp_path / "better").config.emb_dim == 8


def test_heads_from_outputs(distil, spoken, saved_pair, tmp_path, mistake):
  _, path = spoken
  args = (f"--outputs_file={path}", "--kind=heads")
  code, out, err = distil(*args, "--heads=3")
  assert code == 0, err
  assert "drafter: 3 heads, alpha 0." in out
  drafter, params = heads_lib.load(tmp_path / "drafter", models.load_model(f"{saved_pair}/target"))
  assert drafter.max_gamma == 3 and np.asarray(params["heads"]["kernel"]).any()
  code, out, err = distil(*args, f"--init_from={tmp_path / 'drafter'}", output="better")
  assert code == 0 and "better: 3 heads" in out
  assert "trained for another target than" in mistake(
      "distill", f"--target={saved_pair}/drafter", *args,
      f"--init_from={tmp_path / 'drafter'}", f"--output={tmp_path / 'other'}")


@pytest.mark.parametrize("good", [3, 0])
def test_divergence_is_a_mistake_and_the_best_before_is_written(distil, spoken, tmp_path,
                                                                monkeypatch, good):
  update, calls = runs.update, []

  def diverging(objective, schedule, state, frozen, batch):
    calls.append(None)
    state, loss = update(objective, schedule, state, frozen, batch)
    return state, loss if len(calls) <= good else loss * np.nan

  monkeypatch.setattr(runs, "update", diverging)
  code, out, err = distil(f"--outputs_file={spoken[1]}")
  assert code == 2
  last = err.splitlines()[-1]
  if good:
    assert "the loss stopped being finite after step 2" in last
    assert "has the drafter of step 2" in last and "(it was 0.05)" in last
    assert models.load_model(tmp_path / "drafter").config.emb_dim == 16
  else:
    assert "within the first 2 updates; nothing was written: lower --learning_rate" in last
    assert out == "" and not (tmp_path / "drafter").exists()


def test_an_interrupted_run_says_how_to_go_on(distil, spoken, monkeypatch):
  monkeypatch.setattr(runs, "update", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
  code, _, err = distil(f"--outputs_file={spoken[1]}")
  assert code == 130
  assert err.startswith("specdec: interrupted; type the same command again to go on")
