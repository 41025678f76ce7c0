"""A T5 pair small enough to build and decode in a second.

The weights are random, the vocabulary is trained on the sentences below. The
drafter is the target with noise on its weights, so that some of its drafts stand
and some do not.
"""

from collections.abc import Sequence
import functools
import io
import json
import pathlib

import jax
import numpy as np
import sentencepiece

from specdec.checkpoints import bundle as bundle_lib
from specdec.data.vocabulary import Vocabulary
from specdec.engine.models import make_model
from specdec.engine.pairs import Pair
from specdec.models.t5.config import T5Config
from specdec.models.t5.network import T5

TASKS = {"translate": "translate English to German: ", "correct": "correct: "}

SENTENCES = (
    "A small boat drifts along the quiet river.",
    "Two children are building a tower of wooden blocks.",
    "The baker opens her shop before the sun comes up.",
    "translate English to German: The cat sleeps on the warm stone wall.",
    "correct: The dogs is running over a wet field.",
    "Ein kleines Boot treibt auf dem stillen Fluss.",
    "Zwei Kinder bauen einen Turm aus Holz.",
    "Die Bäckerin öffnet ihren Laden, bevor die Sonne aufgeht.",
    "Die Katze schläft auf der warmen Mauer.",
    "Why does nobody answer the telephone?",
    "Quick foxes jump over lazy, very good hens; next week they stop.",
    "In 1987 the old bridge cost 25 pounds, and 364 people walked across it.",
)


@functools.cache
def vocabulary() -> Vocabulary:
  """A vocabulary of 120 pieces."""
  return Vocabulary(train_vocabulary(SENTENCES, 120))


def train_vocabulary(sentences: Sequence[str], size: int) -> bytes:
  """Bytes of a sentencepiece model with pad 0, EOS 1 and UNK 2."""
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(sentences), model_writer=model, vocab_size=size,
      model_type="unigram", character_coverage=1.0, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
      hard_vocab_limit=False, num_threads=1, minloglevel=2)
  return model.getvalue()


def config(**changes) -> T5Config:
  """A T5 v1.1 with one layer a side; its logits are wider than the vocabulary, as T5's are."""
  width = 8 * (len(vocabulary()) // 8 + 1)
  small = T5Config(vocab_size=width, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=32,
                   num_encoder_layers=1, num_decoder_layers=1)
  return small.replace(**changes)


def params(config: T5Config, seed: int = 0) -> dict:
  """Random parameters in T5X's layout; EOS is made likely enough to turn up."""
  ids, mask = np.ones((1, 4), np.int32), np.ones((1, 4), np.bool_)
  shapes = jax.eval_shape(T5(config).init, jax.random.key(0), ids, mask, ids)["params"]
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    if path[-1].key == "scale":
      return np.ones(leaf.shape, np.float32)
    fan_in = leaf.shape[0] if path[-1].key == "kernel" else 1
    return (rng.standard_normal(leaf.shape) / fan_in ** 0.5).astype(np.float32)

  # NumPy draws them, as compiling an initialiser takes longer than using it.
  tree = jax.tree_util.tree_map_with_path(draw, shapes)
  # Logits of a few units, as trained models have, instead of nearly equal ones.
  kernel = tree["decoder"]["logits_dense"]["kernel"]
  kernel *= 3.0
  kernel[:, 1] *= 2.0
  return tree


def perturbed(tree: dict, scale: float, seed: int = 0) -> dict:
  """The parameters with noise of `scale` times each array's own spread."""
  rng = np.random.default_rng(seed)
  noisy = lambda x: (x + scale * x.std() * rng.standard_normal(x.shape)).astype(x.dtype)
  return jax.tree.map(noisy, tree)


@functools.cache
def pair(noise: float = 0.1) -> Pair:
  """The pair in memory; shared, so do not change it.

  Args:
    noise: on the drafter's weights; 0 drafts what the target itself would say.
  """
  shape = config()
  target = params(shape)
  return Pair(
      "tiny", make_model("tiny/target", shape, target, vocabulary()),
      make_model("tiny/drafter", shape, perturbed(target, noise), vocabulary()),
      dict(TASKS), max_source_len=64, max_decode_len=12)


def save(path: str | pathlib.Path, noise: float = 0.1, **changes) -> pathlib.Path:
  """Writes the pair as a folder that `load_pair` reads.

  Args:
    path: the folder; must not exist yet.
    noise: see `pair`.
    **changes: of `config`.
  """
  path = pathlib.Path(path)
  shape = config(**changes)
  target = params(shape)
  for role, tree in (("target", target), ("drafter", perturbed(target, noise))):
    bundle_lib.save(path / role, bundle_lib.Bundle(
        shape.to_dict(), tree, vocabulary().model, vocabulary().fingerprint, "random"))
  about = {"target": "target", "drafter": "drafter", "tasks": TASKS,
           "max_source_len": 64, "max_decode_len": 12}
  (path / "pair.json").write_text(json.dumps(about), encoding="utf-8")
  return path
