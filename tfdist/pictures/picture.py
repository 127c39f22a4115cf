"""`Picture`: the content of a picture of a cluster (groups, their tasks, and their communication), like SINGA's figure 2.

"Distributed Training Framework", https://singa.apache.org (0.1 to 0.3), figure 2: worker groups and server groups are boxes
with their executors, and every worker group has an arrow to its server group.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tfdist.choice import SERVED, choose, prepared
from tfdist.cluster import Cluster, Task

_Item = TypeVar("_Item")
_Shown = TypeVar("_Shown")

MOST_TASKS = 100
"""Tasks of the largest cluster that is drawn completely."""

MOST_ALIKE = 8
"""Groups, or tasks of a group, that are drawn of a larger cluster. The others are counted."""


STATE_COLORS = {
    "queued": "#fff3c4",
    "starting": "#fff3c4",
    "running": "#c9eec0",
    "succeeded": "#e4e4e4",
    "failed": "#f6b5ae",
    "cancelled": "#f3d9c9",
    "lost": "#f6b5ae",
}
"""Color of a task by its state."""


@dataclass(frozen=True)
class Cell:
    """A task, or the part of one that belongs to the group.

    Attributes:
        job: its job.
        name: `worker:0`, or the number of omitted tasks.
        detail: its state in a running job; else its address and slots if they are known, else empty.
        is_rest: whether it represents omitted tasks.
        state: the state of the task in a running job, a name in `STATE_COLORS`; or empty.
    """

    job: str
    name: str
    detail: str = ""
    is_rest: bool = False
    state: str = ""


@dataclass(frozen=True)
class Group:
    """A box of tasks: a worker group, a server group, or the chief or evaluators.

    Attributes:
        job: the job of its tasks.
        title: `worker group 0`, or the number of omitted groups.
        cells: its tasks; empty if it represents omitted groups.
    """

    job: str
    title: str
    cells: tuple[Cell, ...] = ()


@dataclass(frozen=True)
class Block:
    """A server group and its worker groups; `server` is None for workers that need no servers."""

    server: Group | None
    workers: tuple[Group, ...]


@dataclass(frozen=True)
class Picture:
    """The content of a picture.

    Attributes:
        cluster: the cluster as its strategy runs it.
        title: the strategy, and the rule that selected it.
        caption: the numbers of tasks, and the synchronization of parameters.
        blocks: server groups with their worker groups, in order.
        chief: the chief that runs the program and does not train, or None.
        evaluators: the evaluators, or None.
        all_reduce: whether the tasks of a worker group exchange gradients among themselves.
    """

    cluster: Cluster
    title: str
    caption: str
    blocks: tuple[Block, ...]
    chief: Group | None
    evaluators: Group | None
    all_reduce: bool


def picture(cluster: Cluster, states: Mapping[str, str] | None = None) -> Picture:
    """Returns the picture of the cluster as its strategy runs it: with a chief if the workers only serve.

    Args:
        cluster: the cluster.
        states: state by name of the task, for the picture of a running job.

    Raises:
        ClusterError: if the cluster cannot run the strategy that it forces.
    """
    return _Painter(prepared(cluster), states or {}).picture()


class _Painter:
    def __init__(self, cluster: Cluster, states: Mapping[str, str]) -> None:
        self.cluster = cluster
        self.states = states
        self.chosen = choose(cluster)
        self.serves = self.chosen.strategy in SERVED
        self.most = MOST_TASKS if len(cluster.tasks) <= MOST_TASKS else MOST_ALIKE
        self.workers, self.servers = owners(cluster.job("worker")), owners(cluster.job("ps"))

    def picture(self) -> Picture:
        return Picture(
            cluster=self.cluster,
            title=f"{self.chosen.strategy}: {self.chosen.rule}",
            caption=self._caption(),
            blocks=tuple(block for block in self._blocks() if block.server or block.workers),
            chief=self._side("chief") if self.serves else None,
            evaluators=self._side("evaluator"),
            all_reduce=not self.serves,
        )

    def _caption(self) -> str:
        cluster = self.cluster
        parts = [cluster.describe()]
        if self.chosen.strategy == "hogwild" or cluster.sync_period > 1:
            parts.append(f"sync period {cluster.sync_period}")
        if cluster.job("ps") and not cluster.separate_servers:
            parts.append("servers on the workers' hosts")
        return "; ".join(parts)

    def _blocks(self) -> list[Block]:
        trains, servers = self.cluster.worker_groups, self.cluster.server_groups
        if not servers:
            groups = self._worker_groups(range(len(trains)))
            return [Block(None, groups if self.serves else self._with_chief(groups))]
        if not self.serves:  # The user forces a strategy that does not use the servers.
            blocks = [Block(self._server_group(number), ()) for number in range(len(servers))]
            return [*blocks, Block(None, self._with_chief(self._worker_groups(range(len(trains)))))]
        # SINGA's rule: of W worker groups and S server groups, worker group g goes to server group g // (W / S).
        served: list[list[int]] = [[] for _ in servers]
        for number in range(len(trains)):
            served[number * len(servers) // len(trains)].append(number)
        return shortened(
            range(len(servers)),
            self.most,
            lambda number: Block(self._server_group(number), self._worker_groups(served[number])),
            lambda left: Block(Group("ps", f"{left} more server groups"), (Group("worker", "and their worker groups"),)),
        )

    def _worker_groups(self, numbers: Sequence[int]) -> tuple[Group, ...]:
        groups = self.cluster.worker_groups
        make: Callable[[int], Group] = lambda number: Group(  # noqa: E731
            "worker", f"worker group {number}", self._cells("worker", _parts(groups[number], self.workers))
        )
        return tuple(shortened(numbers, self.most, make, lambda left: Group("worker", f"{left} more worker groups")))

    def _server_group(self, number: int) -> Group:
        parts = _parts(self.cluster.server_groups[number], self.servers)
        return Group("ps", f"server group {number}", self._cells("ps", parts))

    def _with_chief(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """Returns the worker groups with the chief in the first one: under these strategies the chief trains too."""
        chief = self._side("chief")
        if chief is None:
            return groups
        if not groups:
            return (chief,)
        return (Group("worker", groups[0].title, chief.cells + groups[0].cells), *groups[1:])

    def _side(self, job: str) -> Group | None:
        tasks = self.cluster.job(job)
        return Group(job, job, self._cells(job, [(task, "") for task in tasks])) if tasks else None

    def _cells(self, job: str, parts: "Sequence[tuple[Task, str]]") -> tuple[Cell, ...]:
        rest: Callable[[int], Cell] = lambda left: Cell(job, f"{left} more", is_rest=True)  # noqa: E731
        return tuple(shortened(parts, self.most, lambda part: self._cell(*part), rest))

    def _cell(self, task: Task, part: str) -> Cell:
        state = self.states.get(task.name, "")
        return Cell(task.job, f"{task.name} {part}".rstrip(), state or detail(task), state=state)


def shortened(
    items: Sequence[_Item], most: int, make: Callable[[_Item], _Shown], rest: Callable[[int], _Shown]
) -> list[_Shown]:
    """Returns each item as it is shown; of more than `most` items only the first and the last, with the number in between."""
    if len(items) <= most:
        return [make(item) for item in items]
    return [*(make(item) for item in items[: most - 2]), rest(len(items) - most + 1), make(items[-1])]


def owners(tasks: tuple[Task, ...]) -> list[tuple[Task, int]]:
    """Returns the task of each rank, and its slot in the task."""
    return [(task, slot) for task in tasks for slot in range(task.slots)]


def _parts(ranks: Sequence[int], owners: list[tuple[Task, int]]) -> list[tuple[Task, str]]:
    """Returns the tasks of a group in the order of its ranks, with the slots if other groups share the task."""
    slots: dict[Task, list[int]] = {}
    for rank in ranks:
        task, slot = owners[rank]
        slots.setdefault(task, []).append(slot)
    return [(task, "" if len(own) == task.slots else list_of("slot", own)) for task, own in slots.items()]


def list_of(noun: str, numbers: list[int]) -> str:
    """Returns `slot 1`, `slots 0, 1`; of many numbers only the first four."""
    text = ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
    return f"{noun} {text}" if len(numbers) == 1 else f"{noun}s {text}"


def detail(task: Task) -> str:
    """Returns the address or host of a task, and its slots if it has several. May be empty."""
    where = task.address if task.host and task.port else task.host or (f"port {task.port}" if task.port else "")
    kind = "GPU" if task.gpus == task.slots else "shard" if task.job == "ps" else "slot"
    many = f"{task.slots} {kind}s" if task.slots > 1 else kind if task.gpus else ""
    return ", ".join(part for part in (where, many) if part)
