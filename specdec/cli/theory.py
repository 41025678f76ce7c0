"""`specdec theory`: what an acceptance rate is worth."""

from collections.abc import Sequence
import math
from typing import Any

from specdec.analysis import theory
from specdec.cli import outputs
from specdec.cli.flags import Flags
from specdec.cli.lists import numbers
from specdec.errors import SpecdecError

INTRO = """\
specdec theory: what speculation is worth, by the paper's formulas.

Usage
  specdec theory --alpha=X[,X] [--c=X[,X]] [FLAGS]

alpha is the share of tested drafts that are accepted, c the time of a drafter call over
that of a target call, and v the time of a target call of gamma + 1 tokens over that of
one of 1. specdec bench measures them. Without --gamma the best one is taken."""

OUTRO = """\
Examples
  specdec theory --alpha=0.8 --c=0.05
  specdec theory --alpha=0.6,0.7,0.8,0.9 --c=0.02,0.1 --gamma=5
  specdec theory --alpha=0.75 --c=0.095 --v=1.2,1.3,1.4,1.6"""

MAX_GAMMA = 10**6


def make_flags() -> Flags:
  """The command's flags."""
  flags = Flags("theory", INTRO, OUTRO)
  flags.group("Rates and costs")
  flags.text("alpha", None, "X[,X]", "acceptance rates, from 0 to 1")
  flags.text("c", "0", "X[,X]", "drafter call over target call; 0 for a drafter that takes no "
             "time")
  flags.text("v", "1", "X[,X]", "target call of gamma + 1 tokens over one of 1: a number for "
             "every gamma, or one for gamma 1, one for 2, ..., as far as gamma may go")
  flags.text("c_hat", None, "X", "operations per token, drafter over target [that of --c]")
  flags.text("gamma", None, "N[,N]", "tokens drafted per target call [the best]")
  flags.group("Output")
  flags.switch("json", "a line of JSON per combination; null is what has no limit")
  return flags


def main(flags: Flags, args: Sequence[str]) -> int:
  """Runs the command."""
  if args:
    raise SpecdecError(f"{args[0]!r} is no flag of specdec theory; type --alpha=0.8 --c=0.05, say")
  if flags.alpha is None:
    raise SpecdecError("--alpha is missing; type an acceptance rate, such as --alpha=0.8")
  alphas = numbers("alpha", flags.alpha, float, lambda x: 0 <= x <= 1, "numbers from 0 to 1")
  costs = numbers("c", flags.c, float, lambda x: x >= 0, "numbers from 0")
  listed = numbers("v", flags.v, float, lambda x: x > 0, "numbers above 0, usually 1 or more")
  v: theory.VerifyRatio = listed[0] if len(listed) == 1 else listed
  c_hat = None if flags.c_hat is None else numbers(
      "c_hat", flags.c_hat, float, lambda x: x >= 0, "a number from 0")
  if c_hat is not None and len(c_hat) > 1:
    raise SpecdecError(f"--c_hat is {flags.c_hat!r}; expected a single number")
  gammas: list = [None]
  if flags.gamma is not None:
    gammas = numbers("gamma", flags.gamma, int, lambda n: 1 <= n <= MAX_GAMMA,
                     f"integers from 1 (0 is plain decoding) to {MAX_GAMMA}")
  found = [line(a, c, v, c if c_hat is None else c_hat[0], g)
           for a in alphas for c in costs for g in gammas]
  if flags.json:
    for entry in found:
      outputs.print_line(outputs.to_json(
          {k: None if x in (math.inf, -math.inf) else x for k, x in entry.items()}))
    return 0
  outputs.print_table(
      ["alpha", "c", "gamma", "v", "tokens/call", "speed-up", "operations", "reads", "best gamma",
       "gives", "oracle"],
      [[f"{e['alpha']:g}", f"{e['c']:g}", _whole(e["gamma"]), f"{e['v']:g}",
        _number(e["tokens_per_call"]), _times(e["speed_up"]), _times(e["operations"]),
        _times(e["memory_reads"]), _whole(e["best_gamma"]), _times(e["best_speed_up"]),
        _times(e["oracle_speed_up"])] for e in found])
  for note in _notes(found):
    outputs.print_line(note)
  return 0


def line(alpha: float, cost_ratio: float, verify_ratio: theory.VerifyRatio,
         operations_ratio: float, gamma: int | None = None) -> dict[str, Any]:
  """Everything about one alpha and c; at the best gamma when none is given."""
  best = theory.best_gamma(alpha, cost_ratio, verify_ratio)
  gamma_used = best if gamma is None else gamma
  speed = lambda g: theory.speed_up(alpha, g, cost_ratio, _at(verify_ratio, g))
  return {
      "alpha": alpha, "c": cost_ratio, "c_hat": operations_ratio, "gamma": gamma_used,
      "v": _at(verify_ratio, gamma_used),
      "tokens_per_call": theory.tokens_per_iteration(alpha, gamma_used),
      "speed_up": speed(gamma_used),
      "operations": theory.operations(alpha, gamma_used, operations_ratio),
      "memory_reads": theory.memory_reads(alpha, gamma_used),
      "best_gamma": best, "best_speed_up": speed(best),
      "oracle_speed_up": theory.oracle_speed_up(alpha, cost_ratio, verify_ratio)}


def _at(verify_ratio: theory.VerifyRatio, gamma: float) -> float:
  if gamma == math.inf:  # Of a single v alone.
    return float(verify_ratio)
  return theory.verify_ratio_at(verify_ratio, int(gamma))


def _notes(found: Sequence[dict[str, Any]]) -> list[str]:
  notes = ["speed-up, operations and reads of the target's weights: per token, plain decoding as "
           "1; an oracle drafts what will be accepted and no more"]
  if any(e["best_gamma"] == 0 for e in found):
    notes.append("best gamma 0: plain decoding is fastest (at v = 1, whenever alpha is not above "
                 "c)")
  if any(e["best_gamma"] == math.inf for e in found):
    notes.append("best gamma none: each further draft adds something; shown is the limit")
  return notes


def _whole(value: float) -> str:
  return "none" if value == math.inf else f"{value:d}"


def _number(value: float) -> str:
  return "inf" if value == math.inf else f"{value:.2f}"


def _times(value: float) -> str:
  return "inf" if value == math.inf else f"{value:.2f}x"
