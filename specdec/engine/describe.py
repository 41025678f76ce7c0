"""What a checkpoint is and what it would take, from names and shapes alone."""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

from specdec.checkpoints import detect
from specdec.checkpoints.checkpoint import FLOATS
from specdec.checkpoints.checkpoint import ArrayRef
from specdec.checkpoints.checkpoint import Checkpoint
from specdec.data.base import BaseVocabulary
from specdec.engine import precision
from specdec.engine.models import config_of
from specdec.engine.models import vocabulary_of
from specdec.models.t5.config import T5Config

# Python with jax, tensorstore and Orbax in it, before there is any array.
_PROGRAM_BYTES = 400 * 2**20


@dataclasses.dataclass(frozen=True)
class Plan:
  """Memory that a checkpoint needs, in bytes, from shapes alone.

  Attributes:
    kept: by a loaded model.
    load_peak: on the host, while it is loaded (beside the program itself).
    convert_peak: by a conversion, program included.
  """

  kept: int
  load_peak: int
  convert_peak: int


def plan(arrays: Mapping[str, ArrayRef], dtype: str) -> Plan:
  """Plans memory.

  Loading reads one array at a time into its final dtype, beside what is kept already; a
  conversion keeps nothing. Where layers are stacked on disk, one stacked array is held as
  long as its layers are taken out of it.

  Args:
    arrays: every parameter by our name.
    dtype: that matrices are loaded in.
  """
  def wanted(name: str, array: ArrayRef) -> int:
    matrix = name.endswith(("/kernel", "/embedding"))
    return array.size * FLOATS[dtype if matrix else "float32"].itemsize

  kept = sum(wanted(name, array) for name, array in arrays.items())
  stacks: dict[str, int] = {}
  for array in arrays.values():
    stacks[array.source] = stacks.get(array.source, 0) + array.nbytes
  largest = max(array.size for array in arrays.values()) * 4
  stacked = max(stacks.values()) if len(stacks) < len(arrays) else 0
  # As read, and in the dtype and order wanted; writing adds an encoded copy.
  return Plan(kept, kept + stacked + 2 * largest, _PROGRAM_BYTES + stacked + 3 * largest)


@dataclasses.dataclass(frozen=True)
class Description:
  """What `describe` found.

  Attributes:
    checkpoint: as opened.
    config: its architecture.
    vocabulary: its own, or the one named.
    dtype: that it would be loaded in on this device.
    plan: memory it would take.
  """

  checkpoint: Checkpoint
  config: T5Config
  vocabulary: BaseVocabulary
  dtype: str
  plan: Plan

  @property
  def parameters(self) -> int:
    """Number of parameters in the checkpoint."""
    return sum(array.size for array in self.checkpoint.arrays.values())

  def rows(self) -> list[tuple[str, str]]:
    """Labels and texts of a table."""
    c, v = self.config, self.vocabulary
    stored = sum(array.nbytes for array in self.checkpoint.arrays.values())
    sharing = "one a layer" if c.relpos_per_layer else "one a stack"
    output = "tied to the embedding" if c.logits_via_embedding else "of its own"
    rows = [
        ("layout", self.checkpoint.layout), ("source", self.checkpoint.source),
        ("writer", self.checkpoint.writer),
        ("parameters", f"{self.parameters:,} in {len(self.checkpoint.arrays)} arrays"),
        ("stored as", f"{', '.join(self.checkpoint.dtypes)}, {_bytes(stored)} of numbers"),
        ("layers", f"{c.num_encoder_layers} encoder, {c.num_decoder_layers} decoder"),
        ("width", f"{c.emb_dim} model, {c.num_heads} heads of {c.head_dim}, {c.mlp_dim} "
         f"feed-forward ({' * '.join(c.mlp_activations)})"),
        ("position bias", f"{sharing}, {c.relpos_num_buckets} buckets to "
         f"{c.relpos_max_distance}"),
        ("output layer", f"{output}, {'scaled' if c.scaled_logits else 'not scaled'}, "
         f"{c.vocab_size} logits"),
        ("vocabulary", self._vocabulary(v)),
        ("would be loaded", f"{len(self.checkpoint.arrays)} arrays in {self.dtype}, "
         f"{_bytes(self.plan.kept)}, at most {_bytes(self.plan.load_peak)} on the way"),
        ("would convert in", f"about {_bytes(self.plan.convert_peak)} of memory"),
        ("left alone", self.checkpoint.ignored),
    ]
    return [row for row in rows if row[1]]

  @staticmethod
  def _vocabulary(v: BaseVocabulary) -> str:
    if v.kind == "none":
      return "none here: it takes ids and no text"
    return f"{v.kind}, {len(v)} pieces, fingerprint {v.fingerprint[:12]}"

  def to_dict(self, arrays: bool = False) -> dict[str, Any]:
    """JSON-ready."""
    found, v = self.checkpoint, self.vocabulary
    out: dict[str, Any] = {
        "path": found.path, "layout": found.layout, "source": found.source,
        "writer": found.writer, "parameters": self.parameters, "stored_dtypes": found.dtypes,
        "config": self.config.to_dict(),
        "vocabulary": None if v.kind == "none" else {
            "kind": v.kind, "pieces": len(v), "fingerprint": v.fingerprint},
        "load_dtype": self.dtype, "kept_bytes": self.plan.kept,
        "load_peak_bytes": self.plan.load_peak, "convert_peak_bytes": self.plan.convert_peak,
        "ignored": found.ignored}
    if arrays:
      out["arrays"] = {name: {"shape": list(a.shape), "dtype": a.dtype.name, "in": a.where}
                       for name, a in found.arrays.items()}
    return out


def describe(path: str | pathlib.Path, layout: str = "auto",
             vocabulary: str | None = None) -> Description:
  """Looks at a checkpoint without reading its weights.

  Args:
    path: what `load_model` reads.
    layout: one of `detect.LAYOUTS`.
    vocabulary: in place of its own.

  Raises:
    SpecdecError: there is no T5 there, or its files contradict each other.
  """
  found = detect.open_checkpoint(path, layout, verify=False)
  dtype = precision.default_dtype()
  return Description(found, config_of(found), vocabulary_of(found, vocabulary), dtype,
                     plan(found.arrays, dtype))


def _bytes(count: float) -> str:
  for unit in ("B", "KiB", "MiB"):
    if count < 1024:
      return f"{count:.4g} {unit}"
    count /= 1024
  return f"{count:.4g} GiB"
