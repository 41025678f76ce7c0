"""The flags of a job of several processes, and how they come together."""

import contextlib
from typing import TYPE_CHECKING

from specdec.cli.flags import Flags
from specdec.errors import SpecdecError

if TYPE_CHECKING:
  from specdec.engine.hosts import Alone
  from specdec.engine.hosts import Group

# Flags that say where a command runs and not what: no run is bound to them.
FLAGS = ("coordinator_address", "num_processes", "process_id", "connect_timeout",
         "process_timeout")


def add_flags(flags: Flags) -> None:
  """Adds the flags in a group of their own."""
  flags.group("Several hosts")
  flags.text("coordinator_address", None, "HOST:PORT", "of process 0, when several processes share "
             "the work, each on its own devices; auto asks Slurm, Open MPI or Kubernetes; hosts of "
             "a Cloud TPU slice find each other [JAX_COORDINATOR_ADDRESS]")
  flags.whole("num_processes", None, "how many there are [JAX_NUM_PROCESSES]")
  flags.whole("process_id", None, "which of them this is, from 0 [JAX_PROCESS_ID]")
  flags.number("connect_timeout", 300.0, "seconds that they wait for each other at the start")
  flags.number("process_timeout", 30.0, "seconds after which a silent one counts as dead, and the "
               "others stop")


def join(flags: Flags, stack: contextlib.ExitStack) -> "Group | Alone":
  """The processes of the job, once all of them are there; left with the stack.

  Raises:
    SpecdecError: they do not find each other.
  """
  from specdec.engine import clusters
  from specdec.engine import hosts

  for name in ("connect_timeout", "process_timeout"):
    value = getattr(flags, name)
    if not 1 <= value <= 86400:
      raise SpecdecError(f"--{name} is {value:g}; expected seconds from 1 to 86400")
  layout = clusters.find(flags.coordinator_address, flags.num_processes, flags.process_id,
                         timeout_s=flags.connect_timeout)
  if layout is None:
    return hosts.Alone()
  group = stack.enter_context(hosts.Group(layout, flags.connect_timeout, flags.process_timeout))
  group.claim_devices()
  return group
