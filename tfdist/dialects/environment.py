"""The environment of this process: the launcher or scheduler that started it, and the cluster that its variables describe.

Several of them may have set their variables. This is the order:

1. `TFDIST_CLUSTER`: the user's own description in any dialect, as `--cluster` takes it.
2. Launchers, which start one process for each task and number them: the dialects without `allocates`. Two launchers that
   describe different sizes, or different ranks of this process, are an error: one of them is left over from another run.
3. Systems that allocate machines (`allocates`): Slurm and the clouds. Everything that runs on their machines inherits their
   variables, so these contradict nothing, and count only if no launcher runs inside.

An environment of one process (`mpirun -np 1`, an interactive shell in a Slurm step) never counts against another. Where nothing
else is described, it counts if its one task has several devices.
docs/dialects/environment.md has the table.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tfdist.cluster import Cluster
from tfdist.dialects.dialect import Described
from tfdist.dialects.registry import environment_readers, names_jobs
from tfdist.errors import Source
from tfdist.rank_info import RankInfo

CLUSTER_VARIABLE = "TFDIST_CLUSTER"
"""A description for programs that get none: a path or a text in any dialect, as `--cluster` takes it."""

STARTED_VARIABLE = "TFDIST_STARTED"
"""tfdist sets it for the tasks that it starts. Only their TF_CONFIG counts."""


@dataclass(frozen=True)
class Environment:
    """One environment that was found, the variable that identifies it, and what it describes."""

    dialect: str
    variable: str
    described: Described

    @property
    def size(self) -> int:
        """Processes that train or serve."""
        if isinstance(self.described, RankInfo):
            return self.described.size + len(self.described.servers)
        return len(self.described.training_tasks)

    @property
    def devices(self) -> int:
        """Devices of the only task; 0 if there are several."""
        return self.described.tasks[0].slots if isinstance(self.described, Cluster) and len(self.described.tasks) == 1 else 0

    @property
    def rank(self) -> int | None:
        """The position of this process; None if there are servers, which each system counts differently."""
        if isinstance(self.described, RankInfo):
            return None if self.described.servers else self.described.rank
        ranked = [(task.job, task.index) for task in self.described.training_tasks]
        task = self.described.task
        return ranked.index(task) if task in ranked and not self.described.job("ps") else None

    def __str__(self) -> str:
        which = "" if self.rank is None else f", this one as number {self.rank}"
        return f"{self.variable} ({self.dialect}) describes {self.size} tasks{which}"


def find(environ: Mapping[str, str] | None = None) -> Described | None:
    """Returns what the variables `environ`, by default those of this process, describe; None if no launcher set them.

    Raises:
        ClusterError: if the environment that counts cannot be read, or two launchers contradict each other.
    """
    environ = os.environ if environ is None else environ
    if is_started(environ):
        environ = {"TF_CONFIG": environ["TF_CONFIG"]}
    launchers = list(_environments(environ, allocates=False))
    several = sorted((entry for entry in launchers if entry.size > 1), key=_missing_addresses)
    for other in several[1:]:
        _check_agree(several[0], other)
    if several:
        return several[0].described
    # A scheduler's variables are read last: a fault in them does not matter if a launcher runs inside.
    # A step of one task is no cluster; it may be an interactive shell, in which the user starts anything. Its GPUs count.
    machines = list(_environments(environ, allocates=True))
    first = next((entry for entry in machines if entry.size > 1), next(iter(launchers), None))
    first = first or next((entry for entry in machines if entry.devices > 1), None)
    return None if first is None else first.described


def is_started(environ: Mapping[str, str]) -> bool:
    """Returns whether tfdist has started the process with these variables, as a task that its TF_CONFIG describes."""
    return bool(environ.get(STARTED_VARIABLE) and environ.get("TF_CONFIG"))


def find_blank() -> Described | None:
    """Returns what the environment of this process describes if it names only one task (`TF_CONFIG={}`), or None."""
    reader = next((reader for reader in environment_readers().values() if reader.is_blank(os.environ)), None)
    return reader.parse(os.environ) if reader else None


def _environments(environ: Mapping[str, str], *, allocates: bool) -> Iterator[Environment]:
    """Yields the environments of one kind that are present, in the order of the dialects."""
    for name, reader in environment_readers().items():
        if reader.allocates is allocates and (variable := reader.recognizes(environ)):
            described = reader.parse(environ)
            if isinstance(described, RankInfo) and described.size == 1 and not described.servers:
                described = described.outline()  # A single rank needs no addresses.
            yield Environment(name, variable, described)


def _missing_addresses(entry: Environment) -> int:
    """Returns how few addresses an environment gives. Of launchers that agree, the one that gives most counts."""
    described = entry.described
    return 0 if isinstance(described, Cluster) else 1 + (not described.servers) + (described.store is None)


def _sizes(entry: Environment) -> set[int]:
    """Returns how many processes there may be: TF_CONFIG leaves out an evaluator, which others count as one of theirs."""
    return {entry.size, entry.size + names_jobs(entry.dialect)}


def _check_agree(one: Environment, other: Environment) -> None:
    if any(isinstance(entry.described, Cluster) and entry.described.partial for entry in (one, other)):
        return  # The view of one task does not show the others.
    if _sizes(one).isdisjoint(_sizes(other)) or (None not in (one.rank, other.rank) and one.rank != other.rank):
        raise Source("environment", "environment").error(
            f"{one}, but {other}; unset the variables of the one that does not belong to this run"
        )
