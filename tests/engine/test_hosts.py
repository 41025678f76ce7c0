"""Several processes of one job: they meet, share, and notice when one of them is gone."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from specdec.engine import clusters
from specdec.engine import hosts
from specdec.engine.clusters import Layout
from specdec.engine.hosts import Group
from specdec.errors import SpecdecError

ROOT = str(pathlib.Path(hosts.__file__).parents[2])
# What a process of a failing job does: says that it is there, and works on until it is ended.
WORKER = """
import sys, time
from specdec.engine.clusters import Layout
from specdec.engine.hosts import Group
from specdec.errors import SpecdecError
port, count, index, silence, act = sys.argv[1:]
with Group(Layout(f"127.0.0.1:{port}", int(count), int(index)), 20, float(silence)) as group:
  group.kept = lambda: "3 of 7 shards are in out"
  print("there", flush=True)
  if act == "fail":
    time.sleep(1)
    raise SpecdecError("the disk is full")
  if act == "wait":
    group.wait("never")
  begin = time.monotonic()
  while act == "work" and time.monotonic() < begin + 60 and not group.stopping:
    sum(range(1000))
print("stopping" if group.stopping else "done", flush=True)
"""


@pytest.fixture
def port():
  with socket.socket() as free:
    free.bind(("", 0))
    return free.getsockname()[1]


@pytest.fixture
def start(port, tmp_path):
  """Starts processes that do what is said of each; ends those that are left."""
  started = []

  def call(*acts, silence=20):
    started.extend(subprocess.Popen(
        [sys.executable, "-c", WORKER, str(port), str(len(acts)), str(i), str(silence), act],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ROOT}) for i, act in enumerate(acts))
    for process in started:
      assert process.stdout.readline() == "there\n"
    return started
  yield call
  for process in started:
    process.kill()
    process.communicate()


def together(port, work, count=3):
  """What `work(group)` returns in each process of a job; here they are threads."""
  out = [None] * count

  def run(index):
    with Group(Layout(f"127.0.0.1:{port}", count, index), 20) as group:
      out[index] = work(group)
  threads = [threading.Thread(target=run, args=(i,)) for i in reversed(range(count))]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
  return out


def refusal(port, process=1, count=2, connect_s=1.0):
  with pytest.raises(SpecdecError) as caught:
    Group(Layout(f"127.0.0.1:{port}", count, process), connect_s)
  assert "\n" not in str(caught.value)
  return str(caught.value)


def test_work_is_taken_once_and_what_comes_of_it_is_gathered_in_order(port):
  def work(group):
    if group.process_id == 0:
      group.publish("left", list(range(3, 53)))
    mine = []
    for shard in hosts.shares(group, "shards", group.wait("left")):
      mine.append(shard)
      time.sleep(0.001)
    large = "ü" * 2**20
    return group.gather("done", [group.process_id, mine, large]), mine

  (gathered, first), *others = together(port, work)
  assert [gathered[i][:2] for i in range(3)] == [[0, first], [1, others[0][1]], [2, others[1][1]]]
  assert gathered[2][2] == "ü" * 2**20
  assert [result for result, _ in others] == [None, None]
  every = first + others[0][1] + others[1][1]
  assert sorted(every) == list(range(3, 53)) and min(map(len, (first, others[0][1]))) > 0


def test_a_process_alone_has_the_same_face():
  group = hosts.Alone()
  group.publish("left", [5, 6])
  with group:
    assert list(hosts.shares(group, "shards", group.wait("left"))) == [5, 6]
    assert group.gather("done", 1) == [1] and not group.stopping


def test_strangers_at_the_port_are_sent_away(port):
  def work(group):
    return group.gather("done", group.process_id)

  def knock():
    for text in (b"GET / HTTP/1.0\r\n\r\n", b"x" * 10_000, b"{}\n", b""):
      for _ in range(200):
        with contextlib.suppress(ConnectionRefusedError), \
            socket.create_connection(("127.0.0.1", port)) as stranger:
          stranger.sendall(text)
          break
        time.sleep(0.01)
  thread = threading.Thread(target=knock)
  thread.start()
  # Process 0 is there first, so that they are heard before the others.
  assert together(port, work)[0] == [0, 1, 2]
  thread.join()


@pytest.mark.parametrize("victim", [0, 2])
def test_when_a_process_is_killed_all_others_stop_and_name_it(start, victim):
  # One of them waits for another, two compute.
  processes = start("work", "wait", "work")
  processes[victim].send_signal(signal.SIGKILL)
  begin = time.monotonic()
  for i, process in enumerate(processes):
    _, err = process.communicate(timeout=30)
    if i != victim:
      assert process.returncode == 2 and err.count("\n") == 1
      assert f"process {victim} of 3 ({socket.gethostname()}) is gone" in err
      assert f"process {i} of 3" in err and "3 of 7 shards are in out" in err
  assert time.monotonic() - begin < 10


def test_a_process_stops_also_where_nobody_reads_what_it_says(start):
  processes = start("work", "wait")
  processes[1].stderr.close()
  processes[0].send_signal(signal.SIGKILL)
  assert processes[1].wait(timeout=30) == 2
  processes[1].stderr = None


def test_a_process_that_falls_silent_counts_as_dead(start):
  processes = start("work", "work", silence=2)
  processes[1].send_signal(signal.SIGSTOP)
  _, err = processes[0].communicate(timeout=30)
  assert processes[0].returncode == 2
  assert "process 1 of 2" in err and "no sign of life for 2 s" in err
  processes[1].send_signal(signal.SIGCONT)
  _, err = processes[1].communicate(timeout=30)
  assert processes[1].returncode == 2 and err.count("\n") == 1


def test_time_in_which_all_of_them_are_suspended_does_not_count(start):
  processes = start("work", "work", silence=2)
  for number in (signal.SIGSTOP, signal.SIGCONT):
    for process in processes:
      process.send_signal(number)
    time.sleep(3)
  assert [process.poll() for process in processes] == [None, None]


@pytest.mark.parametrize("failing", [0, 1])
def test_what_a_process_failed_of_is_told_by_all(start, failing):
  acts = ["work"] * 3
  acts[failing] = "fail"
  for i, process in enumerate(start(*acts)):
    _, err = process.communicate(timeout=30)
    if i != failing:
      assert process.returncode == 2 and err.count("\n") == 1
      assert f"process {failing} of 3" in err and "failed: the disk is full" in err


def test_a_request_to_stop_reaches_all(port):
  def work(group):
    if group.process_id == 1:
      group.stop()
    until = time.monotonic() + 20
    while not group.stopping and time.monotonic() < until:
      time.sleep(0.01)
    return group.stopping
  assert together(port, work) == [True, True, True]


def test_a_process_that_nobody_answers_says_so(port):
  begin = time.monotonic()
  assert (f"process 1 cannot reach process 0 at 127.0.0.1:{port} within 1 s (Connection refused)"
          in refusal(port))
  assert time.monotonic() - begin < 5
  assert "processes 1, 2 of 3 did not come within 1 s" in refusal(port, 0, 3)
  with socket.create_server(("127.0.0.1", port)) as other:
    threading.Thread(target=lambda: other.accept()[0].sendall(b"220 mail\r\n")).start()
    assert "is no process 0 of specdec" in refusal(port)
  with socket.create_server(("", port)):
    assert "process 0 cannot listen" in refusal(port, 0)


def test_those_who_do_not_belong_together_are_told(port):
  found = {}

  def first():
    with pytest.raises(SpecdecError) as caught:
      Group(Layout(f"127.0.0.1:{port}", 3, 0), 4.0)
    found[0] = str(caught.value)

  def second():
    with pytest.raises(SpecdecError) as caught:
      Group(Layout(f"127.0.0.1:{port}", 3, 1), 4.0)
    found[1] = str(caught.value)
  threads = [threading.Thread(target=f) for f in (first, second)]
  for thread in threads:
    thread.start()
    time.sleep(0.5)
  assert "there is a process 1 already" in refusal(port, 1, 3)
  assert "--num_processes is 4, and process 0 was started with 3" in refusal(port, 2, 4)
  for thread in threads:
    thread.join()
  # Process 2 never comes, and both say so.
  assert "process 2 of 3 did not come within 4 s" in found[0] and found[1] == found[0]


def test_flags_win_over_the_environment(port):
  environment = {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
  assert clusters.find(environment=environment) == Layout("a:1", 4, 3)
  assert clusters.find("b:2", 3, 0, environment=environment) == Layout("b:2", 3, 0)
  assert clusters.find(None, 1, environment=environment) is None
  assert clusters.find(environment={}) is None
  assert Layout("[::1]:80", 1, 0).host == "::1"


def test_a_slurm_job_tells_the_layout(monkeypatch):
  for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
    monkeypatch.delenv(name, raising=False)
  for name, value in {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "gpu[3-4]", "SLURM_NTASKS": "16",
                      "SLURM_PROCID": "9", "SLURM_LOCALID": "1",
                      "SLURM_STEP_NUM_NODES": "2"}.items():
    monkeypatch.setenv(name, value)
  found = clusters.find("auto")
  assert (found.host, found.num_processes, found.process_id) == ("gpu3", 16, 9)
  assert found.devices == (1,) and not found.needs_jax
  # Not asked for, a job of Slurm is a process like any other.
  assert clusters.find() is None


@pytest.mark.parametrize("given, expected", [
    (("a:1", None, 0), "--num_processes is missing"),
    ((None, 2, None), "--coordinator_address and --process_id are missing"),
    (("a:1", 2, 2), "--process_id is 2; expected 0 to 1"),
    (("a:1", 0, 0), "--num_processes is 0"),
    (("a", 2, 0), "--coordinator_address is 'a'; expected HOST:PORT"),
    (("a:99999", 2, 0), "expected HOST:PORT"),
    (("auto", None, None), "no cluster is found"),
])
def test_mistakes_in_a_layout(given, expected):
  with pytest.raises(SpecdecError) as caught:
    clusters.find(*given, environment={})
  assert expected in str(caught.value)


def test_numbers_in_the_environment_are_checked():
  with pytest.raises(SpecdecError, match="JAX_PROCESS_ID is 'x'; expected a whole number"):
    clusters.find(environment={"JAX_PROCESS_ID": "x"})
  assert os.environ.get("JAX_PROCESS_ID") is None
