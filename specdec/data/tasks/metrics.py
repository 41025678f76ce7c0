"""Metrics as T5 computes them: functions `(targets, predictions) -> {name: number}`.

The packages that they need are imported when one is computed, and `check` says beforehand
which is missing.
"""

from collections.abc import Callable
from collections.abc import Sequence
import importlib.util

import numpy as np

from specdec.errors import SpecdecError

Metric = Callable[[Sequence[str], Sequence[str]], dict[str, float]]

_ROUGE = ("rouge1", "rouge2", "rougeLsum")
_ROUGE_SEED = 0


def bleu(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
  """BLEU of a corpus in [0, 100], by sacrebleu with T5's settings.

  T5 takes sacrebleu's international tokenisation (`intl`) where sacrebleu's own default is
  `13a`: mind that when comparing.

  Args:
    targets: a reference per text.
    predictions: as many.
  """
  import sacrebleu

  score = sacrebleu.corpus_bleu(
      list(predictions), [list(targets)], smooth_method="exp", tokenize="intl",
      lowercase=False, force=False, use_effective_order=False)
  return {"bleu": float(score.score)}


def rouge(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
  """ROUGE-1, -2 and -Lsum, F-measures in [0, 100], as T5 has them.

  They are the medians of a bootstrap over texts. T5 leaves its draws to NumPy's global
  state; here they have a seed of their own, so that equal predictions have equal scores.
  Sentences are told apart by " . ", for ROUGE-Lsum. No stemming.

  Args:
    targets: a reference per text.
    predictions: as many.
  """
  from rouge_score import rouge_scorer
  from rouge_score import scoring

  scorer = rouge_scorer.RougeScorer(list(_ROUGE))
  aggregator = scoring.BootstrapAggregator()
  for target, prediction in zip(targets, predictions, strict=True):
    aggregator.add_scores(scorer.score(target=_sentences(target),
                                       prediction=_sentences(prediction)))
  state = np.random.get_state()
  np.random.seed(_ROUGE_SEED)
  try:
    result = aggregator.aggregate()
  finally:
    np.random.set_state(state)
  return {name: 100.0 * float(result[name].mid.fmeasure) for name in _ROUGE}


def sequence_accuracy(targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
  """The share of predictions that are the reference, letter by letter, in [0, 100]."""
  hits = [target == said for target, said in zip(targets, predictions, strict=True)]
  return {"sequence_accuracy": 100.0 * sum(hits) / max(len(hits), 1)}


METRICS: dict[str, Metric] = {
    "bleu": bleu, "rouge": rouge, "sequence_accuracy": sequence_accuracy}

_PACKAGES = {"bleu": "sacrebleu", "rouge": "rouge_score"}


def check(names: Sequence[str]) -> None:
  """Refuses metrics that there are not, or whose package is not installed.

  Raises:
    SpecdecError: see above.
  """
  for name in names:
    if name not in METRICS:
      raise SpecdecError(f"there is no metric {name!r}; expected some of {', '.join(METRICS)}")
    package = _PACKAGES.get(name)
    if package and importlib.util.find_spec(package) is None:
      raise SpecdecError(f"the metric {name} needs {package.replace('_', '-')}, which is not "
                         "installed; type: pip install 'specdec-jax[seqio]'")


def _sentences(text: str) -> str:
  return text.replace(" . ", " .\n")
