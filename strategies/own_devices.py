"""The share of a machine's GPUs and cores that a task takes for itself, if the launcher has not given it one.

`tfdist.devices` decides. A task that trains or evaluates tells TensorFlow; one that serves sets variables, because TensorFlow's
server reads these only.
"""

import logging
import os

from tfdist import machine
from tfdist.choice import SERVED, choose
from tfdist.cluster import Cluster, Task
from tfdist.devices import GROWTH_VARIABLE, THREAD_VARIABLES, Plan, computes, own_plan, own_threads, visible
from tfdist.dialects.environment import STARTED_VARIABLE

_log = logging.getLogger("tfdist")


def take_for_serving(cluster: Cluster, strategy: str) -> None:
    """Takes the share of a ps or worker that serves. Call it before TensorFlow looks for GPUs."""
    if STARTED_VARIABLE in os.environ or cluster.task is None:
        return
    task = cluster.find(*cluster.task)
    installed = machine.installed()
    plan = own_plan(cluster, task, strategy, visible(installed, os.environ), installed, os.environ)
    found = own_threads(cluster, task, strategy, machine.cores(), machine.is_bound())
    if plan is not None:
        _warn(plan, task)
        gpus = plan.environment(task)
        found |= gpus
        os.environ.update({name: value for name, value in gpus.items() if name == plan.variable})
    for name, value in found.items():
        os.environ.setdefault(name, value)


def take_for_training(cluster: Cluster, strategy: str) -> None:
    """Takes the share of a task that runs the training program. Call it before TensorFlow's runtime starts."""
    if STARTED_VARIABLE in os.environ:
        return
    if strategy in SERVED:
        _take(cluster, cluster.job("chief")[0] if cluster.job("chief") else cluster.training_tasks[0], strategy)
    elif cluster.task is not None:
        _take(cluster, cluster.find(*cluster.task), strategy)


def take_for_evaluation(cluster: Cluster) -> None:
    """Takes the share of an evaluator. Call it before TensorFlow's runtime starts."""
    if STARTED_VARIABLE not in os.environ and cluster.task is not None and not cluster.partial:
        _take(cluster, cluster.find(*cluster.task), choose(cluster).strategy)


def _take(cluster: Cluster, task: Task, strategy: str) -> None:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    try:
        if gpus and gpus == tf.config.get_visible_devices("GPU"):  # Otherwise the program has chosen.
            _take_gpus(cluster, task, strategy, gpus)
    except RuntimeError:
        _log.warning(
            "TensorFlow has started before tfdist.strategy was called, so %s takes GPUs that are meant for other tasks; "
            "call tfdist.strategy first",
            task.name,
        )
    threads = own_threads(cluster, task, strategy, machine.cores(), machine.is_bound())
    setters = (
        (tf.config.threading.get_intra_op_parallelism_threads, tf.config.threading.set_intra_op_parallelism_threads),
        (tf.config.threading.get_inter_op_parallelism_threads, tf.config.threading.set_inter_op_parallelism_threads),
    )
    for name, (get, put) in zip(THREAD_VARIABLES, setters, strict=True):
        if name in threads and name not in os.environ and not get():
            try:
                put(int(threads[name]))
            except RuntimeError:
                pass  # TensorFlow has started its threads.


def _take_gpus(cluster: Cluster, task: Task, strategy: str, gpus: list[object]) -> None:
    import tensorflow as tf

    ids = tuple(str(number) for number in range(len(gpus)))
    plan = own_plan(cluster, task, strategy, ids, machine.installed(), os.environ)
    if plan is None or task.name not in plan.shares:
        return
    if computes(task, strategy):
        _warn(plan, task)
    share = plan.shares[task.name]
    own = [gpus[position] for position in share.positions]
    tf.config.set_visible_devices(own, "GPU")
    if share.shared and GROWTH_VARIABLE not in os.environ:
        for gpu in own:
            tf.config.experimental.set_memory_growth(gpu, True)


def _warn(plan: Plan, task: Task) -> None:
    """Warns once for the machine: on its first task that computes."""
    if task.name == next((name for name, share in plan.shares.items() if share.gpus), None):
        for warning in plan.warnings():
            _log.warning("%s", warning)
