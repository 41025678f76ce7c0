"""What generation returns."""

import dataclasses
from typing import Any

from specdec.engine.settings import Settings


@dataclasses.dataclass(frozen=True)
class Record:
  """One input and what became of it; a line of the output file.

  Attributes:
    input: the text as given, without the task's prefix.
    output: decoded text, up to the EOS.
    output_ids: generated ids, the EOS included when there was one.
    score: summed raw log-probability of `output_ids` under the target, in nats.
    status: "eos", "length" or "nan", see `specdec.types.Status`.
    target_calls: target calls this row took part in while it ran.
    drafted: tokens the drafter proposed.
    tested: proposed tokens the verifier looked at.
    accepted: proposed tokens that stand.
    truncated: the input was cut to the encoder limit.
    seed: of the run.
  """

  input: str
  output: str
  output_ids: list[int]
  score: float
  status: str
  target_calls: int
  drafted: int
  tested: int
  accepted: int
  truncated: bool
  seed: int

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready."""
    return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Result:
  """Records in input order, with totals.

  Attributes:
    records: one per input.
    settings: of the run.
    lossless: the outputs follow the target's own distribution.
  """

  records: tuple[Record, ...]
  settings: Settings
  lossless: bool = True

  @property
  def texts(self) -> list[str]:
    return [r.output for r in self.records]

  @property
  def ids(self) -> list[list[int]]:
    return [r.output_ids for r in self.records]

  @property
  def scores(self) -> list[float]:
    return [r.score for r in self.records]

  @property
  def statuses(self) -> list[str]:
    return [r.status for r in self.records]

  @property
  def tokens(self) -> int:
    """Generated tokens, EOS included."""
    return sum(len(r.output_ids) for r in self.records)

  @property
  def target_calls(self) -> int:
    """Target calls, counted per row."""
    return sum(r.target_calls for r in self.records)

  @property
  def drafted(self) -> int:
    return sum(r.drafted for r in self.records)

  @property
  def tested(self) -> int:
    return sum(r.tested for r in self.records)

  @property
  def accepted(self) -> int:
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
                   self.accepted)


def summary(outputs: int, tokens: int, target_calls: int, tested: int, accepted: int) -> str:
  """The totals of a run in one line."""
  alpha = f"alpha {accepted / tested:.3f}" if tested else "no drafts"
  per_call = tokens / target_calls if target_calls else 0.0
  return (f"{outputs} output{'s' * (outputs != 1)}, {tokens} tokens in {target_calls} target "
          f"calls ({per_call:.2f} per call, {alpha})")
