"""CTranslate2: a C++ inference engine, with float32 or int8 weights."""

import os
import pathlib
import tempfile
import time

import numpy as np

from specdec.bench.peers import hf
from specdec.bench.workload import Workload


class CTranslate2:
  """Greedy `translate_batch` of a model converted by CTranslate2's own converter.

  Args:
    workload: what is decoded.
    compute_type: "float32" or "int8".
  """

  def __init__(self, workload: Workload, compute_type: str):
    import ctranslate2

    self.name = "ctranslate2" if compute_type == "float32" else f"ctranslate2_{compute_type}"
    self.version, self.dtype = ctranslate2.__version__, compute_type
    self.ids: list[list[int]] = []
    with tempfile.TemporaryDirectory() as folder:
      converted = _convert(workload, pathlib.Path(folder), compute_type)
      self._translator = ctranslate2.Translator(
          str(converted), device="cpu", compute_type=compute_type, inter_threads=1,
          intra_threads=os.cpu_count() or 1)
    rows = [(row, n) for source in workload.sources for row, n in zip(
        np.asarray(source.ids), np.asarray(source.length), strict=True)]
    self._source = [[_token(i) for i in row[:n]] for row, n in rows]
    steps = workload.max_decode_len
    # It cannot do without an EOS, but a minimum length forbids it.
    self._options = dict(
        beam_size=1, max_decoding_length=steps, return_end_token=True,
        min_decoding_length=1 if workload.eos_ids else steps,
        max_batch_size=workload.batch_size, max_input_length=0)

  def whole(self) -> float:
    """Decodes the workload once; seconds that it took."""
    begin = time.perf_counter()
    results = self._translator.translate_batch(self._source, **self._options)
    seconds = time.perf_counter() - begin
    self.ids = [[int(token[1:]) for token in r.hypotheses[0]] for r in results]
    return seconds


def float32(workload: Workload) -> CTranslate2:
  """With weights as they are."""
  return CTranslate2(workload, "float32")


def int8(workload: Workload) -> CTranslate2:
  """With weights of 8 bits."""
  return CTranslate2(workload, "int8")


def _token(i: int) -> str:
  """A piece for an id: the converter wants a vocabulary, and random weights have none."""
  return f"t{i}"


def _convert(workload: Workload, folder: pathlib.Path, compute_type: str) -> pathlib.Path:
  """Lets CTranslate2's converter read the target as a Hugging Face model."""
  from ctranslate2 import converters
  import tokenizers
  import transformers

  model, out = hf.make_model(workload.target), folder / "converted"
  # The converter looks for a configuration and a vocabulary in a folder.
  model.config.save_pretrained(folder)
  pieces = {_token(i): i for i in range(workload.target.scorer.vocab_size)}
  words = tokenizers.Tokenizer(tokenizers.models.WordLevel(pieces, unk_token=_token(2)))
  transformers.PreTrainedTokenizerFast(
      tokenizer_object=words, pad_token=_token(0), eos_token=_token(1), unk_token=_token(2),
  ).save_pretrained(folder)

  class Converter(converters.TransformersConverter):

    def load_model(self, model_class, name, **options):
      # As it is in memory: reading it from a folder would tie its output layer.
      return model

  Converter(str(folder)).convert(str(out), quantization=compute_type)
  return out
