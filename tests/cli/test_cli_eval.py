"""`specdec eval`, and the tasks of seqio that it runs.

All tests that need seqio are in this file: importing TensorFlow takes seconds.
"""

import gzip
import importlib.util
import json
import pathlib

import pytest

import specdec
from specdec.cli.main import run
from specdec.data.tasks import t5
from specdec.engine import job
from specdec.testing import tiny

needs_seqio = pytest.mark.skipif(
    importlib.util.find_spec("seqio") is None or importlib.util.find_spec("tensorflow") is None,
    reason="seqio and TensorFlow are not installed (pip install 'specdec-jax[seqio]')")
MULTI30K = pathlib.Path(__file__).parents[3] / "shared" / "data" / "multi30k"

# All of a length that shares one width of compiled programs, with either prefix.
ENGLISH = ["A small boat drifts along the quiet river.",
           "The cat sleeps on the warm stone wall near the river.",
           "Two children are building a tower of wooden blocks.",
           "The baker opens her shop before the sun comes up.",
           "Why does nobody answer the telephone on the wall?",
           "Quick foxes jump over lazy, very good hens."]
GERMAN = ["Ein kleines Boot treibt auf dem stillen Fluss.",
          "Die Katze schläft auf der warmen Mauer am Fluss.",
          "Zwei Kinder bauen einen Turm aus Holz.",
          "Die Bäckerin öffnet ihren Laden, bevor die Sonne aufgeht.",
          "Warum geht niemand ans Telefon?", "Schnelle Füchse springen über faule Hühner."]


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """A folder with the sentences as TSV, JSON lines and files of lines."""
  monkeypatch.chdir(tmp_path)
  (tmp_path / "a.tsv").write_text(
      "".join(f"{e}\t{d}\n" for e, d in zip(ENGLISH, GERMAN)), encoding="utf-8")
  (tmp_path / "dev.jsonl").write_text(
      "".join(json.dumps({"en": e, "de": [d]}) + "\n" for e, d in zip(ENGLISH, GERMAN)))
  (tmp_path / "a.en").write_text("\n".join(ENGLISH) + "\n")
  (tmp_path / "a.de.gz").write_bytes(gzip.compress(("\n".join(GERMAN) + "\n").encode()))
  return tmp_path


def tfds_like(split_rows, **columns):
  """A source of examples in the form that TensorFlow Datasets gives: scalars by field."""
  from specdec.data.tasks.extra import seqio
  from specdec.data.tasks.extra import tf

  def dataset(split, shuffle_files, seed=None):
    return tf.data.Dataset.from_tensor_slices(
        {name: values[:split_rows[split]] for name, values in columns.items()})
  return seqio.FunctionDataSource(dataset, splits=list(split_rows))


@needs_seqio
def test_english_to_german_is_prepared_as_t5_does():
  from specdec.data.tasks import make

  definition = t5.find("ende")
  task = make.t5_task(definition, tiny.vocabulary(), source=tfds_like(
      {"train": 1, "validation": 2, "test": 3}, en=ENGLISH, de=GERMAN))
  assert task.name == "wmt_t2t_ende_v003" and list(task.splits) == list(definition.splits)
  rows = list(task.get_dataset(split="validation", shuffle=False).as_numpy_iterator())
  assert len(rows) == 2
  for row, english, german in zip(rows, ENGLISH, GERMAN):
    assert row["inputs_pretokenized"].decode() == "translate English to German: " + english
    assert row["targets_pretokenized"].decode() == german
    assert row["inputs"].tolist() == tiny.vocabulary().encode(
        "translate English to German: " + english)
    assert row["targets"].tolist() == tiny.vocabulary().encode(german)
  assert [fn.__name__ for fn in task.metric_fns] == ["bleu"]
  assert task.source.__class__.__name__ == "FunctionDataSource"
  theirs = make.t5_task(definition, tiny.vocabulary()).source
  assert theirs.tfds_dataset.name == "wmt_t2t_translate/de-en:1.0.0"


@needs_seqio
def test_cnn_dailymail_is_prepared_as_t5_does_and_cut_with_an_eos():
  from specdec.data.tasks import make

  articles = [" ".join(ENGLISH), ENGLISH[0]]
  highlights = ["First part .\nSecond part .", "One part ."]
  task = make.t5_task(t5.find("cnndm"), tiny.vocabulary(), source=tfds_like(
      {"train": 2, "validation": 2, "test": 2}, article=articles, highlights=highlights,
      id=["1", "2"]))
  assert task.name == "cnn_dailymail_v002"
  whole = [tiny.vocabulary().encode("summarize: " + text) for text in articles]
  length = len(whole[1]) + 3
  rows = list(task.get_dataset(split="test", shuffle=False, sequence_length={
      "inputs": length, "targets": 512}).as_numpy_iterator())
  assert [row["inputs_pretokenized"].decode() for row in rows] == [
      "summarize: " + text for text in articles]
  assert rows[0]["targets_pretokenized"].decode() == highlights[0]
  assert rows[0]["inputs"].tolist() == [*whole[0][:length - 1], 1]
  assert rows[1]["inputs"].tolist() == whole[1]
  # The engine, which evaluation leaves the cutting to, cuts by the same rule.
  cut = job.from_ids(tiny.pair(), whole, {"max_source_len": length}).encoded
  assert [e.ids for e in cut] == [row["inputs"].tolist() for row in rows]
  assert [e.truncated for e in cut] == [True, False]
  assert [fn.__name__ for fn in task.metric_fns] == ["rouge"]


@needs_seqio
def test_a_wrapped_vocabulary_has_the_ids_of_seqios_own(tmp_path):
  from specdec.data.tasks.extra import seqio
  from specdec.data.tasks.extra import tf
  from specdec.data.tasks.vocabulary import TaskVocabulary
  from specdec.data.vocabulary import Vocabulary

  (tmp_path / "spiece.model").write_bytes(tiny.vocabulary().model)
  theirs = seqio.SentencePieceVocabulary(str(tmp_path / "spiece.model"), extra_ids=100)
  ours = TaskVocabulary(Vocabulary(tiny.vocabulary().model, extra_ids=100))
  assert ours.vocab_size == theirs.vocab_size and ours.eos_id == theirs.eos_id == 1
  for text in [*GERMAN, "", "  two  spaces ", "日本"]:
    ids = list(theirs.encode(text))
    assert list(ours.encode(text)) == ids
    assert ours.encode_tf(tf.constant(text)).numpy().tolist() == ids
    assert ours.decode([*ids, 1, 7, 0]) == theirs.decode([*ids, 1, 7, 0])
  rows = tf.constant([[5, 6, 1, 0], [7, 1, 0, 0]])
  assert [t.decode() for t in ours.decode_tf(rows).numpy()] == [
      ours.decode(row) for row in rows.numpy().tolist()]
  assert ours == TaskVocabulary(Vocabulary(tiny.vocabulary().model, extra_ids=100))
  assert ours != TaskVocabulary(tiny.vocabulary())


@needs_seqio
def test_tensorflow_sees_no_accelerator():
  from specdec.data.tasks.extra import tf

  assert {device.device_type for device in tf.config.get_visible_devices()} == {"CPU"}


# One size of batch and one gamma for all, so that they share their compiled programs.
EVAL = ["eval", "--pair=tiny", "--gamma=2", "--output_dir=out"]


@needs_seqio
@pytest.mark.parametrize("local", [
    ["--data_file=a.tsv", "--baseline=plain"],
    ["--data_file={split}.jsonl", "--inputs_field=en", "--targets_field=de.0", "--split=dev"],
    ["--inputs_file=a.en", "--targets_file=a.de.gz", "--batch_size=4"],
])
def test_an_evaluation_is_what_generate_says(folder, memory_pair, local, capsys):
  """The same outputs, with the metric computed of them directly, in any batch size."""
  from specdec.data.tasks import metrics

  assert run([*EVAL, *local, "--prefix=correct: ", "--metrics=bleu,sequence_accuracy"]) == 0
  out = capsys.readouterr().out
  expected = specdec.generate(memory_pair, ENGLISH, task="correct", gamma=2)
  lines = [json.loads(line) for line in (folder / "out/predictions.jsonl").open()]
  results = json.loads((folder / "out/results.json").read_text())
  assert [line["index"] for line in lines] == list(range(6))
  assert [line["input"] for line in lines] == ["correct: " + text for text in ENGLISH]
  assert [line["target"] for line in lines] == GERMAN
  assert [line["prediction"] for line in lines] == expected.texts
  assert [line["output_ids"] for line in lines] == expected.ids
  assert results["metrics"]["bleu"] == metrics.bleu(GERMAN, expected.texts)["bleu"]
  assert set(results["metrics"]) == {"bleu", "sequence_accuracy"}
  assert results["alpha"] == expected.alpha and results["target_calls"] == expected.target_calls
  assert results["examples"] == 6 and results["lossless"] and results["seconds"] > 0
  assert results["settings"]["gamma"] == 2 and results["environment"]["jax"]
  assert f"{results['metrics']['bleu']:.4f}" in out
  if "--baseline=plain" not in local:
    assert "baseline" not in results and "baseline_prediction" not in lines[0]
    return
  plain = results["baseline"]
  assert [line["baseline_prediction"] for line in lines] == expected.texts
  assert plain["metrics"] == results["metrics"]
  assert plain["target_calls"] == plain["tokens"] == results["tokens"] > results["target_calls"]
  assert results["time_ratio"] == plain["seconds"] / results["seconds"] > 0
  assert results["identical_outputs"] == 6 and "identical outputs: 6 of 6" in out


@needs_seqio
def test_t5s_tasks_take_local_files_and_gin_with_t5s_prefix(folder, memory_pair, capsys):
  (folder / "run.gin").write_text(
      "include 'runs/eval.gin'\nTASK = 'ende'\nOUTPUT = 'out'\neval.data_file = 'a.tsv'\n")
  assert run(["eval", "--gin_file=run.gin", "--pair=tiny", "--gamma=2",
              "--max_decode_len=12"]) == 0
  results = json.loads((folder / "out/results.json").read_text())
  assert results["task"] == "wmt_t2t_ende_v003" and results["identical_outputs"] == 6
  assert results["settings"]["max_source_len"] == 512
  first = json.loads((folder / "out/predictions.jsonl").open().readline())
  assert first["input"] == "translate English to German: " + ENGLISH[0]
  # What took effect says the same again.
  assert run(["eval", "--gin_file=out/operative.gin", "--output_dir=again"]) == 0
  assert (folder / "again/predictions.jsonl").read_text() == (
      folder / "out/predictions.jsonl").read_text()
  capsys.readouterr()


@needs_seqio
def test_t5s_lengths_are_those_of_its_tasks_and_the_pairs_of_others(folder):
  from specdec.data.tasks.local import LocalTask
  from specdec.evaluation import examples

  own = examples.read(LocalTask(data_file="a.tsv"), tiny.vocabulary(), num_examples=2)
  assert own.limits() == {} and own.inputs == ENGLISH[:2] and len(own) == 2
  theirs = examples.read(LocalTask(data_file="a.tsv", inputs_length=8, targets_length=9),
                         tiny.vocabulary())
  assert theirs.limits() == {"max_source_len": 8, "max_decode_len": 9}


@needs_seqio
def test_files_of_another_run_are_kept(folder, memory_pair, mistake, capsys):
  args = [*EVAL, "--data_file=a.tsv", "--prefix=correct: "]
  assert run([*args, "--metrics=sequence_accuracy"]) == 0
  before = (folder / "out/predictions.jsonl").read_text()
  capsys.readouterr()
  assert "predictions.jsonl exists; add --overwrite" in mistake(*args)
  assert (folder / "out/predictions.jsonl").read_text() == before
  assert "bleu" not in (folder / "out/results.json").read_text()
  assert run([*args, "--overwrite"]) == 0
  assert "bleu" in (folder / "out/results.json").read_text()
  assert (folder / "out/predictions.jsonl").read_text() == before


@needs_seqio
def test_a_module_of_tasks_is_tokenised_with_the_pairs_vocabulary(folder, memory_pair, mistake,
                                                                  monkeypatch, capsys):
  (folder / "my_tasks.py").write_text('''
import seqio, tensorflow as tf
from specdec.data.tasks import metrics
out_of_reach = seqio.SentencePieceVocabulary("gs://nowhere/at.model")
feature = seqio.Feature(vocabulary=out_of_reach)
def data(split, shuffle_files, seed=None):
  if split == "broken":
    raise OSError("the disk is gone")
  lines = ["correct: " + line for line in open("a.en").read().splitlines()]
  return tf.data.Dataset.from_tensor_slices({"inputs": lines, "targets": lines})
common = dict(source=seqio.FunctionDataSource(data, splits=["train", "broken"]),
              output_features={"inputs": feature, "targets": feature},
              preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos])
if "mine" not in seqio.TaskRegistry.names():
  seqio.TaskRegistry.add("mine", metric_fns=[metrics.bleu], **common)
  seqio.TaskRegistry.add("unmeasured", metric_fns=[], **common)
''')
  monkeypatch.syspath_prepend(str(folder))
  common = ["--pair=tiny", "--task_module=my_tasks"]
  assert run([*EVAL, *common, "--task=mine", "--split=train"]) == 0
  capsys.readouterr()
  lines = [json.loads(line) for line in (folder / "out/predictions.jsonl").open()]
  expected = specdec.generate(memory_pair, ENGLISH, task="correct", gamma=2)
  assert [line["output_ids"] for line in lines] == expected.ids
  assert run(["infer", *common, "--seqio_task=unmeasured", "--split=train", "--gamma=2",
              "--output_dir=shards"]) == 0
  capsys.readouterr()
  shard = (folder / "shards/outputs-00000-of-00001.jsonl").read_text().splitlines()
  records = [json.loads(line) for line in shard]
  assert [record["output_ids"] for record in records] == expected.ids
  assert [record["input"] for record in records] == [f"correct: {text}" for text in ENGLISH]
  fail = lambda *args: mistake("eval", *common, *args)
  assert "has no split 'test'; it has: train, broken" in mistake(
      "infer", *common, "--seqio_task=mine", "--output_dir=none")
  assert "has no split 'test'; it has: train, broken" in fail("--task=mine")
  assert "the disk is gone" in fail("--task=mine", "--split=broken")
  assert "has no metrics" in fail("--task=unmeasured", "--split=train")
  assert "there is no task 'yours'; expected one of wmt_t2t_ende_v003" in fail("--task=yours")
  assert "cannot import the module 'nowhere'" in mistake(
      "eval", "--pair=tiny", "--task_module=nowhere", "--task=mine")


@needs_seqio
def test_data_that_is_not_there_is_told_in_a_line(mistake, memory_pair, tmp_path):
  said = mistake("eval", "--pair=tiny", "--task=ende", f"--tfds_data_dir={tmp_path}")
  assert "cannot read the split test of the task wmt_t2t_ende_v003" in said
  assert "tfds build wmt_t2t_translate" in said and "--tfds_data_dir" in said


@needs_seqio
def test_a_data_set_that_tfds_has_written_is_read(tmp_path):
  """The whole way that T5's task goes, with sentences of our own in the place of newstest's."""
  tfds = pytest.importorskip("tensorflow_datasets")
  pytest.importorskip("importlib_resources", reason="TensorFlow Datasets cannot write without it")
  from specdec.evaluation import examples

  rows = lambda part: [
      (i, {"en": ENGLISH[i], "de": GERMAN[i]}) for i in range(len(ENGLISH))[part]]
  tfds.dataset_builders.store_as_tfds_dataset(
      name="wmt_t2t_translate", version="1.0.0", data_dir=tmp_path, disable_shuffling=True,
      config="de-en", features=tfds.features.Translation(languages=("de", "en")),
      split_datasets={"train": rows(slice(0, 1)), "validation": rows(slice(1, 4)),
                      "test": rows(slice(4, 6))})
  read = examples.read("ende", tiny.vocabulary(), split="validation", data_dir=str(tmp_path))
  assert read.inputs == ["translate English to German: " + text for text in ENGLISH[1:4]]
  assert read.targets == GERMAN[1:4]
  assert read.limits() == {"max_source_len": 512, "max_decode_len": 512}


@needs_seqio
def test_a_lenient_evaluation_says_so(memory_pair, folder, capsys):
  from specdec.cli import eval as eval_cli
  from specdec.engine.result import Result
  from specdec.engine.settings import Settings
  from specdec.evaluation import evaluate
  from specdec.evaluation.decoding import Clock

  result = Result((), Settings(verifier="lenient", lenience=0.5))
  side = evaluate.Side(result, {"bleu": 1.0}, Clock())
  eval_cli.show(evaluate.Evaluation("a", "test", 0, {"drafter": "d"}, "float32", side))
  assert "NOT lossless" in capsys.readouterr().out
  assert side.to_dict()["lossless"] is False


@needs_seqio
@pytest.mark.skipif(not MULTI30K.is_dir(), reason="multi30k (public repository multi30k/dataset) "
                    f"is not at {MULTI30K}")
def test_greedy_bleu_of_the_demo_pair_is_that_of_plain_decoding(tmp_path, capsys):
  assert run(["eval", f"--inputs_file={MULTI30K}/{{split}}.en.gz",
              f"--targets_file={MULTI30K}/{{split}}.de.gz", "--split=test_2016_flickr",
              "--prefix=translate English to German: ", "--num_examples=16", "--baseline=plain",
              "--batch_size=16", "--dtype=float32", f"--output_dir={tmp_path / 'out'}"]) == 0
  results = json.loads((tmp_path / "out" / "results.json").read_text())
  assert results["metrics"] == results["baseline"]["metrics"]
  assert results["metrics"]["bleu"] > 30 and results["identical_outputs"] == 16
  assert results["alpha"] > 0.7


@pytest.mark.parametrize("args, expected", [
    ([], "there is nothing to evaluate; name a --task or local files"),
    (["--task=wmt"], "there is no task 'wmt'; expected one of wmt_t2t_ende_v003 (or ende), cnn_d"),
    (["--task=ende", "--split=dev"], "has no split 'dev'; it has: train, validation, test"),
    (["--data_file=a.tsv", "--split=dev"], "one split, test; drop --split"),
    (["--data_file=a.tsv", "--metrics=blue"], "there is no metric 'blue'"),
    (["--data_file=a.tsv", "--data_format=csv"], "data_format is 'csv'; expected tsv or jsonl"),
    (["--data_file=a.tsv", "--tfds_data_dir=x"], "--tfds_data_dir does not go with local files"),
    (["--data_file=a.tsv", "--baseline=plain", "--gamma=0"], "this is itself"),
    (["--data_file=a.tsv", "--num_examples=0"], "num_examples is 0; expected an integer from 1"),
    (["--data_file=a.tsv", "--temperature=-1"], "temperature is -1"),
    (["--data_file=a.tsv", "--output_dir=no/where"], "cannot make the folder --output_dir"),
    (["--data_file=a.tsv", "--pair=nowhere"], "there is no pair 'nowhere'"),
    (["--data_file=dev.jsonl"], "line 1 of dev.jsonl has no field 'inputs'; it has: en, de"),
    (["--data_file={split}.jsonl"], "has no split 'test'; it has: dev"),
    (["--prefix=a: ", "--task=ende"], "--prefix says something about local files"),
    (["--task=ende", "A text."], "eval takes its texts from a task, and 'A text.' was typed"),
])
def test_mistakes(folder, mistake, args, expected):
  assert expected in mistake("eval", *args)


def test_a_vocabulary_that_cannot_be_reached_is_told_in_a_line(monkeypatch):
  from specdec.checkpoints import stores
  from specdec.data.ids_only import IdsOnly
  from specdec.errors import SpecdecError
  from specdec.evaluation import vocabulary

  carried = tiny.vocabulary()
  assert vocabulary.of_models(carried) is carried
  # A port where nobody listens, in place of Google's.
  monkeypatch.setattr(stores, "kvstore", lambda path: {
      "driver": "http", "base_url": "http://127.0.0.1:9", "path": "",
      "context": {"http_request_retries": {"max_retries": 1, "max_delay": "1ms"}}})
  with pytest.raises(SpecdecError, match="cannot be had: name a local copy, --vocab="):
    vocabulary.of_models(IdsOnly(32128))
  from specdec.checkpoints import vocabularies
  with pytest.raises(SpecdecError, match=r"cannot read gs://a/b\.model: .*give its local path"):
    vocabularies.given("gs://a/b.model", 32128)


def test_a_vocabulary_on_cloud_storage_is_read_where_it_can_be(monkeypatch):
  from specdec.checkpoints import vocabularies
  from specdec.data.ids_only import IdsOnly
  from specdec.errors import SpecdecError
  from specdec.evaluation import vocabulary

  asked = []
  def read_file(folder, name, expected=""):
    asked.append(f"{folder}/{name}")
    return tiny.vocabulary().model
  monkeypatch.setattr(vocabularies.stores, "read_file", read_file)
  width = len(tiny.vocabulary())
  found = vocabulary.of_models(IdsOnly(width + 5))
  assert found.fingerprint == tiny.vocabulary().fingerprint
  assert asked == ["gs://t5-data/vocabs/cc_all.32000/sentencepiece.model"]
  with pytest.raises(SpecdecError, match="it is not T5's"):
    vocabulary.of_models(IdsOnly(width + 400))


def test_without_seqio_the_extra_is_named(folder, mistake, monkeypatch):
  """Whether it is installed or not: its import is made to fail."""
  import builtins
  import sys

  real = builtins.__import__
  def fail(name, *args, **kwargs):
    if name == "tensorflow":
      raise ImportError("No module named 'tensorflow'")
    return real(name, *args, **kwargs)
  for name in ("data.tasks.extra", "data.tasks.make", "data.tasks.vocabulary",
               "evaluation.examples", "evaluation.evaluate"):
    package, _, module = f"specdec.{name}".rpartition(".")
    monkeypatch.delitem(sys.modules, f"specdec.{name}", raising=False)
    if package in sys.modules:
      monkeypatch.delattr(sys.modules[package], module, raising=False)
  monkeypatch.setattr(builtins, "__import__", fail)
  assert "pip install 'specdec-jax[seqio]'" in mistake("eval", "--data_file=a.tsv")
