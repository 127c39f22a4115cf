"""Prints a plan: the tasks, their addresses and TF_CONFIG, the strategy and the reason for it."""

import json
import shlex
from collections.abc import Sequence

from tfdist.choice import Choice
from tfdist.cluster import Cluster, Task
from tfdist.launch.backends.interface import Plan
from tfdist.messages import printable, without_secrets


def explain(plan: Plan, from_file: Sequence[tuple[str, str]] = ()) -> None:
    """Prints the plan.

    A run may replace ports that the description leaves open. `from_file` are flags that a file gave, without secrets, and the
    file.
    """
    _print_cluster(plan.job.cluster, plan.job.choice)
    words = plan.job.program.command("")[1:]
    print(f"program   {printable(without_secrets(shlex.join(words)))}   in {printable(plan.job.folder)}")
    for word, file in from_file:
        print(f"default   {printable(word)}   ({file})")
    for word, line in plan.notes:
        print(f"{word:<9} {line}")
    for warning in plan.warnings:
        print(f"warning   {warning}")
    if plan.job.environment:
        print(f"variables {', '.join(plan.job.environment)}   (--env; the values are not shown)")
    if plan.refusal is not None:
        print(f"note      cannot be started: {plan.refusal}")
    _print_tasks(plan)
    if plan.request:
        print(f"\n{plan.request.rstrip()}")


def _print_cluster(cluster: Cluster, choice: Choice) -> None:
    print(f"topology  {cluster.describe()}   ({cluster.source.dialect}: {cluster.source.name})")
    print(f"strategy  {choice.strategy}")
    print(f"rule      {choice.rule}")
    if len(cluster.worker_groups) > 1 or len(cluster.server_groups) > 1:
        print(f"groups    {len(cluster.worker_groups)} of workers, {len(cluster.server_groups)} of servers")
    if cluster.min_workers is not None:
        print(f"workers   {cluster.min_workers} begin, and there is room for {len(cluster.job('worker'))} (tfdist scale)")
    if cluster.sync_period != 1:
        print(f"period    {cluster.sync_period} updates between synchronizations")
    if options := cluster.synchronization.non_default():
        print(f"options   {', '.join(f'{name} {value}' for name, value in options.items())}")
    if cluster.partition:
        devices, slots = cluster.partition.devices, (cluster.job("worker") or cluster.training_tasks)[0].slots
        where = f"{devices // slots} tasks" if devices and devices > slots else "a task"
        print(f"partition {cluster.partition}   (over {devices or 'all'} devices of {where})")
    for warning in cluster.synchronization.warnings(len(cluster.worker_groups)):
        print(f"warning   {warning}")


def _print_tasks(plan: Plan) -> None:
    cluster = plan.job.cluster
    width = max(len(task.name) for task in cluster.tasks)
    first = cluster.tasks[0]
    # All but the task is the same for all: thousands of addresses are written once, not for each of thousands of tasks.
    parts = {name: json.dumps(value) for name, value in cluster.tf_config(first.job, first.index).items()}
    for task in cluster.tasks:
        print(f"\n{task.name:<{width}}  {task.address}{_hardware(task)}")
        if variables := plan.environment.get(task.name):
            print("  " + " ".join(f"{name}={value}" for name, value in variables.items()))
        parts["task"] = json.dumps({"type": task.job, "index": task.index})
        config = ", ".join(f"{json.dumps(name)}: {text}" for name, text in parts.items())
        print(f"  TF_CONFIG={shlex.quote(f'{{{config}}}')}")


def _hardware(task: Task) -> str:
    slots = f"{task.slots} slots" if task.slots > 1 else ""
    gpus = f"{task.gpus} GPU" if task.gpus else ""
    parts = ", ".join(part for part in (slots, gpus, task.machine_type) if part)
    return f"  ({parts})" if parts else ""
