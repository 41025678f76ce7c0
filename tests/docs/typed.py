"""Types what a page says, from top to bottom, in a folder of its own."""

import gzip
import importlib
import json
import pathlib
import re
import shlex
import shutil
from typing import Any

from specdec.checkpoints import bundle as bundle_lib
from specdec.cli import gin_files
from specdec.cli.main import COMMANDS
from specdec.cli.main import run
from specdec.data.vocabulary import Vocabulary
from specdec.testing import tiny
from tests.docs import pages
from tests.docs.pages import Block

# Everything else than these languages is typed.
SHOWN = ("text",)
LANGUAGES = ("python", "sh", "gin", "json", *SHOWN)

# Commands that the suite does not type, by how they begin, and why. Their flags, files, scripts
# and extras are checked to exist.
NOT_RUN = {
    r"pip install |python3 -m venv ": "changes the environment",
    r"mkdocs ": "tests/docs/test_site.py builds the site",
    r"scripts/(demo|test)\.sh": "makes an environment and takes minutes",
    r"(SPECDEC_.* )?scripts/reproduce\.sh": "measures for an hour or more",
    r"PYTHONPATH=\. python scripts/tpu_aot\.py": "compiles T5-XXL for minutes",
    r'python -c "import jax': "says what devices there are",
    r"(XLA_FLAGS|JAX_PLATFORMS)=\S+ specdec": "JAX of this process has started",
    r"specdec generate --mesh=data:4( |,model:2 )--input_file": "needs several devices",
    r"specdec infer .*--coordinator_address": "needs processes; tests/cli/test_cli_hosts.py",
    r"gcloud |srun ": "needs a cluster",
    r"python -m t5x\.|for size in |done$": "needs T5X, data and checkpoints; tests/integrations",
    r"git clone |export ": "needs a network",
    r"specdec generate --target=google/": "needs the hub; tests/checkpoints/test_hf.py",
    r"specdec plan --(device|target=xxl --drafter=small --(gamma=7|device=(h100|v4|v5e --mesh)))":
        "traces T5-XXL for many seconds; tests/cli/test_cli_plan.py",
    r"specdec generate --verifier=(block|lenient) ": "compiles; tests/core/test_lossless.py",
    r"specdec generate --drafter=copy:": "compiles; tests/drafters/test_cascade.py",
    r"specdec alpha --drafters=drafter,bigram,copy --temperature": "docs/paper.md has it, too",
    r"specdec warmup ": "compiles; tests/cli/test_cli_cache.py",
    r"specdec bench ": "measures for minutes; tests/bench",
    r"specdec tune ": "measures for minutes; tests/bench/test_tune.py",
    r"specdec distill ": "trains for minutes; tests/cli/test_cli_distill.py",
    r"specdec eval ": "TensorFlow takes seconds to import; tests/cli/test_cli_eval.py",
}


def reason(command: str) -> str | None:
  """Why a command is not typed; None for one that is."""
  return next((why for begins, why in NOT_RUN.items() if re.match(begins, command)), None)


class Reader:
  """Somebody who types a page.

  Args:
    folder: where; has what `prepare` puts there.
    output: gives what was printed since it was last called, as standard output and error.
  """

  def __init__(self, folder: pathlib.Path, output: Any):
    self._folder, self._output = folder, output
    self._names: dict[str, Any] = {}
    self.typed: list[str] = []

  def work_through(self, blocks: list[Block]) -> None:
    """Types all blocks, in order."""
    for i, block in enumerate(blocks):
      assert block.language in LANGUAGES, (
          f"{block} is of {block.language or 'no language'}; expected one of {LANGUAGES}")
      after = blocks[i + 1] if i + 1 < len(blocks) and blocks[i + 1].answers else None
      if block.language == "python":
        self._execute(block)
      elif block.language == "sh":
        mistake = after is not None and after.language == "text" and (
            after.text.startswith("specdec: "))
        self._type(block, after.text if mistake else None)
      elif block.language == "json":
        json.loads(block.text)
      elif block.language == "gin":
        self._keep_gin(block)

  def _execute(self, block: Block) -> None:
    # Snippets of a page go on where those before ended. Lines count as in the page.
    code = compile("\n" * block.line + block.text, str(block.page), "exec")
    exec(code, self._names)

  def _keep_gin(self, block: Block) -> None:
    """A block whose first line is a comment with a name is that file."""
    name = re.match(r"# (\S+\.gin)\n", block.text)
    assert name, f"{block} has no name; expected a first line such as # my.gin"
    (self._folder / name[1]).write_text(block.text, encoding="utf-8")
    gin_files.read([name[1]], [], ["Settings"])

  def _type(self, block: Block, mistake: str | None) -> None:
    """Types a block's commands; the last of them says `mistake`, if that is given."""
    commands = pages.commands(block.text)
    for command in commands:
      wanted = mistake if command == commands[-1] else None
      if reason(command) is not None:
        check(command, self._folder)
        if wanted:
          assert _is_of_the_code(wanted), f"{block}: nothing says {wanted}"
        continue
      words = shlex.split(command, comments=True)
      assert words[0] == "specdec", (
          f"{block} has {command!r}, which is no command of specdec; name it in "
          "tests/docs/typed.py, with the reason why it is not typed")
      self._output()
      code = run(words[1:])
      _, err = self._output()
      self.typed.append(command)
      if wanted is None:
        assert code == 0, f"{block}: {command}: {err}"
      else:
        assert code == 2 and matches(wanted, err), f"{block}: {command}: {err}"


def matches(told: str, found: str) -> bool:
  """Whether a page tells what was printed; three dots stand for anything."""
  one_line = lambda text: " ".join(text.split())
  pattern = ".*".join(re.escape(part) for part in one_line(told).split("..."))
  return re.fullmatch(pattern, one_line(found)) is not None


def _is_of_the_code(message: str) -> bool:
  begin = message.removeprefix("specdec: ").split("(")[0].strip()
  return any(begin in path.read_text(encoding="utf-8")
             for path in (pages.ROOT / "specdec").rglob("*.py"))


def check(command: str, folder: pathlib.Path) -> None:
  """Holds a command that is not typed to what can be known of it.

  Raises:
    AssertionError, SpecdecError: a flag, file, script or extra is not there.
  """
  words = shlex.split(command, comments=True)
  # A command within a word is one that another machine is to run.
  words = [part for word in words
           for part in (shlex.split(word.partition("=")[2]) if "=specdec " in word.replace(
               "= ", "=") else [word])]
  for word in words:
    if word.startswith("scripts/"):
      _check_script(word, words)
    if word.startswith(("gin/t5x/", "gin/finetune/", "--gin_file=gin/")):
      path = word.removeprefix("--gin_file=").replace("$size", "base")
      assert (pages.ROOT / path).exists(), f"{command!r} names {path}"
    extras = re.fullmatch(r"(\.|\./specdec|specdec-jax)\[([\w,]+)\]", word)
    for extra in extras[2].split(",") if extras else ():
      assert f'"{extra}":' in (pages.ROOT / "setup.py").read_text(), f"there is no extra {extra}"
  if "specdec" in words:
    _check_flags(words[words.index("specdec") + 1:], folder)


def _check_script(script: str, words: list[str]) -> None:
  path = pages.ROOT / script
  assert path.exists(), f"there is no {script}"
  for flag in re.findall(r"--(\w+)", " ".join(words)) if path.suffix == ".py" else ():
    assert f'"{flag}"' in path.read_text(encoding="utf-8"), f"{script} has no --{flag}"


def _check_flags(words: list[str], folder: pathlib.Path) -> None:
  name = words[0]
  flags = importlib.import_module(COMMANDS[name].module).make_flags()
  flags.parse(words[1:])
  for file in flags.gin_file if "gin_file" in flags.names() else ():
    assert (gin_files.folder() / file).exists() or (folder / file).exists() or (
        file == "tuned.gin"), f"there is no {file}"
  if name == "bench":
    from specdec.bench import peers
    from specdec.cli import bench

    assert bench.check(flags)
    assert set(flags.baseline) <= set(peers.NAMES)


def make_assets(folder: pathlib.Path) -> pathlib.Path:
  """The tiny pair under the name and with the drafters of the demo's; returns its folder."""
  demo = tiny.save(folder / "demo")
  (folder / "ids.jsonl").write_text("".join(
      json.dumps([*tiny.vocabulary().encode(text)]) + "\n" for text in tiny.SENTENCES))
  assert run(["ngram", "build", f"--target={demo / 'target'}", "--drafter=copy",
              f"--ids_file={folder / 'ids.jsonl'}", str(demo / "bigram")]) == 0
  about = json.loads((demo / "pair.json").read_text())
  (demo / "pair.json").write_text(json.dumps(
      {**about, "drafters": {"bigram": "bigram"}, "max_source_len": 32}))
  return demo


def prepare(folder: pathlib.Path, demo: pathlib.Path, page: pathlib.Path) -> None:
  """Puts the files into a folder that a page's reader has."""
  folder.mkdir()
  (folder / "in.txt").write_text("A small boat.\n", encoding="utf-8")
  (folder / "texts.txt").write_text("\n".join(tiny.SENTENCES[:4]) + "\n", encoding="utf-8")
  for name in ("test.en.gz", "test.de.gz"):
    (folder / name).write_bytes(gzip.compress(b"A boat.\nA cat.\n"))
  # What specdec tune writes, in short.
  (folder / "tuned.gin").write_text('Settings.gamma = 4\nload_pair.drafter = "drafter"\n')
  (folder / "spiece.model").write_bytes(tiny.vocabulary().model)
  if page.name in ("README.md", "checkpoints.md", "troubleshooting.md"):
    _add_t5x(folder, demo)
  if page.name == "t5x.md":
    shutil.copytree(demo, folder / "specdec" / "assets" / "demo")
  if page.name == "troubleshooting.md":
    _add_troubles(folder, demo)


def _add_t5x(folder: pathlib.Path, demo: pathlib.Path) -> None:
  """A checkpoint of T5X, which carries no vocabulary."""
  assert run(["convert", "--to=t5x", str(demo / "target"), str(folder / "t5x")]) == 0
  (folder / "t5x" / "checkpoint_0").rename(folder / "t5x" / "checkpoint_1000000")
  for file in [*(folder / "t5x").glob("*.model"), *(folder / "t5x").glob("tokenizer*")]:
    file.unlink()


def _add_troubles(folder: pathlib.Path, demo: pathlib.Path) -> None:
  """Models that are well, that say other pieces, and that a disk has damaged."""
  shutil.copytree(demo / "target", folder / "t5-base")
  assert run(["convert", "--to=hf", str(folder / "t5-base"), str(folder / "t5-base-hf")]) == 0
  pieces = Vocabulary(tiny.train_vocabulary(tiny.SENTENCES[::-1][:6], 80))
  shape = tiny.config()
  bundle_lib.save(folder / "other-pieces", bundle_lib.Bundle(
      shape.to_dict(), tiny.params(shape), pieces.model, pieces.fingerprint, "random"))
  shutil.copytree(demo / "target", folder / "damaged")
  largest = max((path for path in (folder / "damaged" / "params").rglob("*") if path.is_file()),
                key=lambda path: path.stat().st_size)
  content = bytearray(largest.read_bytes())
  content[len(content) // 2] ^= 1
  largest.write_bytes(content)
