"""`specdec generate --compare`: a measurement, told on one screen."""

from collections.abc import Sequence
import sys
from typing import TYPE_CHECKING
from typing import Any

from specdec.cli import outputs
from specdec.cli import progress
from specdec.cli.outputs import print_line

if TYPE_CHECKING:
  from specdec.bench.compare import Comparison
  from specdec.bench.compare import Side
  from specdec.bench.timing import Spread
  from specdec.engine.pairs import Pair

_SHOWN = 8


def main(pair: "Pair", texts: Sequence[str], options: dict[str, Any], repeats: int,
         file: outputs.OutputFile | None) -> None:
  """Measures and prints; writes the record when there is a file for it."""
  from specdec.bench import compare

  with progress.status() as say:
    say("compiling both, then measuring")
    done = compare.compare(pair, texts, repeats=repeats, **options)
  if file:
    # First of all: what was measured is safe, whatever becomes of the terminal.
    file.write(outputs.to_json(done.to_dict()))
  show(done)
  if file:
    print(f"measurements written to {file.path}", file=sys.stderr)


def show(done: "Comparison") -> None:
  """Prints outputs, a table of both sides, and the verdicts."""
  records = done.speculative.result.records
  for record in records[:_SHOWN]:
    print_line(f"{record.input} -> {record.output}")
  if len(records) > _SHOWN:
    print_line(f"... and {len(records) - _SHOWN} more")
  print_line("")
  sides = (done.plain, done.speculative)
  outputs.print_table(["", "plain", "speculative"],
                      [[label, *(cell(side) for side in sides)] for label, cell in _ROWS])
  print_line("")
  s, e = done.settings, done.environment
  print_line(f"pair {done.pair}, gamma {s.gamma}, verifier {s.verifier}, temperature "
             f"{_several(s.temperature)}")
  print_line(f"batches of {done.rows}, {done.dtype}, {e['device']} ({e['backend']}), jax "
             f"{e['jax']}")
  ratio = done.ratio
  print_line(f"{done.verdict} (median of {len(done.plain.times_s)} repeats, "
             f"{ratio.low:.2f} to {ratio.high:.2f})")
  if not s.lossless:
    print_line(f"NOT lossless: lenience {_several(s.lenience)} lets a token be up to 1/lenience "
               "times as likely as under the target")
  if done.reproducible:
    for line in _agreement(done):
      print_line(line)
  cut = sum(r.truncated for r in records)
  if cut:
    print(f"warning: {cut} of {len(records)} inputs had more than {s.max_source_len} tokens "
          "and were cut", file=sys.stderr)


def _agreement(done: "Comparison") -> list[str]:
  """Whether both sides gave the same ids, which they must unless leniently verified."""
  count, differences = len(done.plain.result.best), done.differences
  lines = [f"identical outputs: {count - len(differences)} of {count}"]
  lines += [f"  input {i + 1} differs from token {at + 1} on"
            for i, at in list(differences.items())[:_SHOWN]]
  if differences and done.settings.lossless and done.dtype != "float32":
    lines.append(f"  {done.dtype} rounds a call of one and of several tokens differently; "
                 "--dtype=float32 gives identical outputs")
  return lines


def _several(value: float | Sequence[float]) -> str:
  """A number, or the range of those given per input."""
  if isinstance(value, Sequence):
    return f"{min(value):g} to {max(value):g} (per input)"
  return f"{value:g}"


def _spread(spread: "Spread") -> str:
  return f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"


def _alpha(side: "Side") -> str:
  return "-" if side.result.alpha is None else f"{side.result.alpha:.3f}"


_ROWS = (
    ("tokens", lambda side: str(side.result.tokens)),
    ("target calls", lambda side: str(side.result.target_calls)),
    ("tokens per call", lambda side: f"{side.result.tokens_per_call:.2f}"),
    ("drafted / tested / accepted", lambda side: " / ".join(
        str(n) for n in (side.result.drafted, side.result.tested, side.result.accepted))),
    ("alpha (accepted / tested)", _alpha),
    ("ms per token (range)", lambda side: _spread(side.ms_per_token)),
    ("compilation, s", lambda side: f"{side.compile_s:.1f}"),
)
