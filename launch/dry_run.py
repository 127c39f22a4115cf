"""Prints what a command would start: the tasks, their addresses and TF_CONFIG, the strategy and the reason for it."""

import json
import os
import shlex

from tfdist.choice import Choice
from tfdist.cluster import Cluster, Task
from tfdist.launch.backends.local.resources import Resources


def explain(cluster: Cluster, choice: Choice, refusal: str | None, resources: Resources) -> None:
    """Prints the dry run.

    Args:
        cluster: the prepared cluster, with addresses. A run may replace ports that the description leaves open.
        choice: its strategy.
        refusal: why the cluster cannot be started, or None.
        resources: what its tasks get of this machine.
    """
    print(f"topology  {cluster.describe()}   ({cluster.source.dialect}: {cluster.source.name})")
    print(f"strategy  {choice.strategy}")
    print(f"rule      {choice.rule}")
    if len(cluster.worker_groups) > 1 or len(cluster.server_groups) > 1:
        print(f"groups    {len(cluster.worker_groups)} of workers, {len(cluster.server_groups)} of servers")
    if cluster.sync_period != 1:
        print(f"period    {cluster.sync_period} updates between synchronizations")
    if options := cluster.synchronization.non_default():
        print(f"options   {', '.join(f'{name} {value}' for name, value in options.items())}")
    for warning in cluster.synchronization.warnings(len(cluster.worker_groups)):
        print(f"warning   {warning}")
    gpus = ", ".join(resources.plan.visible)
    cores = f"{resources.cores} core{'s' * (resources.cores > 1)}"
    print(f"machine   {cores}, {f'GPU {gpus}' if gpus else 'no GPU'} to use here")
    for warning in resources.plan.warnings():
        print(f"warning   {warning}")
    if refusal:
        print(f"note      cannot be started: {refusal}")
    width = max(len(task.name) for task in cluster.tasks)
    for task in cluster.tasks:
        print(f"\n{task.name:<{width}}  {task.address}{_hardware(task)}")
        if resources.has(task) and (variables := resources.environment(task, os.environ)):
            print("  " + " ".join(f"{name}={value}" for name, value in variables.items()))
        print(f"  TF_CONFIG={shlex.quote(json.dumps(cluster.tf_config(task.job, task.index)))}")


def _hardware(task: Task) -> str:
    slots = f"{task.slots} slots" if task.slots > 1 else ""
    gpus = f"{task.gpus} GPU" if task.gpus else ""
    parts = ", ".join(part for part in (slots, gpus, task.machine_type) if part)
    return f"  ({parts})" if parts else ""
