"""Batches of a few fixed shapes out of sentences of any length."""

import bisect
from collections.abc import Iterator
from collections.abc import Sequence
import dataclasses
import itertools

import numpy as np

Example = tuple[Sequence[int], Sequence[int]]


@dataclasses.dataclass(frozen=True)
class Batch:
  """One training batch, padded with 0.

  Attributes:
    encoder_ids: int32 [B, S].
    decoder_ids: int32 [B, T], the targets shifted right by the start id 0.
    target_ids: int32 [B, T].
  """

  encoder_ids: np.ndarray
  decoder_ids: np.ndarray
  target_ids: np.ndarray

  def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All three, in the order above."""
    return self.encoder_ids, self.decoder_ids, self.target_ids


def pad(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
  """Stacks rows of ids into int32 [len(rows), width], padded with 0."""
  out = np.zeros((len(rows), width), np.int32)
  for i, row in enumerate(rows):
    out[i, :len(row)] = row
  return out


def collate(examples: Sequence[Example], width: int, target_width: int | None = None) -> Batch:
  """Pads examples (source ids, target ids) to one width, or to one for each side."""
  target = pad([t for _, t in examples], target_width or width)
  return Batch(pad([s for s, _ in examples], width), shifted(target), target)


def shifted(target_ids: np.ndarray) -> np.ndarray:
  """Decoder inputs for targets: one place to the right, behind the start id 0."""
  decoder = np.zeros_like(target_ids)
  decoder[:, 1:] = target_ids[:, :-1]
  return decoder


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


_LADDER = [w for power in range(3, 20) for w in (2 << power, 3 << power)]


class Buckets:
  """Batches by step number: the same for every run that asks, whenever it asks.

  Examples are grouped by length in few groups, as every group is a shape that a training
  step is compiled for. None is left out.

  Args:
    examples: pairs of source and target ids, neither empty.
    tokens: slots of a batch, source and target together.
    seed: of the order.
  """

  def __init__(self, examples: Sequence[Example], tokens: int, seed: int = 0):
    self._examples, self._seed = examples, seed
    # How long targets are for their sources, all but the longest: both widths of a group
    # follow from one.
    ratio = float(np.quantile([len(t) / len(s) for s, t in examples], 0.95))
    fitting = lambda size: _LADDER[bisect.bisect_left(_LADDER, size)]
    groups: dict[int, list[int]] = {}
    for i, (source, target) in enumerate(examples):
      groups.setdefault(fitting(max(len(source), len(target) / ratio)), []).append(i)
    widths = sorted(groups)
    for narrow, wide in itertools.pairwise(widths):
      # A compilation costs more than the padding of a few.
      if len(groups[narrow]) < max(len(examples) / 12, tokens / (2 * narrow)):
        groups[wide] += groups.pop(narrow)
    self._groups = []
    for width, members in sorted(groups.items()):
      target_width = fitting(max(len(examples[i][1]) for i in members))
      rows = max(1, min(tokens // (width + target_width), len(members)))
      self._groups.append((width, target_width, rows, members))
    self._epoch: tuple[int, list[tuple[int, int, list[int]]]] = (-1, [])

  @property
  def per_epoch(self) -> int:
    """Steps in which every example is seen."""
    return sum(-(-len(members) // rows) for _, _, rows, members in self._groups)

  def batch(self, step: int) -> Batch:
    """The batch of a step, from 0."""
    epoch, place = divmod(step, self.per_epoch)
    if self._epoch[0] != epoch:
      self._epoch = epoch, self._shuffled(np.random.default_rng((self._seed, epoch)))
    width, target_width, members = self._epoch[1][place]
    return collate([self._examples[i] for i in members], width, target_width)

  def _shuffled(self, rng: np.random.Generator) -> list[tuple[int, int, list[int]]]:
    plan = []
    for width, target_width, rows, members in self._groups:
      order = rng.permutation(members).tolist()
      # The last batch is filled up with the first examples.
      plan += [(width, target_width, (order[j:] + order)[:rows])
               for j in range(0, len(order), rows)]
    return [plan[i] for i in rng.permutation(len(plan))]

  def once(self) -> Iterator[Batch]:
    """Every example exactly once; the last batches are filled with empty rows."""
    for width, target_width, rows, members in self._groups:
      for j in range(0, len(members), rows):
        chosen = [self._examples[i] for i in members[j:j + rows]]
        yield collate(chosen + [((), ())] * (rows - len(chosen)), width, target_width)
