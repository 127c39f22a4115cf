"""The small clusters in which the probe trains, on this machine."""

import dataclasses
from dataclasses import dataclass

from tfdist.cluster import Cluster, Task
from tfdist.errors import Source
from tfdist.synchronization import Synchronization

SOURCE = Source("planner", "tfdist plan")

DELAY = 1
"""Updates between push and pull in the probe. With a measured delay, functions would be traced twice."""


@dataclass(frozen=True)
class Configuration:
    """A small cluster.

    Attributes:
        strategy: `default`, `multi_worker_mirrored`, `parameter_server` or `hogwild`.
        workers: number of workers.
        ps: number of ps.
        period: updates between two synchronizations of hogwild.
    """

    strategy: str
    workers: int = 1
    ps: int = 0
    period: int = 1

    @property
    def title(self) -> str:
        """What it is, for people."""
        if self.strategy == "default":
            return "one process"
        workers = f"{self.workers} worker{'s' * (self.workers > 1)}"
        period = f", sync period {self.period}" if self.strategy == "hogwild" else ""
        return f"{self.strategy}, {workers}{f', {self.ps} ps' if self.ps else ''}{period}"

    @property
    def reporter(self) -> str:
        """The task that runs `fit` and reports."""
        return "chief:0" if self.ps else "worker:0"

    def cluster(self, everyone: Cluster, synchronization: Synchronization) -> Cluster:
        """Returns the cluster; `everyone` is one with the addresses of all tasks that a configuration may have."""
        jobs = {"chief": int(self.ps > 0), "worker": self.workers, "ps": self.ps}
        tasks = tuple(task for task in everyone.tasks if task.index < jobs[task.job])
        if self.strategy == "default":
            return Cluster(tasks, source=SOURCE)
        cluster = Cluster(tasks, strategy=self.strategy, source=SOURCE)
        if self.strategy != "hogwild":
            return cluster
        outer = synchronization.resolved(2).outer  # That of several groups: a single one could do with less.
        options = dataclasses.replace(
            synchronization,
            outer=outer,
            topology="global",
            delay=DELAY,
            longest_period=None,
            fragments=1,
            quorum=None,
            adaptive=False,
        )
        return dataclasses.replace(cluster, sync_period=self.period, synchronization=options)


ALL = (
    Configuration("default"),
    Configuration("parameter_server", 1, 1),
    Configuration("hogwild", 1, 1, 4),
    Configuration("hogwild", 1, 1, 64),
    Configuration("parameter_server", 1, 2),
    Configuration("multi_worker_mirrored", 2),
)
"""In the order in which they are measured: the probe leaves out the last ones if its time is over."""


def for_strategies(strategies: set[str]) -> list[Configuration]:
    """Returns the configurations that tell about strategies. hogwild needs those of parameter_server, for two numbers of ps."""
    wanted = strategies | ({"parameter_server"} if "hogwild" in strategies else set())
    return [each for each in ALL if each.strategy == "default" or each.strategy in wanted]


def everyone() -> Cluster:
    """Returns a cluster with every task that a configuration may have."""
    tasks = [("chief", 1), ("worker", 2), ("ps", 2)]
    return Cluster(tuple(Task(job, index) for job, count in tasks for index in range(count)), source=SOURCE)
