"""A workload whose arrays all differ in their number of elements, so that a compiled
program tells them apart."""

import dataclasses

from specdec.bench import workload as workload_lib
from specdec.bench.workload import Part
from specdec.bench.workload import Workload
from specdec.models.t5.config import T5Config
from specdec.models.t5.scorer import T5Scorer

VOCAB, GAMMA, MAX_LEN = 211, 2, 19
TARGET = T5Config(vocab_size=VOCAB, emb_dim=44, num_heads=3, head_dim=20, mlp_dim=52,
                  num_encoder_layers=1, num_decoder_layers=1)
DRAFTER = TARGET.replace(emb_dim=28, num_heads=2, head_dim=12, mlp_dim=36)


def part(config: T5Config, seed: int = 0, **scorer) -> Part:
  made = T5Scorer(config, **scorer)
  params = workload_lib.random_params(config, seed)
  return Part(f"width {config.emb_dim}", made, made.prepare(params))


def workload(batch_size: int = 1, **changes) -> Workload:
  """Random weights and inputs; `changes` replace fields."""
  made = Workload(part(TARGET), part(DRAFTER, 1),
                  workload_lib.random_source(batch_size, 7, VOCAB, 0), (), GAMMA, MAX_LEN,
                  random=True)
  return dataclasses.replace(made, **changes)
