"""The environment that this process runs in: which launcher or scheduler has started it, and what that says of the cluster.

Several may have left their variables. The order is the user's own words first, then from the inside out:

1. `TFDIST_CLUSTER`, a description in any dialect (what `--cluster` takes).
2. Launchers, which start one process for each task and tell it which: the dialects of `registry.DIALECTS` without `ALLOCATES`,
   TF_CONFIG before the others. Two of them that describe clusters of different sizes, or different ranks of this process, are
   an error: one of them is left over from something else, and nobody can know which.
3. Systems that allocate machines (`ALLOCATES`): Slurm, and the clouds. Whatever runs on them inherits their variables, so they
   contradict nothing, and count only where no launcher runs inside.

An environment of one process alone (`mpirun -np 1`, an interactive shell in a Slurm step) never counts against another.
docs/dialects/environment.md has the table.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tfdist.cluster import Cluster
from tfdist.dialects.registry import environment_dialects
from tfdist.errors import Source
from tfdist.rank_info import RankInfo

CLUSTER_VARIABLE = "TFDIST_CLUSTER"
"""A description for programs that are given none: a path or a text in any dialect, as `--cluster` takes it."""

STARTED_VARIABLE = "TFDIST_STARTED"
"""Set by tfdist for the tasks that it starts itself: their TF_CONFIG counts alone, whatever has started what starts them."""


@dataclass(frozen=True)
class Environment:
    """One environment that was found.

    Attributes:
        dialect: its name.
        variable: the variable that gave it away.
        described: what it says.
    """

    dialect: str
    variable: str
    described: Cluster | RankInfo

    @property
    def size(self) -> int:
        """Processes that it has started, as far as they can be counted alike everywhere: those that train or serve."""
        if isinstance(self.described, RankInfo):
            return self.described.size + len(self.described.servers)
        return len(self.described.training_tasks)

    @property
    def rank(self) -> int | None:
        """The position of this process: None where there are servers, which every system counts in its own way."""
        if isinstance(self.described, RankInfo):
            return None if self.described.servers else self.described.rank
        ranked = [(task.job, task.index) for task in self.described.training_tasks]
        task = self.described.task
        return ranked.index(task) if task in ranked and not self.described.job("ps") else None

    def __str__(self) -> str:
        which = "" if self.rank is None else f", of which this is number {self.rank}"
        return f"{self.variable} ({self.dialect}) says that there are {self.size} tasks{which}"


def find(environ: Mapping[str, str] | None = None) -> Cluster | RankInfo | None:
    """What the environment of this process describes, or None where nothing has started it.

    Args:
        environ: the variables; default those of this process.

    Raises:
        ClusterError: where the environment that counts cannot be read, or two launchers contradict each other.
    """
    environ = os.environ if environ is None else environ
    if environ.get(STARTED_VARIABLE) and environ.get("TF_CONFIG"):
        environ = {"TF_CONFIG": environ["TF_CONFIG"]}
    launchers = list(_environments(environ, allocates=False))
    several = sorted((entry for entry in launchers if entry.size > 1), key=_unknown)
    for other in several[1:]:
        _check_agree(several[0], other)
    if several:
        return several[0].described
    # Read only now: what is wrong with a scheduler's variables is no matter where a launcher runs inside.
    # A step of one task is no cluster: an interactive shell, for instance, in which anything may be started.
    machines = (entry for entry in _environments(environ, allocates=True) if entry.size > 1)
    first = next(machines, next(iter(launchers), None))
    return None if first is None else first.described


def _environments(environ: Mapping[str, str], *, allocates: bool) -> Iterator[Environment]:
    """The environments of one kind that are there, the one that counts most first."""
    dialects = environment_dialects().items()
    for name, dialect in sorted(dialects, key=lambda entry: entry[0] != "tf_config"):
        if bool(getattr(dialect, "ALLOCATES", False)) is allocates and (variable := dialect.recognizes(environ)):
            described = dialect.from_environ(environ)
            if isinstance(described, RankInfo) and described.size == 1 and not described.servers:
                described = described.outline()  # Alone, it needs nobody's address.
            yield Environment(name, variable, described)


def _unknown(entry: Environment) -> int:
    """How little it says of where the others are: of launchers that agree, the one that says most counts."""
    described = entry.described
    return 0 if isinstance(described, Cluster) else 1 + (not described.servers) + (described.store is None)


def _check_agree(one: Environment, other: Environment) -> None:
    if any(isinstance(entry.described, Cluster) and entry.described.partial for entry in (one, other)):
        return  # The view of one task says nothing of the others.
    if one.size != other.size or (None not in (one.rank, other.rank) and one.rank != other.rank):
        raise Source("environment", "environment").error(
            f"{one}, but {other}; unset the variables of the one that does not belong to this run"
        )
