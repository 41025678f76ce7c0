"""A job: checked settings and tokenised inputs, planned as batches of few shapes.

Shapes are bucketed, so that inputs of many lengths share a few compiled programs:
the source width is a power of two from 16 up, the batch a power of two or
`batch_size` itself, the prompt width a power of two. An input's result depends on
none of them.
"""

from collections.abc import Iterable
from collections.abc import Sequence
import dataclasses
import inspect
from typing import Any

import jax
import numpy as np

from specdec.core import controls
from specdec.engine import mesh as mesh_lib
from specdec.engine import prompts as prompts_lib
from specdec.engine.costs import Costs
from specdec.engine.models import id_rows
from specdec.engine.pairs import Pair
from specdec.engine.settings import PER_ROW
from specdec.engine.settings import SORTED
from specdec.engine.settings import Settings
from specdec.errors import InputError
from specdec.errors import SpecdecError

# Inputs looked at together when batches of like length are formed, and inputs that one
# refilled batch takes in before it ends and another, perhaps of another width, begins.
_WINDOW_BATCHES, _QUEUED_BATCHES = 16, 64


@dataclasses.dataclass(frozen=True)
class Encoded:
  """One input in ids.

  Attributes:
    ids: for the encoder, EOS included.
    truncated: they had to be cut to the source limit.
    prompt: what the output begins with.
    begin: place of the first id of the text itself, behind a task's prefix.
  """

  ids: list[int]
  truncated: bool
  prompt: list[int] = dataclasses.field(default_factory=list)
  begin: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
  """What is to be decoded, how, and with what.

  Attributes:
    pair: target and drafter.
    settings: of the run.
    texts: as given; empty texts where ids were.
    encoded: of each text.
    logits_fn: see `core.controls.adjust`; None for none.
    trace: keep what happened in every iteration.
    costs: what automatic gamma goes by; measured on the first batch when None.
    places: of the inputs in the data they are part of, which random streams and records go
      by; from 0 on when None.
  """

  pair: Pair
  settings: Settings
  texts: list[str]
  encoded: list[Encoded]
  logits_fn: Any = None
  trace: bool = False
  costs: Costs | None = None
  places: Sequence[int] | None = None

  def __post_init__(self):
    for name in PER_ROW:
      self.settings.per_row(name, len(self.encoded))
    if self.settings.paced and self.costs and self.costs.sizes[-1] > self.pair.max_gamma:
      raise SpecdecError(f"Costs.sizes holds {self.costs.sizes[-1]}; expected at most "
                         f"{self.pair.max_gamma}, which is how many tokens the drafter "
                         f"{self.pair.drafter.name} can draft; measure costs for it")

  def place(self, example: int) -> int:
    """Place in the data of an input of this job."""
    return example if self.places is None else self.places[example]

  @property
  def largest_gamma(self) -> int:
    """The most tokens that any iteration drafts; 0 in plain mode."""
    if not self.settings.paced:
      return self.settings.effective_gamma
    return self.costs.sizes[-1]

  @property
  def eos_ids(self) -> tuple[int, ...]:
    """The ids that end a row."""
    return eos_ids(self.pair, self.settings)


def eos_ids(pair: Pair, settings: Settings) -> tuple[int, ...]:
  """The ids that end a row: those of the settings, or the vocabulary's."""
  return (pair.vocabulary.eos_id,) if settings.eos_ids is None else tuple(settings.eos_ids)


def from_texts(pair: Pair, texts: str | Iterable[str], task: str | None, settings: dict[str, Any],
               prompt: Any = None, **options: Any) -> Job:
  """A job for texts behind a task's prefix.

  Args:
    pair: target and drafter.
    texts: one text or several.
    task: None for the pair's first task, "" for no prefix.
    settings: fields of `Settings`.
    prompt: text or ids that every output begins with, or one such per input.
    **options: `logits_fn`, `trace`, `costs` and `places` of the job.

  Raises:
    SpecdecError: a setting is out of range, the task is unknown, an input is too long
      under `strict_length`, or a prompt does not fit.
  """
  checked = make_settings(pair, settings)
  texts = _as_texts(texts)
  prefix = _task_prefix(pair, task)
  rows = [pair.vocabulary.encode(prefix + text) for text in texts]
  # Without the EOS.
  before = pair.vocabulary.encode(prefix)[:-1] if prefix else []
  return _job(pair, checked, texts, rows, prompt, options, before)


def from_ids(pair: Pair, encoder_ids: Any, settings: dict[str, Any], prompt: Any = None,
             **options: Any) -> Job:
  """A job for rows of encoder ids; see `from_texts`."""
  checked = make_settings(pair, settings)
  rows = [row.tolist() for row in id_rows(encoder_ids, pair.vocabulary)]
  return _job(pair, checked, [""] * len(rows), rows, prompt, options)


def _job(pair: Pair, settings: Settings, texts: list[str], rows: list[list[int]], prompt: Any,
         options: dict[str, Any], prefix: Sequence[int] = ()) -> Job:
  if settings.refills and pair.target.mesh is not None:
    raise SpecdecError("batching is 'refill' and the models lie on a mesh, whose rows each belong "
                       "to a device; expected batching sorted or arrival, or no mesh")
  prompts = prompts_lib.encode(prompt, len(rows), pair.vocabulary,
                               pair.target.scorer.vocab_size, eos_ids(pair, settings),
                               settings.max_decode_len)
  encoded = [_cut(row, i, pair, settings, p, _shared(prefix, row))
             for i, (row, p) in enumerate(zip(rows, prompts))]
  options["logits_fn"] = as_pytree(options.get("logits_fn"))
  if options["logits_fn"] is not None:
    _try(options["logits_fn"], pair.target.scorer.vocab_size)
  return Job(pair, settings, texts, encoded, **options)


def as_pytree(logits_fn: Any) -> Any:
  """A hook in the form that compiled programs take: a callable whose arrays are leaves.

  Pytrees (a `flax.struct.dataclass`, say) are that already. A function without captured
  variables and a frozen dataclass become static arguments, compared by equality.

  Raises:
    SpecdecError: it is something else.
  """
  if logits_fn is None:
    return None
  if not callable(logits_fn):
    raise SpecdecError(f"logits_fn is {type(logits_fn).__name__}; expected a callable "
                       "(logits, ids, lengths) -> logits")
  if not jax.tree_util.all_leaves([logits_fn]):
    for leaf in jax.tree.leaves(logits_fn):
      if not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float):
        raise SpecdecError(f"logits_fn {type(logits_fn).__name__} holds {type(leaf).__name__}; "
                           "expected arrays, and other fields marked as no pytree nodes")
    return logits_fn
  function = inspect.isfunction(logits_fn) and not logits_fn.__closure__
  frozen = (dataclasses.is_dataclass(logits_fn) and not isinstance(logits_fn, type)
            and logits_fn.__dataclass_params__.frozen)
  if not function and not frozen:
    # What is compared by identity may change behind a program that was compiled with it.
    raise SpecdecError(f"logits_fn {getattr(logits_fn, '__name__', type(logits_fn).__name__)} "
                       "is neither a function of its arguments alone nor a frozen dataclass; "
                       "make it a flax.struct.dataclass with what it needs as fields")
  try:
    hash(logits_fn)
  except TypeError:
    raise SpecdecError(f"logits_fn {type(logits_fn).__name__} cannot be hashed; make it a "
                       "flax.struct.dataclass, whose arrays are arguments") from None
  return jax.tree_util.Partial(logits_fn)


def _try(logits_fn: Any, width: int) -> None:
  """Traces the hook once on its own, so that its mistakes are told at once."""
  of = lambda dtype, *shape: jax.ShapeDtypeStruct((2, *shape), dtype)
  jax.eval_shape(controls.call, logits_fn, of(np.float32, width), of(np.int32, 8), of(np.int32))


def _as_texts(texts: str | Iterable[str]) -> list[str]:
  """A list of texts out of one text or any iterable of texts."""
  if isinstance(texts, str):
    return [texts]
  if not isinstance(texts, Iterable) or isinstance(texts, bytes):
    raise SpecdecError(f"the input is {type(texts).__name__}; expected a text or several")
  texts = list(texts)
  for i, text in enumerate(texts):
    if not isinstance(text, str):
      raise InputError(i, f"is {type(text).__name__}; expected text")
  return texts


def make_settings(pair: Pair, settings: dict[str, Any]) -> Settings:
  """Fills in the pair's defaults and checks names and values.

  Raises:
    SpecdecError: a setting is unknown or out of range.
  """
  known = {f.name for f in dataclasses.fields(Settings)}
  unknown = sorted(set(settings) - known)
  if unknown:
    raise SpecdecError(f"unknown setting {', '.join(unknown)}; expected some of "
                       f"{', '.join(sorted(known))}")
  defaults = {"max_decode_len": pair.max_decode_len, "max_source_len": pair.max_source_len,
              "gamma": min(Settings.gamma, pair.max_gamma)}
  checked = Settings(**{**defaults, **settings})
  if not checked.paced and checked.effective_gamma > pair.max_gamma:
    raise SpecdecError(f"gamma is {checked.gamma}; expected at most {pair.max_gamma}, which is "
                       f"how many tokens the drafter {pair.drafter.name} can draft")
  width = pair.target.scorer.vocab_size
  for name, ids in (("eos_ids", checked.eos_ids or ()),
                    ("forbidden_ids", [i for i, _, _ in checked.forbidden])):
    beyond = [i for i in ids if i >= width]
    if beyond:
      raise SpecdecError(f"{name} holds {beyond[0]}; expected ids below the {width} logits of "
                         f"{pair.target.name}")
  return checked


def _task_prefix(pair: Pair, task: str | None) -> str:
  if task == "" or (task is None and not pair.tasks):
    return ""
  if task is None:
    return next(iter(pair.tasks.values()))
  if task not in pair.tasks:
    listed = ", ".join(pair.tasks) or "none"
    raise SpecdecError(f"pair {pair.name!r} has no task {task!r}; it has: {listed}")
  return pair.tasks[task]


def _shared(prefix: Sequence[int], row: Sequence[int]) -> int:
  """How many ids of a row are those of the prefix: a piece may cover the end of the one and
  the beginning of the text."""
  same = [a == b for a, b in zip(prefix, row)]
  return same.index(False) if False in same else len(same)


def _cut(ids: list[int], index: int, pair: Pair, settings: Settings, prompt: list[int],
         begin: int) -> Encoded:
  """Cuts ids to the source limit, keeping the EOS at the end."""
  limit = settings.max_source_len
  if len(ids) <= limit:
    return Encoded(ids, False, prompt, begin)
  if settings.strict_length:
    raise InputError(index, f"has {len(ids)} tokens; expected at most {limit}: shorten it, "
                     "raise max_source_len, or allow cutting without strict_length")
  return Encoded([*ids[:limit - 1], pair.vocabulary.eos_id], True, prompt,
                 min(begin, limit - 1))


@dataclasses.dataclass(frozen=True)
class Batch:
  """Inputs that are decoded together, or that a refilled batch takes in one after the other.

  Attributes:
    example_ids: place of each input in the job.
    size: inputs of the compiled program; at least as many as there are, unless refilled.
  """

  example_ids: list[int]
  size: int


def plan(job: Job, in_order: bool = False) -> list[list[Batch]]:
  """Windows of batches, formed as `Settings.batching` says.

  Args:
    job: all inputs.
    in_order: in the order of the inputs, whatever the settings say.
  """
  encoded, settings = job.encoded, job.settings
  count = len(encoded)
  # A last batch that is not full is padded to the size of the others, so that it
  # needs no program of its own.
  size = min(power_of_two(min(settings.batch_size, max(count, 1)), 1), settings.batch_size)
  # Devices take as many rows each; those that only fill the batch never run.
  multiple = mesh_lib.rows_multiple(job.pair.target.mesh)
  padded = -(-size // multiple) * multiple
  windows = []
  refilled = settings.refills and not in_order
  wide = size * (_QUEUED_BATCHES if refilled else _WINDOW_BATCHES)
  for begin in range(0, count, wide):
    members: Sequence[int] = range(begin, min(begin + wide, count))
    if refilled:
      windows.append([Batch(list(members), size)])
      continue
    if settings.batching == SORTED and not in_order:
      members = sorted(members, key=lambda i: (len(encoded[i].ids), i))
    windows.append([Batch(list(members[j:j + size]), padded)
                    for j in range(0, len(members), size)])
  return windows


def source_width(encoded: Sequence[Encoded]) -> int:
  """Columns of a batch's source."""
  return power_of_two(max(len(e.ids) for e in encoded), 16)


def prompt_width(encoded: Sequence[Encoded]) -> int:
  """Columns of a batch's prompts, the start id included; 1 for none."""
  return power_of_two(1 + max(len(e.prompt) for e in encoded), 1)


def power_of_two(value: int, least: int) -> int:
  """The smallest power of two that is at least `value` and `least`."""
  return max(least, 1 << (value - 1).bit_length())
