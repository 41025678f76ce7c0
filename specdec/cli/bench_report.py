"""What `specdec bench` shows of a record: a few tables and lines."""

from typing import Any

from specdec.bench.timing import percent_text
from specdec.bench.timing import spread_text
from specdec.cli.outputs import print_line
from specdec.cli.outputs import print_table


def show(record: dict[str, Any]) -> None:
  """Prints a record of either kind."""
  {"calls": _calls, "batches": _batches}[record["kind"]](record)
  print_line("")
  print_line(f"{record['target']} / {record['drafter']} ({record['weights']} weights), gamma "
             f"{record['gamma']}, {_sampling(record)}batch {record['batch_size']}, source "
             f"{record['source_len']}, "
             f"{record['max_decode_len']} tokens, {record['dtype']}, {record['cpu'] or ''} "
             f"{record['device']} x{record['cpu_cores']}, jax {record['jax']}")
  print_line(f"medians of {record['repeats']} rounds, quartiles in brackets; ratios are taken "
             "round by round")


def _calls(r: dict[str, Any]) -> None:
  one = r["seconds"]["target call, 1 token"]["median"]
  rows = [[name, *_milliseconds(spread), f"{spread['median'] / one:.2f}"]
          for name, spread in r["seconds"].items()
          if any(word in name for word in ("iteration", "call", "proposal"))]
  print_table(["", "ms", "quartiles", "x one-token target call"], rows)
  print_line("")
  read, gamma = r["memory_read"], r["gamma"]
  lines = [
      (f"c, {_call(r)} / target call", spread_text(r["cost_ratio"])),
      (f"v, target call of {gamma + 1} tokens / of 1", spread_text(r["verify_ratio"])),
      ("loop overhead, share of an iteration", percent_text(r["loop_overhead"])),
      ("  beyond the proposal as a whole", percent_text(r["loop_overhead_beside_proposal"])),
      ("  of plain decoding", percent_text(r["plain_overhead"])),
      ("memory read, GB/s", f"{read['bytes_per_s']['median'] / 1e9:.1f} ({read['method']})"),
      ("weights read by plain decoding, share of it", percent_text(r["plain_read_share"])),
      ("compilation, s: plain, speculative",
       f"{r['compile_s']['plain']:.1f}, {r['compile_s']['speculative']:.1f}"),
      ("drafted tokens that stood: 0, 1, ... gamma",
       " ".join(map(str, r["accepted_lengths"]))),
      ("tokens, target calls, alpha", f"{r['tokens']}, {r['target_calls']}, "
       + ("-" if r["alpha"] is None else f"{r['alpha']:.3f}")),
      ("rows as in plain decoding", "sampled" if r["identical_outputs"] is None
       else f"{r['identical_outputs']} of {r['rows']}")]
  print_table(["", ""], [list(line) for line in lines], header=False)
  print_line("")
  print_table(["alpha", "tokens an iteration", "paper's formula", "with v", "with the loop's time"],
              [[f"{e['alpha']:g}", f"{e['tokens_per_iteration']:.2f}", f"{e['paper']:.2f}x",
                f"{e['with_verify_ratio']:.2f}x", f"{e['with_measured_iteration']:.2f}x"]
               for e in r["expected_speed_up"]])
  if r["speed_up"]:
    print_line("")
    print_line(f"measured: {spread_text(r['speed_up'])} times plain decoding")
  if r["expected_at_alpha"]:
    e = r["expected_at_alpha"]
    print_line(f"expected at its alpha, {e['alpha']:.3f}: {e['paper']:.2f} with v = 1, "
               f"{e['with_verify_ratio']:.2f} with the measured v; measured over expected with v: "
               f"{e['measured_over_expected']:.2f}")
  if r["unsteady"]:
    print_line(f"unsteady, over 15 % between quartiles: {', '.join(r['unsteady'])}; use a machine "
               "that does nothing else, or more --repeats")
  if r["baselines"]:
    print_line("")
    print_table(["baseline", "version", "dtype", "ms a token", "x ours, plain",
                 "x ours, speculative", "rows alike"],
                [[name, b["version"], b["dtype"], f"{b['ms_per_token']['median']:.2f}",
                  spread_text(b["ratio"]), spread_text(b["ratio_speculative"]),
                  f"{b['rows_alike']} of {r['rows']}"]
                 for name, b in r["baselines"].items()])


def _sampling(r: dict[str, Any]) -> str:
  return f"temperature {r['temperature']:g}, " if r["temperature"] else ""


def _call(r: dict[str, Any]) -> str:
  """What c is of: a drafter that is no T5 has no calls of one token."""
  return "drafter call" if r["bytes_per_call"]["drafter"] else "drafted token"


def _batches(r: dict[str, Any]) -> None:
  print_table(["batch", "plain tokens/s", "x batch 1", "speculative iterations x batch 1",
               "rows as alone: plain, speculative"],
              [[str(b["batch_size"]), f"{b['tokens_per_s']['median']:.1f}",
                spread_text(b["times_batch_1"]), spread_text(b["iteration_times_batch_1"]),
                f"{b['rows_alike_plain']}, {b['rows_alike_speculative']}"] for b in r["batches"]])


def _milliseconds(spread: dict[str, Any]) -> tuple[str, str]:
  low, high = spread["quartiles"]
  return f"{1e3 * spread['median']:.2f}", f"{1e3 * low:.2f} to {1e3 * high:.2f}"
