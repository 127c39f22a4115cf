"""`Cluster`: one immutable value with the tasks of a cluster, their addresses, and the groups that step together.

Every dialect produces it; every strategy and every launcher reads it. It does not import TensorFlow, which takes seconds.
TensorFlow gets it as `tf.train.ClusterSpec(cluster.cluster_spec())` and as
`os.environ["TF_CONFIG"] = json.dumps(cluster.tf_config("worker", 0))`.
"""

import dataclasses
import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tfdist.errors import Source
from tfdist.partition import Partition
from tfdist.synchronization import DEFAULTS, Synchronization, default_sync_period

JOBS = ("chief", "worker", "ps", "evaluator")
"""The jobs of a TensorFlow cluster, in the order of the tasks."""

DEFAULT_START_PORT = 27182
"""First port for tasks without a port in the description. It is that of `gcloud ai-platform local train`."""

EXTENSION = "tfdist"
"""The key of TF_CONFIG for fields for which TF_CONFIG has no words. TensorFlow ignores unknown keys."""

_FURTHER = ("separate_servers", "sync_period", "share_memory", "job_dir", "strategy", "min_workers", "partial")
"""Fields of `Cluster` that are entries of the extension as they are."""

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Task:
    """One process of the cluster.

    Attributes:
        job: `chief`, `worker`, `ps` or `evaluator`.
        index: its number within the job, from 0.
        host: name or address of its machine; None if the description leaves it open.
        port: its TCP port, 1 to 65535; None if the description leaves it open.
        slots: replicas that it computes (worker, chief) or shards that it holds (ps), at least 1.
        gpus: number of slots that are GPUs according to the description, 0 to `slots`.
        machine_type: the machine type in the description. It is only shown, and not compared.
    """

    job: str
    index: int
    host: str | None = None
    port: int | None = None
    slots: int = 1
    gpus: int = 0
    machine_type: str | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """`job:index`, for messages and log prefixes."""
        return f"{self.job}:{self.index}"

    @property
    def machine(self) -> str:
        """Its host as tasks on one machine have it in common: in lower case, because host names ignore case."""
        return (self.host or "localhost").lower()

    @property
    def log_name(self) -> str:
        """Name of the file with the output of this task."""
        return f"{self.job}-{self.index}.log"

    @property
    def address(self) -> str:
        """`host:port`, an IPv6 host in brackets. Raises ValueError if host or port is open."""
        if self.host is None or self.port is None:
            raise ValueError(f"{self.name} has no address yet; Cluster.addressed() gives it one")
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Cluster:
    """A whole cluster: its tasks, its groups, and the options of synchronization.

    Worker ranks count the slots of the worker tasks in task order, server ranks those of the ps tasks. The workers of a group
    step synchronously, and groups run asynchronously. A server group holds one full copy of the parameters (SINGA's terms,
    https://singa.apache.org). Clusters with the same meaning are equal, whatever their sources are.

    Attributes:
        tasks: every task, ordered by job (chief, worker, ps, evaluator) and index.
        worker_groups: worker ranks of each group. Default: one group per worker task in a cluster with ps, else one group of
            all. Where hogwild is forced on a cluster without ps, one group of all becomes one group per worker task.
        server_groups: server ranks of each group. Default: one group of all servers.
        separate_servers: whether servers run in separate processes (SINGA's `server_worker_separate`).
        sync_period: updates of a worker group between two synchronizations with the global parameters, at least 1 (SINGA's
            `sync_freq`).
        synchronization: the options of such a synchronization (Hogwild).
        partition: which variables are sharded over the devices of a task; by default none.
        share_memory: whether the worker groups of a process update one replica of the parameters (SINGA's `share_memory`).
        job_dir: folder for the output of the job (CloudML's `jobDir`, SINGA's `workspace`), or None.
        strategy: the strategy that the user forces (`--strategy`); None to choose by the description.
        protocol: TensorFlow's `rpc_layer`.
        min_workers: worker tasks with which the training begins; the others may join later. None for all of them.
        partial: whether this is the view of one task, as TFJob's `enableDynamicWorker` gives it. Other tasks may exist.
        source: source of the description; not compared.
        task: (job, index) of the process that read it from its environment, or None; not compared.
        says: `sync_period` and options of synchronization that are given, even where they are the defaults; not compared.

    Raises:
        ClusterError: if the tasks and groups contradict each other.
    """

    tasks: tuple[Task, ...]
    worker_groups: Groups = ()
    server_groups: Groups = ()
    separate_servers: bool = True
    sync_period: int = 1
    synchronization: Synchronization = field(default=Synchronization())
    partition: Partition = field(default=Partition())
    share_memory: bool = True
    job_dir: str | None = None
    strategy: str | None = None
    protocol: str = "grpc"
    min_workers: int | None = None
    partial: bool = False
    source: Source = field(default=Source("python", "Cluster"), compare=False)
    task: tuple[str, int] | None = field(default=None, compare=False)
    says: frozenset[str] = field(default=frozenset(), compare=False)

    def __post_init__(self) -> None:
        order = {job: position for position, job in enumerate(JOBS)}
        for task in self.tasks:
            _check_task(task, self.source)
        tasks = tuple(sorted(self.tasks, key=lambda task: (order[task.job], task.index)))
        object.__setattr__(self, "tasks", tasks)
        if not self.worker_groups or self._is_one_group_of_hogwild():
            object.__setattr__(self, "worker_groups", self.default_worker_groups)
        if not self.server_groups:
            object.__setattr__(self, "server_groups", self.default_server_groups)
        _check(self)

    def job(self, name: str) -> tuple[Task, ...]:
        """Returns the tasks of one job, by index; empty if the cluster has none."""
        return tuple(task for task in self.tasks if task.job == name)

    @property
    def training_tasks(self) -> tuple[Task, ...]:
        """All tasks except evaluators: those that TensorFlow lists in `cluster`."""
        return tuple(task for task in self.tasks if task.job != "evaluator")

    @property
    def parameter_tasks(self) -> tuple[Task, ...]:
        """The tasks that hold the parameters where a chief coordinates workers: the ps, or without ps the workers."""
        return self.job("ps") or self.job("worker")

    @property
    def default_worker_groups(self) -> Groups:
        """The worker groups that these tasks have if the description puts them into none."""
        workers = self.job("worker")
        if not workers:
            return ()
        if not self.job("ps") and self.strategy != "hogwild":
            return (tuple(range(sum(task.slots for task in workers))),)
        return tuple(_runs(task.slots for task in workers))

    @property
    def default_server_groups(self) -> Groups:
        """The server groups that these tasks have if the description puts them into none."""
        servers = sum(task.slots for task in self.job("ps"))
        return (tuple(range(servers)),) if servers else ()

    @property
    def group_tasks(self) -> tuple[tuple[Task, ...], ...]:
        """The worker tasks of each worker group."""
        workers = [task for task in self.job("worker") for _ in range(task.slots)]
        return tuple(tuple(dict.fromkeys(workers[rank] for rank in group)) for group in self.worker_groups)

    @property
    def slots(self) -> int:
        """Replicas of all workers; in a cluster without workers those of the chief."""
        return sum(task.slots for task in self.job("worker") or self.job("chief"))

    @property
    def replica_slots(self) -> int:
        """Workers of a worker group that make up one replica, in a cluster with ps: 1 without a partition; by default all."""
        return (self.partition.devices or max(map(len, self.worker_groups), default=1)) if self.partition else 1

    @property
    def given_options(self) -> dict[str, Any]:
        """The options of synchronization that are given, by name: those that differ from the defaults, and those of `says`."""
        options = self.synchronization
        return options.non_default() | {name: getattr(options, name) for name in DEFAULTS if name in self.says}

    def find(self, job: str, index: int) -> Task:
        """Returns the task `job:index`. Raises ClusterError if there is none."""
        for task in self.tasks:
            if (task.job, task.index) == (job, index):
                return task
        raise self.source.error(f"there is no task {job}:{index}; this cluster has {self.describe()}")

    def describe(self) -> str:
        """Returns the jobs and their numbers of tasks: `1 chief, 4 workers, 3 ps`."""
        counts = Counter(task.job for task in self.tasks)
        plural = {"worker": "workers", "evaluator": "evaluators"}
        return ", ".join(f"{n} {plural.get(job, job) if n > 1 else job}" for job, n in counts.items())

    def cluster_spec(self) -> dict[str, list[str] | dict[str, str]]:
        """Returns addresses by job, in the form that `tf.train.ClusterSpec` takes.

        It has no evaluators: TensorFlow expects every task of the specification to train. A job with missing indices is a dict
        from index to address. `addressed()` fills open addresses.
        """
        spec: dict[str, list[str] | dict[str, str]] = {}
        addressed = self.addressed()
        for job in JOBS[:3]:
            tasks = addressed.job(job)
            if tasks:
                spec[job] = _addresses(tasks)
        return spec

    def tf_config(self, job: str, index: int) -> dict[str, Any]:
        """Returns TF_CONFIG of the task `job:index`, ready for `json.dumps`.

        Fields for which TF_CONFIG has no words (groups, sync period, slots, partition, a forced strategy) go under the key
        `tfdist` if they differ from the defaults. Reading the result gives an equal Cluster.

        Raises:
            ClusterError: if the cluster has no such task.
        """
        task = self.find(job, index)
        config: dict[str, Any] = {"cluster": self.cluster_spec(), "task": {"type": task.job, "index": task.index}}
        if self.protocol != "grpc":
            config["rpc_layer"] = self.protocol
        extension = self._extension()
        if extension:
            config[EXTENSION] = extension
        return config

    def addressed(self, start_port: int = DEFAULT_START_PORT) -> "Cluster":
        """Returns this cluster with an address for every task: open hosts become `localhost`, open ports count up per host.

        The order is that of `gcloud ai-platform local train`: chief, ps, workers, then evaluators. Ports that the description
        gives to other tasks are skipped.

        Raises:
            ClusterError: if a port would be above 65535.
        """
        if all(task.host is not None and task.port is not None for task in self.tasks):
            return self
        taken = {(task.machine, task.port) for task in self.tasks if task.port is not None}
        following: dict[str, int] = {}
        done: list[Task] = []
        for job in ("chief", "ps", "worker", "evaluator"):
            for task in self.job(job):
                port = task.port
                if port is None:
                    port = following.get(task.machine, start_port)
                    while (task.machine, port) in taken:
                        port += 1
                    following[task.machine] = port + 1
                    if port > 65535:
                        raise self.source.error(
                            f"{task.name} would get port {port}; start_port {start_port} leaves too few ports below 65536"
                        )
                done.append(dataclasses.replace(task, host=task.host or "localhost", port=port))
        return dataclasses.replace(self, tasks=tuple(done))

    def with_chief(self) -> "Cluster":
        """Returns this cluster with a chief. If it has none, one is added on worker 0's host, with an open port.

        Under ParameterServer and Hogwild the workers only serve, so a chief has to run the user's program.
        """
        if self.job("chief") or not self.job("worker"):
            return self
        chief = Task("chief", 0, host=self.job("worker")[0].host)
        return dataclasses.replace(self, tasks=(chief, *self.tasks))

    def _is_one_group_of_hogwild(self) -> bool:
        """Returns whether the one group is that of an all-reduce: hogwild was forced afterwards."""
        return self.strategy == "hogwild" and not self.job("ps") and len(self.worker_groups) == 1

    def _extension(self) -> dict[str, Any]:
        extension: dict[str, Any] = {}
        for job in JOBS:
            slots = [[task.slots, task.gpus] for task in self.job(job)]
            if any(pair != [1, 0] for pair in slots):
                extension.setdefault("slots", {})[job] = slots
        if self.worker_groups != self.default_worker_groups:
            extension["worker_groups"] = [list(group) for group in self.worker_groups]
        if self.server_groups != self.default_server_groups:
            extension["server_groups"] = [list(group) for group in self.server_groups]
        defaults = {"sync_period": default_sync_period(self.strategy)}
        for entry in dataclasses.fields(self):
            if entry.name in _FURTHER:
                value = getattr(self, entry.name)
                if value != defaults.get(entry.name, entry.default) or entry.name in self.says:
                    extension[entry.name] = value
        if options := self.given_options:
            extension["synchronization"] = options
        if self.partition:
            extension["partition"] = self.partition.as_dict()
        if self.job("evaluator"):
            extension["evaluators"] = _addresses(self.addressed().job("evaluator"))
        return extension


def _runs(lengths: Iterable[int]) -> Iterator[tuple[int, ...]]:
    start = 0
    for length in lengths:
        yield tuple(range(start, start + length))
        start += length


def _addresses(tasks: tuple[Task, ...]) -> list[str] | dict[str, str]:
    if [task.index for task in tasks] == list(range(len(tasks))):
        return [task.address for task in tasks]
    return {str(task.index): task.address for task in tasks}


def _check(cluster: Cluster) -> None:
    """Raises ClusterError if the tasks and groups contradict each other."""
    error = cluster.source.error
    counts = Counter((task.job, task.index) for task in cluster.tasks)
    twice = [f"{job}:{index}" for (job, index), n in counts.items() if n > 1]
    if twice:
        raise error(f"the task {twice[0]} is listed twice; list it once, or give one of them another index")
    if not cluster.tasks:
        raise error("the description has no tasks; it needs at least a chief or a worker")
    if len(cluster.job("chief")) > 1:
        raise error(f"there are {len(cluster.job('chief'))} chiefs; TensorFlow allows one")
    if not cluster.partial:
        if cluster.job("ps") and not cluster.job("worker"):
            raise error(f"there are ps tasks but no workers ({cluster.describe()}); add workers or remove the ps")
        if not cluster.training_tasks:
            raise error("there are evaluators but nothing that trains; add a chief or a worker")
        for job in JOBS[:3]:
            indices = [task.index for task in cluster.job(job)]
            if indices != list(range(len(indices))):
                raise error(f"the indices of the {job} tasks have holes; {len(indices)} of them count from 0 without any")
    _check_addresses(cluster)
    if cluster.sync_period < 1:
        raise error(f"the sync period is {cluster.sync_period}; it counts updates and is at least 1")
    if cluster.min_workers is not None and not 1 <= cluster.min_workers <= max(1, len(cluster.job("worker"))):
        raise error(
            f"the training should begin with {cluster.min_workers} workers (min_workers), and this cluster has "
            f"{len(cluster.job('worker'))}; expected a whole number from 1 to that",
        )
    _check_groups(cluster, "worker group", cluster.worker_groups, "worker")
    _check_groups(cluster, "server group", cluster.server_groups, "ps")


def _check_groups(cluster: Cluster, kind: str, groups: Groups, job: str) -> None:
    ranks = sorted(rank for group in groups for rank in group)
    expected = sum(task.slots for task in cluster.job(job))
    if ranks != list(range(expected)) or not all(groups):
        raise cluster.source.error(f"the {kind}s do not hold each of the {expected} {job} ranks exactly once")


def _check_addresses(cluster: Cluster) -> None:
    held: dict[tuple[str, int], Task] = {}
    for task in cluster.tasks:
        if task.host is not None and task.port is not None:
            other = held.setdefault((task.machine, task.port), task)
            if other is not task:
                fault = f"{other.name} and {task.name} have the same address {task.address}; give one of them another port"
                raise cluster.source.error(fault)


def _check_task(task: Task, source: Source) -> None:
    if task.job not in JOBS:
        raise source.error(f"{task.job!r} is not a job; the jobs are {', '.join(JOBS)}")
    if task.index < 0:
        raise source.error(f"the index {task.index} of a {task.job} is negative; indices count from 0")
    if task.port is not None and not 1 <= task.port <= 65535:
        raise source.error(f"the port {task.port} of {task.name} is outside 1 to 65535")
    if task.host is not None and not valid_host(task.host):
        raise source.error(f"{task.host[:300]!r} of {task.name} is neither a host name nor an address")
    if task.machine_type is not None and not task.machine_type.isprintable():
        raise source.error(f"the machine type {task.machine_type[:60]!r} of {task.name} has characters that cannot be printed")
    if task.slots < 1 or not 0 <= task.gpus <= task.slots:
        raise source.error(f"{task.name} has {task.slots} slots and {task.gpus} GPUs; slots are at least 1, GPUs at most slots")


_LABELS = re.compile(r"(?![-.])[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?", re.ASCII)
_ZONE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}", re.ASCII)


def valid_host(host: str) -> bool:
    """Returns whether `host` can be a host name, or an IPv4 or IPv6 address.

    A name has labels of 1 to 63 letters, digits, `-` and `_` between dots, 253 characters in all. The zone of an IPv6 address
    (`fe80::1%eth0`) is the name of a network interface: up to 32 letters, digits, `-`, `_` and `.`.
    """
    if ":" in host:
        address, percent, zone = host.partition("%")
        try:
            ipaddress.IPv6Address(address)
        except ValueError:
            return False
        return not percent or _ZONE.fullmatch(zone) is not None
    return len(host) <= 253 and _LABELS.fullmatch(host) is not None
