"""Writes the tables of README and docs anew from the records in specdec/assets.

  PYTHONPATH=. python scripts/readme_tables.py

A record is made by `specdec bench --json=...`; docs/speed.md says by which command.
"""

import pathlib

from specdec.bench import tables

ROOT = pathlib.Path(__file__).parents[1]

if __name__ == "__main__":
  for name in tables.PAGES:
    page = ROOT / name
    page.write_text(tables.insert(page.read_text(encoding="utf-8")), encoding="utf-8")
