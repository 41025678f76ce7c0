"""`specdec plan`: verdicts, and each way to ask wrongly."""

import json

import pytest

from specdec.cli.main import run


def said(capsys, *args):
  code = run(["plan", *args])
  out, err = capsys.readouterr()
  return code, out, err


def test_what_fits_is_listed_part_by_part(capsys):
  code, out, err = said(capsys, "--target=xxl", "--drafter=small", "--device=v4", "--gamma=7")
  assert code == 0 and not err
  for part in ("target weights", "drafter weights", "target caches", "workspace", "together"):
    assert part in out
  assert "at 1228 GB/s a target call lasts 9.3 ms at least" in out


def test_what_does_not_fit_is_refused_with_what_would(capsys):
  code, _, err = said(capsys, "--target=xxl", "--drafter=small", "--device=v5e")
  assert code == 2 and err.count("\n") == 1 and "type --mesh=model:2" in err
  code, _, err = said(capsys, "--target=xl", "--device=v5e", "--dtype=float32", "--batch_size=16")
  assert code == 2 and "--dtype=bfloat16" in err


def test_the_advice_is_good(capsys):
  assert said(capsys, "--target=xxl", "--drafter=small", "--device=v5e",
              "--mesh=model:2")[0] == 0


def test_pairs_for_a_device(capsys):
  code, out, _ = said(capsys, "--device=v5e", "--json")
  found = {line["target"]: line for line in map(json.loads, out.splitlines())}
  assert code == 0 and list(found) == ["small", "base", "large", "xl", "xxl"]
  assert found["xl"]["fits"] and not found["xxl"]["fits"] and found["xxl"]["model_axis"] == 2
  assert found["xl"]["drafter"] == "small" and found["base"]["drafter"] == "copy"
  code, out, _ = said(capsys, "--memory=16")
  assert "the largest that fits: --target=xl --drafter=small" in out


def test_json_holds_the_bytes(capsys):
  code, out, _ = said(capsys, "--target=base", "--drafter=copy", "--memory=8", "--json")
  found = json.loads(out)
  assert code == 0 and found["fits"] and found["total"] == sum(found["bytes_per_device"].values())


@pytest.mark.parametrize("args, told", [
    (["--target=hug"], "neither a size nor a checkpoint"),
    (["--target=xl", "--drafter=mini"], "--drafter is 'mini'"),
    (["--target=xl", "--device=v9"], "expected one of v3, v4"),
    (["--target=xl", "--memory=lots"], "expected GiB"),
    (["--target=xl", "--memory=8", "--device=v4"], "drop one"),
    (["--target=xl", "--mesh=model"], "model"),
    (["--target=xl", "--mesh=data:3", "--batch_size=4", "--device=v4"], "multiple of 3"),
    (["--target=xl", "--batch_size=0", "--device=v4"], "batch_size"),
    (["--drafter=small", "--device=v4"], "--target"),
    (["xl"], "no flag")])
def test_mistakes(args, told, capsys):
  code, out, err = said(capsys, *args)
  assert code == 2 and told in err and err.count("\n") == 1 and not out
