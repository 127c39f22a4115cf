"""Draws a tree for the terminal: hosts and their tasks if hosts are given, else groups and their tasks."""

import dataclasses
from collections.abc import Iterator, Sequence

from tfdist.cluster import Cluster, Groups, Task
from tfdist.messages import printable
from tfdist.pictures.picture import MOST_ALIKE, MOST_TASKS, Block, Group, detail, list_of, owners, picture, shortened

Branch = tuple[str, "Sequence[Branch]"]
"""A line, and the branches below it."""


def write(cluster: Cluster) -> str:
    """Returns the tree, one task per line. Raises ClusterError if the cluster cannot run the strategy that it forces."""
    shown = picture(cluster)
    if any(task.host for task in cluster.tasks):
        branches = _hosts(shown.cluster)
    else:
        branches = [_group(group) for group in (shown.chief,) if group]
        for block in shown.blocks:
            branches += _block(block)
        branches += [_group(group) for group in (shown.evaluators,) if group]
    return "\n".join((printable(shown.title), printable(shown.caption), *_lines(branches, ""))) + "\n"


def _block(block: Block) -> list[Branch]:
    workers = [_group(group) for group in block.workers]
    if block.server is None:
        return workers
    name, tasks = _group(block.server)
    return [(name, [*tasks, *workers])]


def _group(group: Group) -> Branch:
    tasks: list[Branch] = [(f"{cell.name}  {cell.detail}".rstrip(), ()) for cell in group.cells]
    return tasks[0] if group.job == "chief" else (group.title, tasks)


def _hosts(cluster: Cluster) -> list[Branch]:
    groups = _group_names(cluster)
    hosts: dict[str, list[Task]] = {}
    for task in cluster.tasks:
        hosts.setdefault(task.host or "any host", []).append(task)
    most = MOST_TASKS if len(cluster.tasks) <= MOST_TASKS else MOST_ALIKE

    def host(name: str) -> Branch:
        tasks = shortened(hosts[name], most, lambda task: (_task(task, groups), ()), lambda left: (f"{left} more tasks", ()))
        return name, tasks

    return shortened(list(hosts), most, host, lambda left: (f"{left} more hosts", ()))


def _task(task: Task, groups: dict[Task, str]) -> str:
    about = detail(dataclasses.replace(task, host=None))
    return "  ".join((task.name, ", ".join(part for part in (about, groups.get(task, "")) if part))).rstrip()


def _group_names(cluster: Cluster) -> dict[Task, str]:
    """Returns the groups of each task, if the cluster has several."""
    names: dict[Task, str] = {}
    for what, job, groups in (("worker group", "worker", cluster.worker_groups), ("server group", "ps", cluster.server_groups)):
        if len(groups) > 1:
            names |= {task: list_of(what, numbers) for task, numbers in _numbers(cluster.job(job), groups).items()}
    return names


def _numbers(tasks: tuple[Task, ...], groups: Groups) -> dict[Task, list[int]]:
    number_of = {rank: number for number, ranks in enumerate(groups) for rank in ranks}
    found: dict[Task, dict[int, None]] = {}
    for rank, (task, _) in enumerate(owners(tasks)):
        found.setdefault(task, {})[number_of[rank]] = None
    return {task: list(numbers) for task, numbers in found.items()}


def _lines(branches: Sequence[Branch], indent: str) -> Iterator[str]:
    for position, (text, inner) in enumerate(branches, 1):
        is_last = position == len(branches)
        yield f"{indent}{'└── ' if is_last else '├── '}{printable(text)}"
        yield from _lines(inner, indent + ("    " if is_last else "│   "))
