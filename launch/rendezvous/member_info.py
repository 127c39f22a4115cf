"""`MemberInfo`: what a process writes about itself into the store, and the cluster that all of these make."""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass

from tfdist.cluster import Cluster, Task, valid_host
from tfdist.json_values import object_in
from tfdist.rank_info import RankInfo

TaskId = tuple[str, int]
"""(job, index) of a task."""


@dataclass(frozen=True)
class MemberInfo:
    """One process of the rendezvous.

    Attributes:
        job: as in `Task`, and so are index, host, port, slots and gpus.
        size: number of ranks, according to this process.
        beat: a number that grows with every entry that the process writes.
        leaders: nonces of the leaders that the process has read.
    """

    job: str
    index: int
    size: int
    host: str
    port: int
    slots: int
    gpus: int
    beat: int = 0
    leaders: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> "MemberInfo | None":
        """Reads an entry of a store; returns None for one that tfdist did not write: a store may hold anything."""
        entry = object_in(text)
        kinds = {"job": str, "host": str, "leaders": list}
        for field in dataclasses.fields(cls):
            value = entry.get(field.name)
            if type(value) is not kinds.get(field.name, int) or (type(value) is int and not 0 <= value < 10**9):
                return None
        leaders = read_texts(entry["leaders"])
        if entry["job"] not in ("worker", "ps") or not valid_host(entry["host"]) or not 1 <= entry["port"] <= 65535:
            return None
        if not 0 <= entry["gpus"] <= entry["slots"] or entry["slots"] < 1:
            return None
        return cls(**{field.name: entry[field.name] for field in dataclasses.fields(cls)[:-1]}, leaders=tuple(leaders))

    def text(self) -> str:
        """Returns the entry for the store."""
        return json.dumps(dataclasses.asdict(self))

    @property
    def task(self) -> TaskId:
        """(job, index) of the process."""
        return self.job, self.index

    @property
    def address(self) -> str:
        """`host:port`."""
        return Task(self.job, self.index, self.host, self.port).address


def name_of(task: TaskId) -> str:
    """Returns the name of a process in messages: `rank 3` or `ps:0`."""
    return f"rank {task[1]}" if task[0] == "worker" else f"{task[0]}:{task[1]}"


def enumeration(names: Iterable[str]) -> str:
    """Returns `a, b and c`; of more than ten names the first ten and the number of the others."""
    names = list(names)
    if len(names) > 10:
        return f"{', '.join(names[:10])} and {len(names) - 10} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def leader_task(rank_info: RankInfo) -> TaskId:
    """Returns the task that leads: the first of the servers, whose address every process has, or else rank 0."""
    first = rank_info.servers[:1]
    return (first[0].job, first[0].index) if first else ("worker", 0)


def all_tasks(rank_info: RankInfo) -> list[TaskId]:
    """Returns all tasks of the job: the servers and the ranks."""
    ranks = [("worker", rank) for rank in range(rank_info.size)]
    return [*((task.job, task.index) for task in rank_info.servers), *ranks]


def cluster_of(rank_info: RankInfo, members: Iterable[MemberInfo]) -> Cluster:
    """Returns the cluster of all members, in which rank r is `worker:r`, with the task of this process."""
    workers = [
        Task(each.job, each.index, each.host, each.port, slots=each.slots, gpus=each.gpus)
        for each in members
        if each.job == "worker"
    ]
    return rank_info.cluster(sorted(workers, key=lambda task: task.index))


def read_texts(value: object) -> list[str]:
    """Returns the texts in a list, sorted and without duplicates; none where `value` is no list."""
    return sorted({each for each in value if isinstance(each, str)}) if isinstance(value, list) else []
