"""Several processes that do one job together, each on its own devices.

Process 0 listens, the others connect to it: over that one connection each they meet, take
shares, hand over results, and notice when one of them is gone. A process that dies closes its
connection, a host that dies falls silent; either ends all the others at once, in one line that
names it, whatever they are doing. Nothing else is shared: there are no collectives of JAX in
the work, so a process is as fast and as exact as it is alone.

JAX's own distributed runtime does not do for this: its `initialize` waits without letting other
threads run, and when a process dies it aborts all the others with a dump of the stack. It is
started beside, by `Group.initialize_jax`, where devices of several hosts work on one array, or
where the devices ask for it as slices of Cloud TPU do.
"""

from collections.abc import Callable
from collections.abc import Iterator
import os
import queue
import socket
import sys
import threading
import time
from typing import Any

from specdec import version
from specdec.engine import messages
from specdec.engine.clusters import Layout
from specdec.errors import SpecdecError

FAILED = 2
# A greeting is short: whoever sends more is no process of a job.
_GREETING_BYTES, _GREETING_S = 4096, 10.0
_RETRY_S = 0.2
# How long process 0 waits at the end until the others have heard its last word.
_PARTING_S = 10.0
# And when it fails.
_LAST_WORD_S = 0.5


class Alone:
  """A job of one process, with the face of a `Group`."""

  process_id, num_processes = 0, 1
  stopping = False

  def __init__(self):
    self._values: dict[str, Any] = {}
    self._taken: dict[str, int] = {}
    self.kept: Callable[[], str] = lambda: ""

  def publish(self, name: str, value: Any) -> None:
    """See `Group`."""
    self._values[name] = value

  def wait(self, name: str) -> Any:
    """See `Group`."""
    return self._values[name]

  def take(self, name: str) -> int:
    """See `Group`."""
    self._taken[name] = self._taken.get(name, -1) + 1
    return self._taken[name]

  def gather(self, name: str, value: Any) -> list[Any]:
    """See `Group`."""
    return [value]

  def stop(self) -> None:
    """See `Group`."""
    self.stopping = True

  def finish(self) -> None:
    """See `Group`."""

  def claim_devices(self) -> None:
    """See `Group`."""

  def __enter__(self) -> "Alone":
    return self

  def __exit__(self, *exc_info) -> None:
    pass


class Group:
  """The processes of a job, seen from one of them. A context: left by an error, it tells the
  others, which stop.

  Args:
    layout: which process this is.
    connect_s: seconds that processes wait for each other at the start.
    silence_s: seconds after which a process that says nothing counts as dead.

  Attributes:
    process_id: of this process.
    num_processes: of all.
    stopping: somebody has asked all of them to end.
    kept: says what is not lost when the job fails, for the message.

  Raises:
    SpecdecError: they do not find each other, or do not belong together.
  """

  def __init__(self, layout: Layout, connect_s: float = 300.0, silence_s: float = 30.0):
    self.layout = layout
    self.process_id, self.num_processes = layout.process_id, layout.num_processes
    self.kept: Callable[[], str] = lambda: ""
    self.stopping = False
    self._silence_s = silence_s
    self._stop_asked = threading.Event()
    self._over = threading.Event()
    # Set with either: the thread that beats sleeps no longer.
    self._wake = threading.Event()
    # Each is taken once, and kept.
    self._failing, self._passing_on = threading.Lock(), threading.Lock()
    self._names = {layout.process_id: socket.gethostname()}
    # What processes say to each other lies on a board of process 0.
    self._board = messages.Board(self.num_processes) if not self.process_id else None
    self._lines: dict[int, messages.Line] = {}
    self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    self._asking = threading.Lock()
    until = time.monotonic() + connect_s
    if self._board is not None:
      self._meet(until, connect_s)
    else:
      self._connect(until, connect_s)
    self._threads = [threading.Thread(target=self._listen, args=(other,), daemon=True)
                     for other in self._lines]
    self._threads.append(threading.Thread(target=self._beat, daemon=True))
    for thread in self._threads:
      thread.start()

  def name(self, process: int) -> str:
    """A process as messages call it, with its host."""
    host = self._names.get(process)
    return f"process {process} of {self.num_processes}" + (f" ({host})" if host else "")

  # Meeting.

  def _meet(self, until: float, connect_s: float) -> None:
    """Process 0: waits until all the others are there."""
    try:
      server = messages.listener(self.layout.port)
    except OSError as error:
      raise SpecdecError(f"process 0 cannot listen at port {self.layout.port}: "
                         f"{error.strerror or error}; give --coordinator_address another port, "
                         "or end what has it") from error
    with server:
      while len(self._lines) < self.num_processes - 1:
        server.settimeout(max(until - time.monotonic(), 0.01))
        try:
          connection, _ = server.accept()
        except TimeoutError:
          self._give_up(connect_s)
        self._admit(connection)
    hosts = {"type": "welcome", "hosts": [self._names[i] for i in range(self.num_processes)]}
    for line in self._lines.values():
      line.say(hosts)

  def _give_up(self, connect_s: float) -> None:
    missing = [i for i in range(1, self.num_processes) if i not in self._lines]
    text = (f"process{'es' * (len(missing) > 1)} {', '.join(map(str, missing))} of "
            f"{self.num_processes} did not come within {connect_s:g} s; start "
            f"{'them' if len(missing) > 1 else 'it'} with the same command and "
            f"--process_id={missing[0]}, or give --num_processes as many as there are")
    for line in self._lines.values():
      line.say({"type": "failed", "text": text})
    raise SpecdecError(text)

  def _admit(self, connection: socket.socket) -> None:
    """Greets whoever has connected, and refuses who does not belong here."""
    line = messages.Line(connection)
    try:
      hello = line.hear(_GREETING_S, _GREETING_BYTES)
    except (OSError, ValueError):
      hello = None
    if not hello or hello.get("type") != "hello":
      line.close()
      return
    process, refusal = hello.get("process"), None
    if hello.get("specdec") != version.__version__:
      refusal = (f"process {process} is specdec {hello.get('specdec')} and process 0 is "
                 f"{version.__version__}; install one version everywhere")
    elif hello.get("of") != self.num_processes:
      refusal = (f"--num_processes is {hello.get('of')}, and process 0 was started with "
                 f"{self.num_processes}; give all of them the same")
    elif process in self._lines or process not in range(1, self.num_processes):
      refusal = (f"there is a process {process} already, on {self._names.get(process)}; give each "
                 "--process_id once")
    if refusal:
      line.say({"type": "failed", "text": refusal})
      line.close()
      return
    self._names[process] = str(hello.get("host"))[:100]
    self._lines[process] = line

  def _connect(self, until: float, connect_s: float) -> None:
    """Another process: finds process 0 and waits until all are there."""
    address, reason = (self.layout.host, self.layout.port), "no answer"
    while True:
      try:
        connection = socket.create_connection(address, max(until - time.monotonic(), 0.01))
        break
      except OSError as error:
        reason = error.strerror or str(error) or reason
      if time.monotonic() + _RETRY_S > until:
        raise SpecdecError(
            f"process {self.process_id} cannot reach process 0 at {self.layout.address} within "
            f"{connect_s:g} s ({reason}); start it there, or check --coordinator_address and "
            "firewalls")
      time.sleep(_RETRY_S)
    line = messages.Line(connection)
    line.say({"type": "hello", "process": self.process_id, "of": self.num_processes,
              "host": self._names[self.process_id], "specdec": version.__version__})
    # Process 0 itself gives up after its own time, and says who is missing.
    try:
      welcome = line.hear(max(until - time.monotonic(), 0.0) + 2 * _GREETING_S)
    except (OSError, ValueError):
      welcome = None
    if welcome and welcome.get("type") == "failed":
      raise SpecdecError(welcome["text"])
    if not welcome or welcome.get("type") != "welcome":
      raise SpecdecError(f"what listens at {self.layout.address} is no process 0 of specdec, or "
                         "it has ended; check --coordinator_address, and start all processes anew")
    self._names = dict(enumerate(welcome["hosts"]))
    self._lines[0] = line

  # Working together.

  def publish(self, name: str, value: Any) -> None:
    """Process 0: tells all others something, JSON-ready."""
    self._board.put(name, value)

  def wait(self, name: str) -> Any:
    """What process 0 published under a name, as soon as it has."""
    return self._ask({"type": "wait", "name": name})

  def take(self, name: str) -> int:
    """A number from 0 on that no other call of any process gets."""
    return self._ask({"type": "take", "name": name})

  def gather(self, name: str, value: Any) -> list[Any] | None:
    """Waits for a value of each process.

    Returns:
      In process 0, all of them in the order of the processes; None in the others.
    """
    return self._ask({"type": "gather", "name": name, "value": value})

  def stop(self) -> None:
    """Asks all processes to end as soon as they can; may be called by a signal's handler."""
    self.stopping = True
    self._stop_asked.set()
    self._wake.set()

  def finish(self) -> None:
    """The last call: from then on, that a process is gone is no failure.

    Process 0 waits for the others, so that they hear what it has published.
    """
    if self._over.is_set():
      return
    if self._board is not None:
      self._board.wait_for_partings(_PARTING_S)
    self._pass_on_stop()
    self._over.set()
    self._wake.set()
    for line in self._lines.values():
      line.say({"type": "parting"})
      line.close()
    # An interpreter that goes away under a thread may take the process with it.
    for thread in self._threads:
      thread.join(_LAST_WORD_S)

  def claim_devices(self) -> None:
    """Sees to it that this process uses devices of its own; before any is used.

    Raises:
      SpecdecError: see `initialize_jax`.
    """
    import jax

    if self.layout.devices is not None:
      # As `jax.distributed.initialize` does it.
      for kind in ("cuda", "rocm"):
        jax.config.update(f"jax_{kind}_visible_devices", ",".join(map(str, self.layout.devices)))
    if self.layout.needs_jax:
      self.initialize_jax()

  def initialize_jax(self) -> None:
    """Starts JAX's distributed runtime with the same processes; before devices are used.

    Raises:
      SpecdecError: it does not start.
    """
    import jax

    if self.process_id == 0:
      with socket.socket() as free:
        free.bind(("", 0))
        self.publish("jax_port", free.getsockname()[1])
    port = self.wait("jax_port")
    # Its handler of SIGTERM would take the place of ours.
    jax.config.update("jax_enable_preemption_service", False)
    host = f"[{self.layout.host}]" if ":" in self.layout.host else self.layout.host
    try:
      jax.distributed.initialize(f"{host}:{port}", self.num_processes, self.process_id)
    except (RuntimeError, ValueError) as error:
      raise SpecdecError(f"jax.distributed does not start: {error}") from error

  def _ask(self, message: dict[str, Any]) -> Any:
    if self._board is not None:
      return self._board.answer(0, message)
    with self._asking:
      self._lines[0].say(message)
      return self._answers.get()["value"]

  # Watching each other.

  def _listen(self, other: int) -> None:
    """Hears what another process says, until it parts or is gone."""
    line, reason = self._lines[other], "its connection is closed"
    while True:
      try:
        message = line.hear(self._silence_s)
      except (OSError, ValueError) as error:
        message, reason = None, getattr(error, "strerror", None) or str(error)
      if message is None:
        self._fail(f"{self.name(other)} is gone: {reason}")
        return
      kind = message["type"]
      if kind == "parting":
        if self._board is not None:
          self._board.part(other)
        else:
          self._over.set()
        return
      if kind == "failed":
        self._fail(message["text"], told_by=other)
        return
      if kind == "stop":
        self.stop()
      elif kind == "answer":
        self._answers.put(message)
      elif kind != "beat":
        # Waits on its own: what others do must not keep this process from being heard.
        threading.Thread(target=self._reply, args=(line, other, message), daemon=True).start()

  def _reply(self, line: messages.Line, other: int, message: dict[str, Any]) -> None:
    value = self._board.answer(other, message)
    line.say({"type": "answer", "value": value})

  def _beat(self) -> None:
    """Says that this process is alive, and passes on a request to stop."""
    while not self._over.is_set():
      if self._stop_asked.is_set():
        self._pass_on_stop()
        self._over.wait(self._silence_s / messages.STEPS)
      else:
        self._wake.wait(self._silence_s / messages.STEPS)
      for line in self._lines.values():
        line.say({"type": "beat"})

  def _pass_on_stop(self) -> None:
    if self._stop_asked.is_set() and self._passing_on.acquire(blocking=False):
      for line in self._lines.values():
        line.say({"type": "stop"})

  def _fail(self, text: str, told_by: int | None = None) -> None:
    """Another process has failed: says so in a line and ends this one, whatever it does."""
    if self._over.is_set() or not self._failing.acquire(blocking=False):
      return
    try:
      for process, line in self._lines.items():
        if process != told_by:
          line.say({"type": "failed", "text": text})
      try:
        kept = self.kept()
      except (OSError, SpecdecError):
        kept = ""
      message = f"specdec: {text}; {self.name(self.process_id)} stops" + (kept and f"; {kept}")
      print(" ".join(message.split()), file=sys.stderr, flush=True)
      self._let_read()
    finally:
      # The main thread may be in the middle of a program on the device, and nobody may be
      # reading what was said; this process ends all the same.
      os._exit(FAILED)

  def __enter__(self) -> "Group":
    return self

  def __exit__(self, kind, error, trace) -> None:
    if error is None:
      self.finish()
      return
    if self._over.is_set() or not self._failing.acquire(blocking=False):
      return
    said = "was interrupted" if isinstance(error, KeyboardInterrupt) else f"failed: {error}"
    text = " ".join(f"{self.name(self.process_id)} {said}".split())
    self._over.set()
    for line in self._lines.values():
      line.say({"type": "failed", "text": text})
    self._let_read()

  def _let_read(self) -> None:
    """A process that ends with something unheard on a connection takes back what it has said."""
    if self._board is not None:
      time.sleep(_LAST_WORD_S)


def shares(group: "Group | Alone", name: str, work: list[int]) -> Iterator[int]:
  """Pieces of work, each for one process, taken as processes get to them.

  Args:
    group: of the job.
    name: of the work.
    work: the same in all processes.
  """
  while (place := group.take(name)) < len(work):
    yield work[place]
