"""Mistakes of `specdec bench`; what it measures is in tests/bench."""

import pytest

from specdec.bench import peers


@pytest.mark.parametrize("args, expected", [
    (["--gamma=0"], "gamma is 0; expected an integer from 1 to 64"),
    (["--batch_size=0"], "--batch_size is '0'; expected integers from 1"),
    (["--batch_size=1,x"], "--batch_size is '1,x'; expected integers from 1"),
    (["--alphas=1.5"], "--alphas is '1.5'; expected numbers from 0 to 1"),
    (["--repeats=0"], "repeats is 0"),
    (["--source_len=0"], "source_len is 0"),
    (["--max_decode_len=1"], "max_decode_len is 1; expected an integer from 2"),
    (["--target_size=huge"], "there is no T5 size 'huge'; expected one of base, large"),
    (["--pair=demo", "--target_size=base"], "--pair does not go with --target_size"),
    (["--pair=nowhere"], "there is no pair 'nowhere'"),
    (["--pair=demo", "--drafter=bigrm"], "did you mean bigram?"),
    (["--drafter=copy"], "--drafter belongs to --pair"),
    (["--drafter_size=copy:max_match=0"], "option max_match of copy is 0"),
    (["A text."], "texts need a model that knows words; add --pair"),
    (["--task=translate"], "--task belongs to --pair"),
    (["--widen_target=base"], "--widen_target belongs to --pair"),
    (["--temperature=1"], "--temperature belongs to --pair"),
    (["--pair=demo", "--temperature=-1"], "temperature is -1"),
    (["--pair=demo", "--widen_drafter=small"], "--widen_drafter belongs to --widen_target"),
    (["--pair=demo", "--widen_target=huge"], "there is no T5 size 'huge'"),
    (["--pair=demo", "--record_task="], "--record_task is empty"),
    (["--pair=demo", "--drafter=copy", "--widen_target=base", "--widen_drafter=small"],
     "--widen_drafter is for a drafter that is a T5, and copy is none"),
    (["--pair=demo", "--widen_target=tiny"], "does not fit into tiny: emb_dim 256 against 128"),
    (["--baseline=vllm"], "there is no baseline 'vllm'; expected one of t5x, hf"),
    (["--batch_size=1,2", "--baseline=hf"], "--baseline goes with a single --batch_size"),
    (["--json=/nowhere/x.json"], "there is no folder /nowhere"),
])
def test_mistakes(mistake, args, expected):
  assert expected in mistake("bench", *args)


def test_a_baseline_that_is_not_installed(mistake, monkeypatch):
  monkeypatch.setattr(peers, "_installed", lambda package: False)
  assert "git clone" in mistake("bench", "--baseline=t5x")
  assert "specdec-jax[bench]" in mistake("bench", "--baseline=hf")
