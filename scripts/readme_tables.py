"""Writes README's tables on speed anew from the records in specdec/assets/bench.

  PYTHONPATH=. python scripts/readme_tables.py

A record is made by `specdec bench --json=...`; README says by which command.
"""

import pathlib

from specdec.bench import tables

README = pathlib.Path(__file__).parents[1] / "README.md"

if __name__ == "__main__":
  README.write_text(tables.insert(README.read_text(encoding="utf-8")), encoding="utf-8")
