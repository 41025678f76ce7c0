"""What generation returns."""

import dataclasses
from typing import Any

import numpy as np

from specdec.engine.costs import Costs
from specdec.engine.settings import Settings
from specdec.engine.shown import Shown
from specdec.engine.traces import Iterations


@dataclasses.dataclass(frozen=True)
class Record(Shown):
  """One input and what became of it; a line of the output file.

  Attributes:
    index: place of the input in the data, from 0.
    sample: which of the input's samples, from 0; decides the random streams.
    input: the text as given, without the task's prefix.
    output: decoded text up to the EOS, the prompt included.
    output_ids: ids of the prompt and those generated, the EOS included when there was
      one.
    prompt_tokens: how many of them are the prompt's.
    score: summed log-probability of the generated ids under the target itself, in
      nats: before controls, temperature and filters.
    adjusted_score: the same under the distribution that was sampled from, after them;
      0 when greedy. T5X's scores with `rescale_log_probs`.
    status: "eos", "length", "nan" or "forbidden", see `specdec.types.Status`.
    target_calls: target calls this row took part in while it ran.
    drafted: tokens the drafter proposed.
    tested: proposed tokens the verifier looked at.
    accepted: proposed tokens that stand.
    truncated: the input was cut to the encoder limit.
    seed: of the run.
    lossless: it follows the target's own distribution.
    trace: each target call, when it was asked for.
  """

  index: int
  sample: int
  input: str
  output: str
  output_ids: list[int]
  prompt_tokens: int
  score: float
  adjusted_score: float
  status: str
  target_calls: int
  drafted: int
  tested: int
  accepted: int
  truncated: bool
  seed: int
  lossless: bool = True
  trace: Iterations | None = None

  @property
  def num_generated(self) -> int:
    """Generated tokens, EOS included, the prompt not."""
    return len(self.output_ids) - self.prompt_tokens

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready; without `trace` when there is none."""
    fields = dataclasses.asdict(dataclasses.replace(self, trace=None))
    del fields["trace"]
    if self.trace is not None:
      fields["trace"] = tuple(iteration.to_dict() for iteration in self.trace)
    return fields


@dataclasses.dataclass(frozen=True)
class Result(Shown):
  """Records in input order, with totals.

  `texts`, `ids`, `scores` and `statuses` are those of the best sample per input.

  Attributes:
    records: `num_decodes` per input, next to each other, by increasing score.
    settings: of the run.
    costs: what automatic gamma went by; None with a fixed one. The same costs and
      settings give the same outputs again.
  """

  records: tuple[Record, ...]
  settings: Settings
  costs: Costs | None = None

  @property
  def lossless(self) -> bool:
    """The outputs follow the target's own distribution: all do but a lenient verifier's."""
    return self.settings.lossless

  @property
  def best(self) -> tuple[Record, ...]:
    """The last record of each input, which has the highest score."""
    copies = self.settings.num_decodes
    return self.records[copies - 1::copies]

  @property
  def texts(self) -> list[str]:
    """The best output of each input, in their order."""
    return [r.output for r in self.best]

  @property
  def ids(self) -> list[list[int]]:
    """Ids of these outputs, without the start id."""
    return [r.output_ids for r in self.best]

  @property
  def scores(self) -> list[float]:
    """Their log-probabilities under the target, nats."""
    return [r.score for r in self.best]

  @property
  def statuses(self) -> list[str]:
    """How each of them ended, as `Status.label` has it."""
    return [r.status for r in self.best]

  @property
  def decodes(self) -> np.ndarray:
    """All samples as T5X returns them: int32 [inputs, num_decodes, L], zeros at the end."""
    copies = self.settings.num_decodes
    width = max((len(r.output_ids) for r in self.records), default=0)
    out = np.zeros((len(self.records), width), np.int32)
    for row, record in zip(out, self.records):
      row[:len(record.output_ids)] = record.output_ids
    return out.reshape((len(self.records) // copies, copies, width))

  @property
  def decode_scores(self) -> np.ndarray:
    """Scores of `decodes`, float32 [inputs, num_decodes], increasing in each row.

    Raw ones, or adjusted ones under `rescale_log_probs`.
    """
    adjusted = self.settings.rescale_log_probs
    scores = [r.adjusted_score if adjusted else r.score for r in self.records]
    copies = self.settings.num_decodes
    return np.asarray(scores, np.float32).reshape((len(scores) // copies, copies))

  @property
  def tokens(self) -> int:
    """Generated tokens of all samples, EOS included."""
    return sum(r.num_generated for r in self.records)

  @property
  def target_calls(self) -> int:
    """Target calls, counted per row."""
    return sum(r.target_calls for r in self.records)

  @property
  def drafted(self) -> int:
    """Tokens proposed, of all records."""
    return sum(r.drafted for r in self.records)

  @property
  def tested(self) -> int:
    """Proposed tokens that the verifier looked at."""
    return sum(r.tested for r in self.records)

  @property
  def accepted(self) -> int:
    """Proposed tokens that stand."""
    return sum(r.accepted for r in self.records)

  @property
  def alpha(self) -> float | None:
    """Share of tested draft tokens that were accepted; None when none was tested.

    Drafts behind a rejection are never tested, so this is higher than accepted
    over drafted, and it is the paper's alpha.
    """
    return self.accepted / self.tested if self.tested else None

  @property
  def tokens_per_call(self) -> float:
    """Tokens per target call, between 1 and gamma + 1 (less where rows ended by NaN)."""
    return self.tokens / self.target_calls if self.target_calls else 0.0

  def __str__(self) -> str:
    return summary(len(self.records), self.tokens, self.target_calls, self.tested,
                   self.accepted, self.lossless)


def summary(outputs: int, tokens: int, target_calls: int, tested: int, accepted: int,
            lossless: bool = True) -> str:
  """The totals of a run in one line."""
  alpha = f"alpha {accepted / tested:.3f}" if tested else "no drafts"
  per_call = tokens / target_calls if target_calls else 0.0
  return (f"{outputs} output{'s' * (outputs != 1)}, {tokens} tokens in {target_calls} target "
          f"calls ({per_call:.2f} per call, {alpha})" + ("" if lossless else "; NOT lossless"))
