"""A plain installation: decoding works, and whatever needs more names the extra.

Everything that extras bring is made impossible to import, in a process of its own.
"""

import json
import subprocess
import sys

import pytest

BLOCKED = ("tensorflow", "tensorflow_datasets", "seqio", "torch", "transformers", "matplotlib",
           "safetensors", "tokenizers", "huggingface_hub", "optax", "sacrebleu", "rouge_score",
           "scipy", "ctranslate2", "t5x", "libtpu", "hypothesis", "pandas")

PROGRAM = f"""
import io, json, contextlib, sys

class Without:
  # Finds nothing of what is blocked.

  def __init__(self, finder):
    self.finder = finder

  def find_spec(self, name, path=None, target=None):
    blocked = name.split(".")[0] in {BLOCKED!r}
    return None if blocked else self.finder.find_spec(name, path, target)

  def __getattr__(self, name):
    return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
from specdec.cli.main import run

found = []
for args in json.loads(sys.argv[1]):
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    code = run(args)
  found.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory, saved_pair):
  """What became of several commands: exit code, standard output and standard error of each."""
  folder = tmp_path_factory.mktemp("plain")
  (folder / "in.txt").write_text("A boat.\n")
  (folder / "in.tsv").write_text("A boat.\tEin Boot.\n")
  (folder / "hf").mkdir()
  (folder / "hf" / "config.json").write_text(json.dumps({
      "model_type": "t5", "vocab_size": 40, "d_model": 8, "num_heads": 2, "d_kv": 4, "d_ff": 12,
      "num_layers": 1}))
  (folder / "hf" / "model.safetensors").write_bytes(b"x")
  (folder / "bin").mkdir()
  (folder / "bin" / "config.json").write_bytes((folder / "hf" / "config.json").read_bytes())
  (folder / "bin" / "pytorch_model.bin").write_bytes(b"x")
  (folder / "tokenizer.json").write_text("{}")
  common = [f"--pair={saved_pair}", "--task=none", "--max_decode_len=4", "--mode=plain"]
  commands = {
      "generate": ["generate", *common, "A boat."],
      "infer": ["infer", *common, f"--input_file={folder / 'in.txt'}",
                f"--output_dir={folder / 'out'}"],
      "warmup": ["warmup", *common, "--widths=16"],
      "gin": ["generate", *common, "--gin_bindings=Settings.seed = 3", "A boat."],
      "vocab": ["vocab", f"--pair={saved_pair}", "A boat."],
      "inspect": ["inspect", f"{saved_pair}/target"],
      "theory": ["theory", "--alpha=0.8", "--c=0.05"],
      "table": ["table", "expected"],
      "eval": ["eval", f"--pair={saved_pair}", f"--data_file={folder / 'in.tsv'}"],
      "infer seqio": ["infer", f"--pair={saved_pair}", "--seqio_task=ende",
                      f"--output_dir={folder / 'seqio'}"],
      "safetensors": ["inspect", str(folder / "hf")],
      "torch": ["inspect", str(folder / "bin")],
      "hub": ["inspect", "google/flan-t5-small"],
      "tokenizer": ["vocab", f"--target={saved_pair}/target", "--drafter=copy",
                    f"--vocab={folder / 'tokenizer.json'}", "A boat."],
      "figure": ["figure", "1", f"--output={folder / 'figures'}"],
      "distill": ["distill", f"--pair={saved_pair}", f"--input_file={folder / 'in.txt'}",
                  f"--output={folder / 'drafter'}"],
      "bench hf": ["bench", "--target_size=tiny", "--drafter_size=copy", "--baseline=hf"],
      "bench ctranslate2": ["bench", "--target_size=tiny", "--drafter_size=copy",
                            "--baseline=ctranslate2"],
  }
  done = subprocess.run([sys.executable, "-c", PROGRAM, json.dumps(list(commands.values()))],
                        capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return dict(zip(commands, json.loads(done.stdout.splitlines()[-1])))


@pytest.mark.parametrize("name", ["generate", "infer", "warmup", "gin", "vocab", "inspect",
                                  "theory", "table"])
def test_what_needs_no_extra_works_without_any(found, name):
  code, out, err = found[name]
  assert code == 0, err
  assert out or name == "infer"


@pytest.mark.parametrize("name, extra", [
    ("eval", "seqio"), ("infer seqio", "seqio"), ("safetensors", "hf"), ("torch", "torch"),
    ("hub", "hf"), ("tokenizer", "hf"), ("figure", "plots"), ("distill", "train"),
    ("bench hf", "bench"), ("bench ctranslate2", "bench")])
def test_what_needs_an_extra_names_it(found, name, extra):
  code, out, err = found[name]
  assert (code, out, err.count("\n")) == (2, "", 1), err
  assert f"specdec-jax[{extra}]" in err, err
