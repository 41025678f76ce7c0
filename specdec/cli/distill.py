"""`specdec distill`: a drafter trained on what the target says."""

from collections.abc import Sequence
import os
import pathlib
import sys
from typing import TYPE_CHECKING
from typing import Any

from specdec.cli import compilation
from specdec.cli import faults
from specdec.cli import inputs as inputs_lib
from specdec.cli import progress
from specdec.cli.flags import Flags
from specdec.cli.outputs import print_line
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.engine.models import Model
  from specdec.engine.models import Opened
  from specdec.models.t5.config import T5Config
  from specdec.training.batches import Example
  from specdec.training.distill import Recipe
  from specdec.training.runs import Outcome

INTRO = """\
specdec distill: trains a drafter on the outputs and distributions of a target.

Usage
  specdec distill [FLAGS] --input_file=FILE --output=DIR
  specdec distill [FLAGS] --outputs_file=FILE --output=DIR

The target decodes the texts first, unless its outputs are there already. What is held
out of them tells alpha, the share of drafts that would stand when sampling; the drafter
of the highest alpha is written. A command that was stopped goes on where it was when it
is typed again. Training needs optax: pip install 'specdec-jax[train]'."""

OUTRO = """\
Examples
  specdec distill --input_file=in.txt --output=drafter
  specdec distill --target=flan-t5-large --size=tiny --input_file=in.txt --output=small
  specdec distill --outputs_file=out.jsonl --loss=tv --init_from=drafter --output=better
  specdec distill --kind=heads --heads=4 --outputs_file=out.jsonl --output=heads"""

_SHAPE = {"emb_dim": "width of the model", "num_heads": "attention heads",
          "head_dim": "width of one of them", "mlp_dim": "hidden width of the feed-forward block",
          "num_encoder_layers": "encoder layers", "num_decoder_layers": "decoder layers"}
_KINDS = ("transformer", "heads")
_LOSSES = ("forward_kl", "reverse_kl", "tv", "ce")


def make_flags() -> Flags:
  """The command's flags."""
  flags = Flags("distill", INTRO, OUTRO)
  flags.group("Target")
  flags.text("pair", "demo", "NAME|DIR", "pair of models whose target is drafted for: a name, or "
             "a folder with a pair.json")
  flags.text("target", None, "PATH", "the target alone, instead of a pair's: a folder of specdec, "
             "T5X or Hugging Face, or a name on its hub")
  flags.text("vocab", None, "FILE", "its vocabulary, where a T5X checkpoint carries none: "
             "spiece.model, tokenizer.json, a folder with one, or the word bytes")
  flags.text("task", None, "NAME", "task whose prefix goes before each text; none for no prefix "
             "[the pair's first]")
  flags.group("Texts")
  flags.text("input_file", None, "FILE", "texts to decode, UTF-8, one a line; - is standard input")
  flags.text("outputs_file", None, "FILE", "outputs of the target that are there already: what "
             "specdec generate --output_file wrote, or lines of JSON [source ids, output ids]")
  flags.number("temperature", 0.0, "at which the target decodes the texts; 0 takes the likeliest "
               "token")
  flags.whole("max_decode_len", None, "most tokens per output [the pair's]")
  flags.whole("max_source_len", None, "longer inputs are cut to so many tokens [the pair's]")
  flags.whole("batch_size", 32, "texts decoded together")
  flags.group("Drafter")
  flags.choice("kind", _KINDS, "transformer", "a small T5, or heads on the target's hidden states")
  flags.text("output", None, "DIR", "new folder for the drafter")
  flags.text("init_from", None, "DIR", "a drafter to start from instead of random weights")
  flags.text("size", None, "NAME", "shape of the small T5, one of configs/t5 such as small [that "
             "of the pair's drafter]")
  for name, meaning in _SHAPE.items():
    flags.whole(name, None, f"{meaning} [that shape's]")
  flags.whole("heads", 4, "tokens that heads can draft at once")
  flags.group("Training")
  flags.choice("loss", _LOSSES, "forward_kl", "distance to the target's distributions; tv is "
               "1 - alpha itself, ce looks at its tokens alone")
  flags.number("on_policy", 0.0, "share of the batches that the drafter samples itself and the "
               "target judges; 0 to 1")
  flags.whole("steps", 1000, "updates")
  flags.whole("batch_tokens", 4096, "tokens of a batch, sources and outputs together")
  flags.number("learning_rate", 0.0, "its peak; 0 is 0.05 for a small T5 with random "
               "weights, 0.01 for one to start from, and 0.002 for heads")
  flags.whole("seed", 0, "of initial weights, order and samples")
  flags.whole("every", 100, "updates between measurements of alpha; a run that is stopped loses "
              "no more")
  flags.whole("patience", 5, "stop after so many of them without a higher alpha; 0 never does")
  flags.text("work_dir", None, "DIR", "folder for the target's outputs and checkpoints [the "
             "output's name with .train]")
  compilation.add_flags(flags)
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command. What can be refused without the models is refused first."""
  _check(flags, args)
  texts = None
  if flags.input_file is not None:
    texts = inputs_lib.read((), flags.input_file).texts
  from specdec.training import extra

  extra.check()
  compilation.enable(flags)
  with faults.in_a_line("--batch_tokens, --batch_size or the shape of the drafter"):
    return _distill(flags, texts)


def _check(flags: Flags, args: Sequence[str]) -> None:
  """Refuses values out of range and flags that do not go together."""
  from specdec.engine.settings import Settings
  from specdec.engine.settings import whole

  if args:
    raise SpecdecError(f"{args[0]!r} stands alone; texts come from a file: --input_file=FILE")
  if flags.output is None:
    raise SpecdecError("there is no --output; name a new folder for the drafter: --output=DIR")
  if os.path.lexists(flags.output):
    raise SpecdecError(f"--output {flags.output} exists; give a new folder or remove it first")
  if (flags.input_file is None) == (flags.outputs_file is None):
    raise SpecdecError("expected one of --input_file=FILE, with texts for the target to decode, "
                       "and --outputs_file=FILE, with what it said; "
                       f"{'neither' if flags.input_file is None else 'both'} is given")
  if flags.target is not None and flags.given("pair"):
    raise SpecdecError("--pair does not go with --target; drop one of the two")
  if flags.outputs_file is not None:
    for name in ("temperature", "max_decode_len", "batch_size"):
      if flags.given(name):
        raise SpecdecError(f"--{name} is about decoding texts; --outputs_file has outputs already")
  for name, low, high in (
      ("steps", 1, 2**30), ("batch_tokens", 16, 2**24), ("every", 1, 2**30),
      ("patience", 0, 2**30), ("heads", 1, 64)):
    whole(name, getattr(flags, name), low, high)
  decoding = ("temperature", "batch_size", "seed", "max_decode_len", "max_source_len")
  Settings(**{name: getattr(flags, name) for name in decoding
              if getattr(flags, name) is not None})
  for name in _SHAPE:
    if getattr(flags, name) is not None:
      whole(name, getattr(flags, name), 1, 2**20)
  if not 0 <= flags.on_policy <= 1:
    raise SpecdecError(f"on_policy is {flags.on_policy:g}; expected a share from 0 to 1")
  if not 0 <= flags.learning_rate <= 10:
    raise SpecdecError(f"learning_rate is {flags.learning_rate:g}; expected a number from 0 to 10")
  if flags.on_policy and flags.loss == "ce":
    raise SpecdecError("--on_policy does not go with --loss=ce: what the drafter samples is no "
                       "example, only the target's distributions tell; try --loss=forward_kl")
  if flags.kind == "heads":
    for name in ("on_policy", "size", *_SHAPE):
      if flags.given(name):
        raise SpecdecError(f"--{name} is about a small T5; it does not go with --kind=heads")
  elif flags.given("heads"):
    raise SpecdecError("--heads is how many heads there are; add --kind=heads, or drop it "
                       "(--num_heads is about attention)")
  if flags.init_from is not None:
    for name in ("size", "heads", *_SHAPE):
      if flags.given(name):
        raise SpecdecError(f"--{name} does not go with --init_from: the shape is that of the "
                           "drafter to start from")


def _distill(flags: Flags, texts: list[str] | None) -> int:
  from specdec.engine import heads as heads_lib
  from specdec.training import distill

  target, about, shape = _target(flags)
  model = target.load()
  kind = (_SmallT5 if flags.kind == "transformer" else _Heads)(flags, target, model, shape)
  work = pathlib.Path(flags.work_dir or f"{flags.output.rstrip('/')}.train")
  recipe = distill.Recipe(
      steps=flags.steps, loss=flags.loss, on_policy=flags.on_policy,
      batch_tokens=flags.batch_tokens, seed=flags.seed, every=flags.every,
      patience=flags.patience, learning_rate=flags.learning_rate or kind.learning_rate)
  settings = {"kind": flags.kind, "target": heads_lib.fingerprint(model),
              "init_from": flags.init_from}
  try:
    with progress.steps() as bar:
      examples = _examples(flags, model, about, texts, work, bar)
      bar.begin("training", recipe.steps)
      outcome = kind.train(examples, recipe, work / "run", settings, report=bar.say_evaluation,
                           tick=bar.advance_to)
  except KeyboardInterrupt:
    raise KeyboardInterrupt(f"type the same command again to go on; what is done is in {work}"
                            ) from None
  advice = f"lower --learning_rate (it was {recipe.learning_rate:g})"
  if outcome.params is None:
    raise SpecdecError(f"the loss stopped being finite within the first {recipe.every} updates; "
                       f"nothing was written: {advice} and remove {work / 'run'}")
  source = (f"distilled from {model.name}, {recipe.loss}, {outcome.step} of {recipe.steps} "
            f"updates, alpha {outcome.alpha:.4f}")
  kind.save(flags.output, outcome.params, source)
  print_line(f"{flags.output}: {kind.described}, alpha {outcome.alpha:.4f} on held-out outputs "
             f"after {outcome.step} updates")
  if outcome.ended == "diverged":
    raise SpecdecError(f"the loss stopped being finite after step {outcome.last}; {flags.output} "
                       f"has the drafter of step {outcome.step}, the best before: {advice}, and "
                       "name another --work_dir, to train for longer")
  if outcome.ended == "patience":
    print(f"stopped at step {outcome.last}: alpha has not risen {flags.patience} times in a row "
          "(--patience)", file=sys.stderr)
  return 0


def _target(flags: Flags) -> tuple["Opened", dict[str, Any], "T5Config | None"]:
  """The target, what a pair file says of it, and the shape of the pair's drafter."""
  from specdec.engine import models
  from specdec.engine import pairs

  about: dict[str, Any] = {"tasks": {}, "max_source_len": 512, "max_decode_len": 128}
  if flags.target is not None:
    return models.open_model(flags.target, flags.vocab), about, None
  target, drafter, told = pairs.pair_target(flags.pair)
  shape = None
  if flags.kind == "transformer" and flags.size is None and flags.init_from is None:
    shape = models.open_model(drafter, flags.vocab, verify=False).config
  return models.open_model(target, flags.vocab), {**about, **told}, shape


class _SmallT5:
  """What is special about a small T5."""

  def __init__(self, flags: Flags, target: "Opened", model: "Model", shape: "T5Config | None"):
    from specdec.engine import models
    from specdec.engine.drafters import check_vocabularies
    from specdec.models.t5 import sizes
    from specdec.training import distill

    self._target, self._model, self._vocab, self._start = target, model, flags.vocab, None
    if flags.init_from is not None:
      start = models.open_model(flags.init_from, flags.vocab)
      check_vocabularies(model.name, model.vocabulary, start.name, start.vocabulary)
      self._start, shape = start, start.config
    elif flags.size is not None:
      shape = sizes.load(flags.size)
    changes = {name: getattr(flags, name) for name in _SHAPE if getattr(flags, name) is not None}
    if shape is None and len(changes) < len(_SHAPE):
      raise SpecdecError("the shape of the drafter is open; name a --size "
                         f"({', '.join(sizes.names())}), or --init_from=DIR, or all of "
                         f"{', '.join(f'--{name}' for name in _SHAPE)}")
    # Relative to the size of a parameter: what has learned something keeps it.
    self.learning_rate = 5e-2 if self._start is None else 1e-2
    shape = (shape or model.config).replace(**changes)
    if self._start is None:
      shape = shape.replace(vocab_size=model.config.vocab_size)
    self._config = distill.student_config(shape)

  @property
  def described(self) -> str:
    from specdec.models.t5 import weights

    return f"a T5 of {weights.count(self._config) / 1e6:.4g} million parameters"

  def train(self, examples: list["Example"], recipe: "Recipe", directory: pathlib.Path,
            settings: dict[str, Any], **callbacks: Any) -> "Outcome":
    from specdec.training import distill

    params = self._start and self._start.params()
    return distill.transformer(self._model, examples, self._config, recipe, directory, params,
                               settings, **callbacks)

  def save(self, path: str, params: Any, source: str) -> None:
    from specdec.checkpoints import bundle
    from specdec.checkpoints import vocabularies

    file = self._target.checkpoint.vocabulary
    if self._vocab is not None:
      file = vocabularies.given(self._vocab, self._model.config.vocab_size)
    bundle.save(path, bundle.Bundle(self._config.to_dict(), params, file,
                                    self._model.vocabulary.fingerprint if file else "", source))


class _Heads:
  """What is special about heads."""

  learning_rate = 2e-3

  def __init__(self, flags: Flags, target: "Opened", model: "Model", shape: None):
    from specdec.engine import heads as heads_lib

    self._model, self._params, self._num = model, None, flags.heads
    if flags.init_from is not None:
      drafter, params = heads_lib.load(flags.init_from, model)
      self._params, self._num = params["heads"], drafter.num_heads

  @property
  def described(self) -> str:
    return f"{self._num} heads"

  def train(self, examples: list["Example"], recipe: "Recipe", directory: pathlib.Path,
            settings: dict[str, Any], **callbacks: Any) -> "Outcome":
    from specdec.training import distill

    return distill.heads(self._model, examples, self._num, recipe, directory, self._params,
                         settings, **callbacks)

  def save(self, path: str, params: Any, source: str) -> None:
    from specdec.engine import heads as heads_lib

    heads_lib.save(path, self._model, params, source)


def _examples(flags: Flags, model: "Model", about: dict[str, Any], texts: list[str] | None,
              work: pathlib.Path, bar: "progress.Steps") -> list["Example"]:
  """The target's outputs, read or made."""
  from specdec.training import outputs
  from specdec.training import runs

  prefix = _prefix(flags, about["tasks"])
  longest = flags.max_source_len or about["max_source_len"]
  width = model.config.vocab_size
  if texts is None:
    return outputs.read(flags.outputs_file, model.vocabulary, prefix, longest, width)
  sources = []
  for text in texts:
    ids = model.vocabulary.encode(prefix + text)
    sources.append(ids if len(ids) <= longest else [*ids[:longest - 1], model.vocabulary.eos_id])
  settings = {"temperature": flags.temperature, "batch_size": flags.batch_size,
              "max_decode_len": flags.max_decode_len or about["max_decode_len"]}
  runs.claim(work / "outputs", {"target": model.name, "sources": runs.digest(sources),
                                "seed": flags.seed, **settings})
  bar.begin("decoding", len(sources))
  return outputs.make(model, sources, work / "outputs" / "outputs.jsonl", seed=flags.seed,
                      report=bar.advance_to, **settings)


def _prefix(flags: Flags, tasks: dict[str, str]) -> str:
  if flags.task == "none" or (flags.task is None and not tasks):
    return ""
  if flags.task is None:
    return next(iter(tasks.values()))
  if flags.task not in tasks:
    raise SpecdecError(f"there is no task {flags.task!r}; expected one of "
                       f"{', '.join([*tasks, 'none'])}")
  return tasks[flags.task]
