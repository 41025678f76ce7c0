"""Prints the runs of scripts/reproduce.sh, a line each: target drafter row task temperature gamma.

  python scripts/walltime_rows.py --tasks=ende=translate,correct=correct [--target=SIZE]
    [--gammas=2,3]
"""

import argparse
import sys

import jax

from specdec.bench import walltime
from specdec.errors import SpecdecError

if __name__ == "__main__":
  parser = argparse.ArgumentParser()
  parser.add_argument("--tasks", required=True)
  parser.add_argument("--target", default="")
  parser.add_argument("--gammas", default="")
  args = parser.parse_args()
  try:
    target = args.target or walltime.target_for(
        walltime.memory_bytes(), jax.default_backend() == "cpu")
    gammas = [int(x) for x in args.gammas.split(",")] if args.gammas else []
    tasks = dict(pair.split("=", 1) for pair in args.tasks.split(","))
    for run in walltime.plan(target, tasks, gammas):
      print(run.target, run.drafter, run.row, run.task, f"{run.temperature:g}", run.gamma)
  except (SpecdecError, ValueError) as error:
    sys.exit(f"walltime_rows: {error}")
