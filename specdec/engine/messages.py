"""What the processes of one job say to each other, and what process 0 keeps for all of them.

A connection carries messages, a line of JSON each; values that all are to read, numbers that
each is taken once and results lie on a board in process 0. `engine.hosts` makes a job of it.
"""

import json
import select
import socket
import threading
from typing import Any

# A process that listens looks so often for a sign of life before it says that there is none.
STEPS = 10


class Board:
  """What process 0 keeps for all: values, numbers that were taken, who has parted."""

  def __init__(self, num_processes: int):
    self._num_processes = num_processes
    self._changed = threading.Condition()
    self._values: dict[str, Any] = {}
    self._taken: dict[str, int] = {}
    self._gathered: dict[str, dict[int, Any]] = {}
    self._parted: set[int] = {0}

  def put(self, name: str, value: Any) -> None:
    """Something for all to read."""
    with self._changed:
      self._values[name] = value
      self._changed.notify_all()

  def answer(self, process: int, message: dict[str, Any]) -> Any:
    """What a process gets for what it asks; may take until others have done their part."""
    name = message["name"]
    with self._changed:
      if message["type"] == "take":
        self._taken[name] = self._taken.get(name, -1) + 1
        return self._taken[name]
      if message["type"] == "wait":
        self._changed.wait_for(lambda: name in self._values)
        return self._values[name]
      values = self._gathered.setdefault(name, {})
      values[process] = message["value"]
      self._changed.notify_all()
      if process:
        return None
      self._changed.wait_for(lambda: len(values) == self._num_processes)
      return [self._gathered[name][i] for i in range(self._num_processes)]

  def part(self, process: int) -> None:
    """A process has done all it had to."""
    with self._changed:
      self._parted.add(process)
      self._changed.notify_all()

  def wait_for_partings(self, seconds: float) -> None:
    """Until all have parted, or so long."""
    with self._changed:
      self._changed.wait_for(lambda: len(self._parted) == self._num_processes, seconds)


class Line:
  """A connection that carries messages, a line of JSON each."""

  def __init__(self, connection: socket.socket):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(None)
    self._connection, self._speaking = connection, threading.Lock()
    self._heard = bytearray()

  def say(self, message: dict[str, Any]) -> None:
    """Sends a message; that nobody is there any more shows where they are heard."""
    data = json.dumps(message).encode() + b"\n"
    try:
      with self._speaking:
        self._connection.sendall(data)
    except OSError:
      pass

  def hear(self, silence_s: float, limit: int | None = None) -> dict[str, Any] | None:
    """The next message; None when the other side has closed.

    Args:
      silence_s: seconds without a byte after which there is nobody.
      limit: bytes of a message; None for any.

    Raises:
      TimeoutError: there was silence for too long.
      OSError: the connection is broken.
      ValueError: it was no message.
    """
    found = self._heard.find(b"\n")
    while found < 0:
      piece = self._receive(silence_s)
      if not piece:
        return None
      begin = len(self._heard)
      self._heard += piece
      found = self._heard.find(b"\n", begin)
      if limit is not None and len(self._heard) > limit:
        raise ValueError("what it says is too long for a greeting")
    data, self._heard = self._heard[:found], self._heard[found + 1:]
    message = json.loads(data)
    if not isinstance(message, dict) or "type" not in message:
      raise ValueError("what it says is no message of specdec")
    return message

  def _receive(self, silence_s: float) -> bytes:
    """Some bytes; none when the other side has closed."""
    # In steps: time in which this process itself was suspended counts as one of them.
    poll = select.poll()
    poll.register(self._connection, select.POLLIN)
    for _ in range(STEPS):
      if poll.poll(1000 * silence_s / STEPS):
        return self._connection.recv(2**16)
    raise TimeoutError(f"no sign of life for {silence_s:g} s")

  def close(self) -> None:
    """Nothing more is said; what was is still delivered."""
    try:
      self._connection.shutdown(socket.SHUT_WR)
    except OSError:
      pass


def listener(port: int) -> socket.socket:
  """Listens on all interfaces, for IPv6 and IPv4 where the system has both."""
  dual = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if dual else socket.AF_INET
  return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=1024)
