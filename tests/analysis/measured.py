"""Records for tests, made up: nothing here was measured."""

import json

ROW = {"task": "ende", "drafter": "t5_1_1_small", "temperature": 0, "gamma": 3, "alpha": 0.75,
       "alpha_interval": [0.74, 0.76], "cost_ratio": 0.095, "verify_ratio": 1.4, "speed_up": 1.6,
       "speed_up_interval": [1.5, 1.7], "tokens_per_call": 2.7}
RECORD = {"kind": "measurements", "version": 1, "target": "t5_1_1_large", "weights": "widened",
          "dtype": "float32", "device": "cpu", "batch_size": 1, "rows": [ROW],
          "timings": {"drafter": "t5_1_1_small", "drafter_call_s": 0.01,
                      "target_call_s": [0.1, 0.11, 0.12, 0.13, 0.14, 0.15, 0.16, 0.17],
                      "target_encoder_s": 0.2, "drafter_encoder_s": 0.02}}

SPREAD = {"median": 0.1, "low": 0.05, "high": 0.3, "quartiles": [0.08, 0.2]}
BENCH = {"kind": "calls", "target": "target", "drafter": "drafter", "weights": "trained",
         "dtype": "float32", "device": "cpu", "backend": "cpu", "cpu": "Some CPU", "batch_size": 1,
         "gamma": 2, "alpha": 0.8, "cost_ratio": {**SPREAD, "median": 0.3},
         "verify_ratio": {**SPREAD, "median": 1.2}, "speed_up": {**SPREAD, "median": 1.1},
         "tokens_per_call": 2.4,
         "seconds": {"target call, 1 token": SPREAD, "target call, 2 tokens": SPREAD,
                     "target call, 3 tokens": {**SPREAD, "median": 0.12},
                     "drafter call, 1 token": {**SPREAD, "median": 0.03}}}

# Two iterations: a draft refused at its second token, and one that stands whole.
TRACE = {"input": "A dog.", "output_ids": [5, 6, 7, 8, 9, 1], "prompt_tokens": 0, "trace": [
    {"drafted": [5, 20, 21], "num_accepted": 1, "next_id": 6},
    {"drafted": [7, 8, 9], "num_accepted": 3, "next_id": 1}]}


def write(path, fields=None, **changes):
  """Writes a record or a trace and returns its path."""
  path.write_text(json.dumps({**(RECORD if fields is None else fields), **changes}),
                  encoding="utf-8")
  return str(path)
