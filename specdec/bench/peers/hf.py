"""Hugging Face transformers: `T5ForConditionalGeneration.generate` in PyTorch."""

from collections.abc import Mapping
import os
import time
from typing import Any

import numpy as np

from specdec.bench.workload import Part
from specdec.bench.workload import Workload
from specdec.checkpoints import mapping
from specdec.errors import SpecdecError
from specdec.models.t5 import weights as weights_lib
from specdec.models.t5.config import T5Config

# The feed-forward kinds that T5 has, by our activations.
_FEED_FORWARD = {("gelu", "linear"): "gated-gelu", ("relu",): "relu"}


class HuggingFace:
  """Greedy `generate` with the encoder's output and the key-value cache reused."""

  name = "hf"

  def __init__(self, workload: Workload):
    import torch
    import transformers

    self.version = f"{transformers.__version__}, torch {torch.__version__}"
    self.dtype = workload.dtype
    self.ids: list[list[int]] = []
    torch.set_num_threads(os.cpu_count() or 1)
    self._torch = torch
    self._model = self._ready(workload.target, workload)
    steps = workload.max_decode_len
    self._eos = workload.eos_ids[0] if workload.eos_ids else None
    self._config = transformers.GenerationConfig(
        max_new_tokens=steps, do_sample=False, num_beams=1, decoder_start_token_id=0,
        pad_token_id=0, eos_token_id=self._eos, use_cache=True)
    self._sources = [dict(input_ids=torch.tensor(np.asarray(source.ids)).long(),
                          attention_mask=torch.tensor(np.asarray(source.mask)).long())
                     for source in workload.sources]
    self._options: dict[str, Any] = {}

  def _ready(self, part: Part, workload: Workload) -> Any:
    return make_model(part).to(getattr(self._torch, workload.dtype)).eval()

  def whole(self) -> float:
    """Decodes the workload once; seconds that it took."""
    begin = time.perf_counter()
    with self._torch.inference_mode():
      out = [self._model.generate(**source, generation_config=self._config, **self._options)
             for source in self._sources]
    seconds = time.perf_counter() - begin
    rows = [row for batch in out for row in batch[:, 1:].tolist()]  # Without the start id.
    eos = self._eos
    self.ids = [row[:row.index(eos) + 1] if eos in row else row for row in rows]
    return seconds


class Assisted(HuggingFace):
  """The same with assisted generation: the drafter as its assistant model, batch 1.

  It drafts as many tokens as our side, in every iteration.

  Raises:
    SpecdecError: the batch is larger, or the drafter is no T5.
  """

  name = "hf_assisted"

  def __init__(self, workload: Workload):
    if workload.batch_size != 1:
      raise SpecdecError(f"--batch_size is {workload.batch_size}; assisted generation of "
                         "transformers decodes one row at a time: expected 1")
    if workload.drafter.part is None:
      raise SpecdecError(f"the drafter {workload.drafter.name} is no T5, and assisted generation "
                         "of transformers wants a model; expected a T5 as the drafter")
    super().__init__(workload)
    assistant = self._ready(workload.drafter.part, workload)
    assistant.generation_config.num_assistant_tokens = workload.gamma
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0
    self._options = {"assistant_model": assistant}


def make_model(part: Part) -> Any:
  """A float32 `T5ForConditionalGeneration` with a model's weights.

  Raises:
    SpecdecError: the feed-forward block is of a kind that transformers' T5 lacks.
  """
  import torch
  import transformers

  config = part.scorer.config
  kind = _FEED_FORWARD.get(config.mlp_activations)
  if kind is None:
    raise SpecdecError(f"transformers has no T5 with the activations {config.mlp_activations}; "
                       f"expected one of {', '.join(map(str, _FEED_FORWARD))}")
  about = transformers.T5Config(
      vocab_size=config.vocab_size, d_model=config.emb_dim, d_kv=config.head_dim,
      d_ff=config.mlp_dim, num_layers=config.num_encoder_layers,
      num_decoder_layers=config.num_decoder_layers, num_heads=config.num_heads,
      relative_attention_num_buckets=config.relpos_num_buckets,
      relative_attention_max_distance=config.relpos_max_distance, dropout_rate=0.0,
      layer_norm_epsilon=config.layer_norm_epsilon, feed_forward_proj=kind,
      tie_word_embeddings=config.scaled_logits, decoder_start_token_id=0,
      pad_token_id=0, eos_token_id=1)
  with torch.device("meta"):
    model = transformers.T5ForConditionalGeneration(about)
  # transformers 5 ties the output layer whatever it is told, and takes what it is told as
  # whether to scale: an output layer of its own again, and a flag that says as much.
  model.config.tie_word_embeddings = config.scaled_logits
  model.lm_head = torch.nn.Linear(config.emb_dim, config.vocab_size, bias=False, device="meta")
  state = {name: torch.from_numpy(array) for name, array in _state(part, config).items()}
  missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
  if missing or unexpected:
    raise SpecdecError(f"transformers' T5 has other parameters: missing {missing[:3]}, "
                       f"unexpected {unexpected[:3]}")
  return model


def _state(part: Part, config: T5Config) -> Mapping[str, np.ndarray]:
  """A model's parameters under Hugging Face's names, second names included."""
  params = weights_lib.restore(part.weights, config)
  out = {}
  for name, place in mapping.hf_table(config.to_dict()).items():
    node = params
    for part in name.split("/"):
      node = node[part]
    array = np.array(node, np.float32)  # Writable, as PyTorch wants it.
    out[place.name] = np.ascontiguousarray(array.T) if place.transposed else array
  for name in mapping.HF_EMBEDDINGS:
    out[name] = out[mapping.HF_EMBEDDINGS[0]]
  out.setdefault(mapping.HF_OUTPUT, out[mapping.HF_EMBEDDINGS[0]])
  return out
