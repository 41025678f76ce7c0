"""Batches of a few fixed shapes out of sentences of any length."""

from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses

import numpy as np

Example = tuple[Sequence[int], Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Batch:
  """One training batch, padded with 0.

  Attributes:
    encoder_ids: int32 [B, L].
    decoder_ids: int32 [B, L], the targets shifted right by the start id 0.
    target_ids: int32 [B, L].
  """

  encoder_ids: np.ndarray
  decoder_ids: np.ndarray
  target_ids: np.ndarray

  def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return self.encoder_ids, self.decoder_ids, self.target_ids


def pad(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
  """Stacks rows of ids into int32 [len(rows), width], padded with 0."""
  out = np.zeros((len(rows), width), np.int32)
  for i, row in enumerate(rows):
    out[i, :len(row)] = row
  return out


def collate(examples: Sequence[Example], width: int) -> Batch:
  """Pads examples (source ids, target ids) to one width."""
  target = pad([t for _, t in examples], width)
  decoder = np.zeros_like(target)
  decoder[:, 1:] = target[:, :-1]
  return Batch(pad([s for s, _ in examples], width), decoder, target)


def bucketed(examples: Sequence[Example], tokens: int, rng: np.random.Generator,
             widths: Sequence[int] = (16, 24, 32, 48, 64)) -> Iterator[Batch]:
  """Yields shuffled batches of about `tokens` source plus target slots.

  Every width makes one shape, so a training step is compiled `len(widths)` times
  and no more. Examples longer than the last width, and the few that do not fill
  a last batch, are left out of this pass.

  Args:
    examples: pairs of source and target ids, both ending in EOS.
    tokens: slots of a batch, source and target together.
    rng: order of the examples and of the batches.
    widths: allowed sequence lengths, increasing.
  """
  members: dict[int, list[int]] = {w: [] for w in widths}
  for i in rng.permutation(len(examples)):
    longest = max(len(examples[i][0]), len(examples[i][1]))
    for width in widths:
      if longest <= width:
        members[width].append(int(i))
        break
  plan = []
  for width, ids in members.items():
    size = max(1, tokens // (2 * width))
    plan += [(width, ids[j:j + size]) for j in range(0, len(ids) - size + 1, size)]
  for k in rng.permutation(len(plan)):
    width, ids = plan[k]
    yield collate([examples[i] for i in ids], width)
