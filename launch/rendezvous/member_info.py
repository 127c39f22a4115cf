"""What the processes of a job say of themselves at the rendezvous, and the cluster that comes of it."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tfdist.cluster import Cluster, Task, valid_host
from tfdist.rank_info import RankInfo

Name = tuple[str, int]


@dataclass(frozen=True)
class Announcement:
    """One process. Attributes as in `RankInfo` and `Task`; `answers` are the nonces of the leaders that it has seen."""

    job: str
    index: int
    size: int
    host: str
    port: int
    slots: int
    gpus: int
    answers: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> "Announcement | None":
        """Reads what a store holds; None for what no process of tfdist has written, which a store may hold as well."""
        entry = json_object(text)
        kinds = {"job": str, "host": str, "answers": list}
        for field in dataclasses.fields(cls):
            value = entry.get(field.name)
            if type(value) is not kinds.get(field.name, int) or (type(value) is int and not 0 <= value < 10**9):
                return None
        answers = texts(entry["answers"])
        if entry["job"] not in ("worker", "ps") or not valid_host(entry["host"]) or not 1 <= entry["port"] <= 65535:
            return None
        if not 0 <= entry["gpus"] <= entry["slots"] or entry["slots"] < 1:
            return None
        return cls(**{field.name: entry[field.name] for field in dataclasses.fields(cls)[:-1]}, answers=tuple(answers))

    def text(self) -> str:
        """As a store holds it."""
        return json.dumps(dataclasses.asdict(self))

    @property
    def task(self) -> Name:
        """Job and index."""
        return self.job, self.index

    @property
    def address(self) -> str:
        """`host:port`."""
        return Task(self.job, self.index, self.host, self.port).address


def called(task: Name) -> str:
    """What people call a process: by its rank, or `ps:0`."""
    return f"rank {task[1]}" if task[0] == "worker" else f"{task[0]}:{task[1]}"


def listed(names: Iterable[str]) -> str:
    """`a, b and c`; of more than ten the first ten, and how many more."""
    names = list(names)
    if len(names) > 10:
        return f"{', '.join(names[:10])} and {len(names) - 10} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def leader_of(rank_info: RankInfo) -> Name:
    """The process that leads the meeting: the first of the known tasks, whose address all know, else rank 0."""
    first = rank_info.servers[:1]
    return (first[0].job, first[0].index) if first else ("worker", 0)


def expected(rank_info: RankInfo) -> list[Name]:
    """All processes of the job: the known tasks, and the ranks."""
    ranks = [("worker", rank) for rank in range(rank_info.size)]
    return [*((task.job, task.index) for task in rank_info.servers), *ranks]


def cluster_of(rank_info: RankInfo, everybody: Iterable[Announcement]) -> Cluster:
    """The cluster of a complete roster, in which rank r is `worker:r`, as the process of `membership` sees it."""
    workers = [
        Task(each.job, each.index, each.host, each.port, slots=each.slots, gpus=each.gpus)
        for each in everybody
        if each.job == "worker"
    ]
    return rank_info.cluster(sorted(workers, key=lambda task: task.index))


def json_object(text: object) -> Mapping[str, Any]:
    """The JSON object in a text, empty where it holds none."""
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {}


def texts(value: object) -> list[str]:
    """The texts in a list, sorted; none where it is no list."""
    return sorted({each for each in value if isinstance(each, str)}) if isinstance(value, list) else []
