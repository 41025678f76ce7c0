"""The model of a T5X job, in place of `t5x.models.EncoderDecoderModel`."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from t5x import decoding
from t5x import models

from specdec.core import verify
from specdec.core.state import Method
from specdec.core.state import Weights
from specdec.engine import precision
from specdec.engine.settings import MAX_GAMMA
from specdec.engine.settings import each
from specdec.engine.settings import whole
from specdec.errors import SpecdecError
from specdec.integrations.t5x import bindings
from specdec.integrations.t5x import decode as decode_lib
from specdec.integrations.t5x import knobs
from specdec.integrations.t5x import target
from specdec.integrations.t5x.drafter import open_drafter

Array = jax.Array
PyTree = Any

# The lenient rule is left out: what T5X writes has no place to say that it is not lossless.
_VERIFIERS = tuple(name for name in verify.VERIFIERS if name != "lenient")


class SpeculativeModel(models.EncoderDecoderModel):
  """Decodes as a T5X model does that samples with `decoding.temperature_sample`, in fewer calls.

  It wraps the model that the job had: module, vocabularies, decoding function and whatever
  else is bound to that one stay as they are, parameters of `temperature_sample` and of
  `predict_batch_with_aux` included. Scoring and evaluation losses are the target's own.

  Args:
    baseline: the job's `models.EncoderDecoderModel`, the target.
    drafter_path: the folder of a smaller T5 with the target's pieces, in any layout that
      specdec reads; or "copy", "uniform".
    gamma: tokens drafted per target call, 0 to 64; 0 is the target alone.
    verifier: "token", "block" or "coupled".
    confidence: stop a draft where the drafter gives its likeliest token less; 0 is off.
    logits_fn: what `specdec.generate` takes, for `logit_callback_fn`: a function of (logits
      [N, V], ids [N, T], lengths [N]) that returns logits.
    report_counts: have `target_calls`, `drafted`, `tested` and `accepted` of each output
      among the auxiliary outputs, which mode `predict_with_aux` writes.

  Raises:
    SpecdecError: the baseline does not sample, or something is not supported.
  """

  def __init__(self, baseline: models.EncoderDecoderModel, drafter_path: str, gamma: int = 4,
               verifier: str = "token", confidence: float = 0.0, logits_fn: Any = None,
               report_counts: bool = False):
    _check_baseline(baseline)
    whole("SpeculativeModel.gamma", gamma, 0, MAX_GAMMA)
    each("SpeculativeModel.confidence", confidence, float, lambda v: 0 <= v <= 1,
         "a number from 0 to 1")
    if verifier not in _VERIFIERS:
      raise SpecdecError(f"SpeculativeModel.verifier is {verifier!r}; expected one of "
                         f"{', '.join(_VERIFIERS)}")
    target.dtype_of(baseline.module)
    self._baseline = baseline
    self.drafter = open_drafter(drafter_path)
    self._gamma, self._confidence = gamma, confidence
    self._verifier = verify.VERIFIERS[verifier]
    self._logits_fn, self._report_counts = logits_fn, report_counts
    super().__init__(
        module=baseline.module, input_vocabulary=baseline.input_vocabulary,
        output_vocabulary=baseline.output_vocabulary, optimizer_def=baseline.optimizer_def,
        decode_fn=baseline.decode_fn, feature_converter_cls=baseline.FEATURE_CONVERTER_CLS)
    # Read once here, so that a mistake is told before any weights are.
    self._call({})
    knobs.read(self._bound_knobs())

  @property
  def module(self) -> Any:
    """The target's network."""
    return self._baseline.module

  @module.setter
  def module(self, module: Any) -> None:
    self._baseline.module = module

  def get_initial_variables(self, *args: Any, **kwargs: Any) -> PyTree:
    """The target's; the drafter comes with `TrainStateInitializer`."""
    return self._baseline.get_initial_variables(*args, **kwargs)

  def loss_fn(self, params: PyTree, batch: Mapping[str, Any], dropout_rng: Array | None) -> Any:
    """The target's loss; arguments and result are `EncoderDecoderModel`'s."""
    if dropout_rng is not None:
      raise SpecdecError("SpeculativeModel decodes and is not trained: train its baseline")
    return self._baseline.loss_fn(target.without_drafter(params), batch, None)

  def eval_fn(self, params: PyTree, batch: Mapping[str, Any]) -> Any:
    """The target's metrics; arguments and result are `EncoderDecoderModel`'s."""
    return self._baseline.eval_fn(target.without_drafter(params), batch)

  def score_batch(self, params: PyTree, batch: Mapping[str, Any],
                  return_intermediates: bool = False) -> Any:
    """The target's scores; arguments and result are `EncoderDecoderModel`'s."""
    return self._baseline.score_batch(target.without_drafter(params), batch,
                                      return_intermediates)

  def predict_batch_with_aux(
      self, params: PyTree, batch: Mapping[str, Array], rng: Array | None = None,
      decoder_params: Mapping[str, Any] | None = None, return_all_decodes: bool | None = None,
      num_decodes: int | None = None, prompt_with_targets: bool | None = None,
  ) -> tuple[Array, dict[str, Array]]:
    """Decodes a batch; arguments and results are `EncoderDecoderModel`'s.

    Args:
      params: of the target, with the drafter's below "drafter".
      batch: `encoder_input_tokens` [B, S] and `decoder_input_tokens` [B, L].
      rng: key of the batch.
      decoder_params: of `temperature_sample`; these win over what is bound to it.
      return_all_decodes: all samples of each input, not the one of the highest score.
      num_decodes: samples per input.
      prompt_with_targets: outputs begin with the decoder's input, its EOS left out.

    Returns:
      Ids [B, L], or [B, num_decodes, L] by increasing score, and a dictionary with `scores`
      of shape [B] or [B, num_decodes].

    Raises:
      SpecdecError: something that is asked for is not supported; it is named.
    """
    call = self._call({
        "decoder_params": decoder_params, "return_all_decodes": return_all_decodes,
        "num_decodes": num_decodes, "prompt_with_targets": prompt_with_targets})
    packed = [name for name in batch if name.endswith(("_segment_ids", "_positions"))]
    if packed:
      raise SpecdecError(f"the batch has {packed[0]}, as packed examples do; expected one example "
                         "a row: DatasetConfig.pack = False")
    given = dict(call["decoder_params"] or {})
    if rng is not None and given.get("decode_rng") is not None:
      raise SpecdecError("there is a key in rng and another in decoder_params['decode_rng']; "
                         "expected one of them")
    key = given.pop("decode_rng", None)
    key = rng if rng is not None else key
    eos_id = given.pop("eos_id", self.output_vocabulary.eos_id or 1)
    prompts = None
    if call["prompt_with_targets"]:
      ids = batch["decoder_input_tokens"]
      prompts = jnp.where(ids == self.output_vocabulary.eos_id, 0, ids)
    request = decode_lib.Request(
        inputs=batch["encoder_input_tokens"], prompts=prompts,
        width=batch["decoder_input_tokens"].shape[1], num_decodes=call["num_decodes"],
        eos_id=eos_id, key=jax.random.key(0) if key is None else key,
        knobs=knobs.read(self._bound_knobs() | given), confidence=self._confidence,
        logits_fn=self._logits_fn)
    with precision.matmul_precision(target.dtype_of(self.module)):
      ids, scores, counts = decode_lib.decode(*self._prepare(params), request)
    aux = {"scores": scores, **(counts if self._report_counts else {})}
    if call["return_all_decodes"]:
      return ids, aux
    return ids[:, -1], {name: value[:, -1] for name, value in aux.items()}

  def _prepare(self, params: PyTree) -> tuple[Method, Weights]:
    """The method, and both models' weights out of the train state, within T5X's program."""
    scorer, weights = target.of(params, self.module)
    if not self._gamma:
      return Method(scorer), Weights(weights)
    if self.drafter.arrays and target.DRAFTER not in params:
      raise SpecdecError("the train state lacks the drafter's weights; expected evaluate."
                         "train_state_initializer_cls (or infer's) to be bound to @speculative."
                         "TrainStateInitializer, as gin/t5x/eval.gin and infer.gin do")
    drafter, draft_weights = self.drafter.ready(
        params.get(target.DRAFTER), scorer.vocab_size, scorer.config.dtype)
    return (Method(scorer, drafter, self._gamma, self._verifier),
            Weights(weights, draft_weights))

  def _bound_knobs(self) -> dict[str, Any]:
    return bindings.of(self._baseline.decode_fn, "decode_fn")

  def _call(self, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `predict_batch_with_aux`: given here, bound to the baseline's, defaults."""
    usual = self._baseline._default_decoder_params
    bound = bindings.of(type(self._baseline).predict_batch_with_aux, "predict_batch_with_aux")
    return {
        "decoder_params": None, "return_all_decodes": usual.return_all_decodes,
        "num_decodes": usual.num_decodes, "prompt_with_targets": False,
        **{name: value for name, value in {**bound, **given}.items() if value is not None}}


def _check_baseline(baseline: Any) -> None:
  if not isinstance(baseline, models.EncoderDecoderModel) or isinstance(
      baseline, SpeculativeModel):
    raise SpecdecError(f"SpeculativeModel.baseline is a {type(baseline).__name__}; expected a "
                       "t5x.models.EncoderDecoderModel")
  predict = bindings.bare(type(baseline).predict_batch_with_aux)
  if predict is not models.EncoderDecoderModel.predict_batch_with_aux:
    raise SpecdecError(f"{type(baseline).__name__} decodes in a way of its own (it overrides "
                       "predict_batch_with_aux); expected t5x.models.EncoderDecoderModel")
  sampler = bindings.bare(baseline.decode_fn)
  if sampler is not bindings.bare(decoding.temperature_sample):
    raise SpecdecError(
        f"the baseline decodes with {getattr(sampler, '__name__', sampler)}, and speculative "
        "decoding samples: add models.EncoderDecoderModel.decode_fn = "
        "@decoding.temperature_sample, and decoding.temperature_sample.temperature = 0.0 for "
        "greedy decoding")
