"""Compiles the speculative programs of the paper's walltime table for one TPU-v4 chip.

    pip install 'specdec-jax[tpu]'
    PYTHONPATH=. python scripts/tpu_aot.py --json=tpu_aot.json --markdown=tpu_aot.md

Needs no TPU and no weights: see docs/tpu.md. Programs that the JSON record has already are
kept, so that a long run can be done in parts: --programs=small:7,plain. The last line says whether
all of them do with memory what they should; if not, the exit code is 1.
"""

import importlib.metadata
import json
import pathlib
import sys

from absl import app
from absl import flags
from absl import logging

from specdec.bench import aot
from specdec.bench import projection
from specdec.bench import records
from specdec.errors import SpecdecError
from specdec.models.t5 import sizes

_TARGET = flags.DEFINE_string("target", "xxl", "Size of the target.")
_PROGRAMS = flags.DEFINE_list(
    "programs", None, "As drafter:gamma, or plain; by default those of the paper's table.")
_SOURCE_LEN = flags.DEFINE_integer("source_len", 512, "Padded length of the encoder input.")
_MAX_LEN = flags.DEFINE_integer("max_decode_len", 128, "Most tokens of a row.")
_BATCH = flags.DEFINE_integer("batch_size", 1, "Rows.")
_DTYPE = flags.DEFINE_string("dtype", "bfloat16", "Of weights and products.")
_START = flags.DEFINE_bool("start", True, "Compile the encoder, too.")
_MESH = flags.DEFINE_string(
    "mesh", None, "Several chips of a host, such as model:4: a line per program on what each chip "
    "holds, beside what specdec plan says.")
_JSON = flags.DEFINE_string("json", None, "Record to write, or to add to.")
_MARKDOWN = flags.DEFINE_string("markdown", None, "Tables to write.")


def case(name: str) -> aot.Case:
  """A program by its name."""
  size = lambda s: sizes.load(s).replace(dtype=_DTYPE.value)
  drafter, gamma = None, 0
  if name != projection.PLAIN:
    size_name, _, number = name.partition(":")
    if not number.isdecimal() or int(number) < 1:
      raise SpecdecError(f"--programs has {name!r}; expected a drafter's size and a gamma of 1 or "
                         "more, such as small:7, or plain")
    drafter, gamma = size(size_name), int(number)
  return aot.Case(size(_TARGET.value), drafter, gamma, _SOURCE_LEN.value, _MAX_LEN.value,
                  _BATCH.value)


def settings() -> dict:
  return {"target": _TARGET.value, "dtype": _DTYPE.value, "source_len": _SOURCE_LEN.value,
          "max_decode_len": _MAX_LEN.value, "batch_size": _BATCH.value}


def known() -> dict:
  """Programs that the record has already."""
  path = _JSON.value and pathlib.Path(_JSON.value)
  if not path or not path.exists():
    return {}
  record = json.loads(path.read_text(encoding="utf-8"))
  mine = settings()
  if {k: record.get(k) for k in mine} != mine:
    raise SpecdecError(f"{path} is a record of another target, dtype or length; expected "
                       f"{mine}: give another --json")
  return record["programs"]


def write(programs: dict, chip) -> dict:
  """The record so far, written."""
  order = [*projection.of_paper(), *programs]
  programs = {name: programs[name] for name in dict.fromkeys(order) if name in programs}
  here = records.environment()
  record = {
      "kind": "tpu aot", **settings(), "chip": chip.device_kind,
      "libtpu": importlib.metadata.version("libtpu"),
      **{k: here[k] for k in ("specdec", "commit", "jax", "date")},
      "hbm_bytes_per_s": aot.HBM_BYTES_PER_S, "programs": programs,
      "projection": projection.rows({k: p["figures"] for k, p in programs.items()}),
      "assumptions": list(projection.ASSUMPTIONS)}
  if _JSON.value:
    pathlib.Path(_JSON.value).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
  if _MARKDOWN.value:
    pathlib.Path(_MARKDOWN.value).write_text(projection.markdown(record), encoding="utf-8")
  return record


def on_mesh(cases: dict) -> dict:
  """What a chip of several holds, by program; printed, too."""
  from specdec.bench import aot_mesh
  from specdec.engine import mesh as mesh_lib

  sizes = mesh_lib.parse(_MESH.value)
  mesh = aot_mesh.make_mesh(aot.chips(), sizes["data"], sizes["model"])
  found = {}
  for name, one in cases.items():
    found[name] = f = aot_mesh.examine(one, mesh)
    print(f"{name}: {f['peak'] / 2**30:.2f} GiB a chip, specdec plan says "
          f"{f['planned'] / 2**30:.2f} ({f['planned'] / f['peak'] - 1:+.1%}); collectives: "
          f"{', '.join(f'{n} {kind}' for kind, n in f['collectives'].items()) or 'none'}",
          flush=True)
  return found


def main(argv):
  del argv
  try:
    if _MESH.value:
      names = _PROGRAMS.value or projection.of_paper()
      found = on_mesh({name: case(name) for name in names})
      if _JSON.value:
        record = {"kind": "tpu aot mesh", "mesh": _MESH.value, **settings(),
                  **{k: records.environment()[k] for k in ("specdec", "commit", "jax", "date")},
                  "libtpu": importlib.metadata.version("libtpu"), "programs": found}
        pathlib.Path(_JSON.value).write_text(json.dumps(record, indent=1) + "\n",
                                             encoding="utf-8")
      return
    names = _PROGRAMS.value or projection.of_paper()
    cases = {name: case(name) for name in names}
    done = known()
    chip = aot.device()
  except SpecdecError as e:
    print(f"error: {e}", file=sys.stderr)
    sys.exit(2)
  for name, one in cases.items():
    if name in done:
      continue
    report = aot.examine(aot.build(one, chip, _START.value))
    done[name] = {"checks": [{"name": c.name, "holds": c.holds, "found": c.found}
                             for c in report.checks], "figures": report.figures}
    for c in report.checks:
      logging.info("%s: %s: %s: %s", name, c.name, "ok" if c.holds else "FAILS", c.found)
    write(done, chip)
  record = write(done, chip)
  failed = [f"{name}: {c['name']}: {c['found']}" for name, p in record["programs"].items()
            for c in p["checks"] if not c["holds"]]
  if failed:
    print(f"fails: {'; '.join(failed)}")
    sys.exit(1)
  figures = [p["figures"] for p in record["programs"].values()]
  peak = max(max(f["hbm_peak_bytes"].values()) for f in figures)
  ratio = max(f["read_bytes"]["all_but_drafter"]
              / (f["decoder_weights_bytes"] + f["target_cache_bytes"]) for f in figures)
  print(f"ok: {len(figures)} programs for one {chip.device_kind} chip: at most {peak / 2**30:.1f} "
        f"of 32 GiB, at most {ratio:.3f} of the decoder's weights and caches read per target "
        "call, nothing of them copied")


if __name__ == "__main__":
  app.run(main)
