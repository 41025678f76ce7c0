"""Which process of how many this is: by what was typed, the environment, or the cluster."""

from collections.abc import Mapping
import dataclasses
import importlib.util
import os

from specdec.errors import SpecdecError

# The environment variables that stand for flags; JAX itself reads the first.
VARIABLES = {"coordinator_address": "JAX_COORDINATOR_ADDRESS",
             "num_processes": "JAX_NUM_PROCESSES", "process_id": "JAX_PROCESS_ID"}
AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class Layout:
  """Which process of how many this is.

  Attributes:
    address: "host:port" where process 0 listens.
    num_processes: at least 1.
    process_id: from 0.
    needs_jax: the devices want `jax.distributed.initialize`, as slices of Cloud TPU do.
    devices: which of its host's GPUs are its own; None for all that it sees.
  """

  address: str
  num_processes: int
  process_id: int
  needs_jax: bool = False
  devices: tuple[int, ...] | None = None

  def __post_init__(self):
    if self.num_processes < 1:
      raise SpecdecError(f"--num_processes is {self.num_processes}; expected 1 or more")
    if not 0 <= self.process_id < self.num_processes:
      raise SpecdecError(f"--process_id is {self.process_id}; expected 0 to "
                         f"{self.num_processes - 1}, a number of its own for each process")
    host, colon, port = self.address.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
      raise SpecdecError(f"--coordinator_address is {self.address!r}; expected HOST:PORT, the "
                         "host of process 0 and a free port there, such as 10.0.0.2:8476")

  @property
  def host(self) -> str:
    """Of process 0."""
    return self.address.rpartition(":")[0].strip("[]")

  @property
  def port(self) -> int:
    """Where it listens."""
    return int(self.address.rpartition(":")[2])


def find(coordinator_address: str | None = None, num_processes: int | None = None,
         process_id: int | None = None, *, environment: Mapping[str, str] | None = None,
         timeout_s: float = 300.0) -> Layout | None:
  """The layout of a job.

  Args:
    coordinator_address: "HOST:PORT" of process 0; "auto" to ask the cluster (Slurm, Open MPI,
      Kubernetes, Cloud TPU).
    num_processes: how many there are.
    process_id: which of them this is.
    environment: variables that stand in for what is None; those of the process by default.
    timeout_s: how long a cluster may take to name its hosts.

  Returns:
    None for a process of its own.

  Raises:
    SpecdecError: something of it is missing or wrong.
  """
  environment = os.environ if environment is None else environment
  if coordinator_address is None:
    coordinator_address = environment.get(VARIABLES["coordinator_address"])
  num_processes = _number("num_processes", num_processes, environment)
  process_id = _number("process_id", process_id, environment)
  given = (coordinator_address, num_processes, process_id)
  if coordinator_address == AUTO:
    return _of_cluster(num_processes, process_id, timeout_s)
  if given == (None, None, None):
    return _of_cloud_tpu(environment, timeout_s)
  if num_processes == 1:
    return None
  lacking = [f"--{name}" for name, value in zip(VARIABLES, given) if value is None]
  if lacking:
    raise SpecdecError(f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing; "
                       "several processes need --coordinator_address=HOST:PORT, --num_processes=N "
                       "and --process_id=I, or --coordinator_address=auto in a cluster that tells")
  return Layout(coordinator_address, num_processes, process_id)


def _number(name: str, value: int | None, environment: Mapping[str, str]) -> int | None:
  text = environment.get(VARIABLES[name])
  if value is not None or not text:
    return value
  try:
    return int(text)
  except ValueError:
    raise SpecdecError(f"{VARIABLES[name]} is {text!r}; expected a whole number") from None


def _of_cluster(num_processes: int | None, process_id: int | None, timeout_s: float
                ) -> Layout | None:
  """What JAX finds out about the cluster."""
  from jax._src import clusters

  try:
    address, count, index, devices = clusters.ClusterEnv.auto_detect_unset_distributed_params(
        None, num_processes, process_id, None, None, int(timeout_s))
  except Exception as error:
    # Each kind of cluster fails in its own way.
    raise SpecdecError(f"the cluster does not say who process 0 is ({error}); give "
                       "--coordinator_address, --num_processes and --process_id") from error
  if address is None or count is None or index is None:
    raise SpecdecError("--coordinator_address is auto, and no cluster is found (Cloud TPU, Slurm "
                       "by srun, Open MPI, Kubernetes); give HOST:PORT, --num_processes and "
                       "--process_id")
  if count == 1:
    return None
  return Layout(address, count, index, _cloud_tpu() is not None,
                None if devices is None else tuple(devices))


def _of_cloud_tpu(environment: Mapping[str, str], timeout_s: float) -> Layout | None:
  """A slice of Cloud TPU with several hosts, whose devices work together or not at all."""
  if "tpu" not in (environment.get("JAX_PLATFORMS") or "tpu"):
    return None
  if importlib.util.find_spec("libtpu") is None and not environment.get("TPU_LIBRARY_PATH"):
    return None  # Without it there are no TPUs, and nobody has to wait for jax to say so.
  cluster = _cloud_tpu()
  if cluster is None:
    return None
  count = cluster.get_process_count()
  if count == 1:
    return None
  address = cluster.get_coordinator_address(int(timeout_s), None)
  return Layout(address, count, cluster.get_process_id(), needs_jax=True)


def _cloud_tpu():
  """How JAX asks Cloud TPU; None elsewhere."""
  from jax._src.clusters import cloud_tpu_cluster

  kinds = (cloud_tpu_cluster.GkeTpuCluster, cloud_tpu_cluster.GceTpuCluster)
  return next((kind for kind in kinds if kind.is_env_present()), None)
