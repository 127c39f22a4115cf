"""An evaluator task: `fit` does not train but evaluates every checkpoint that the chief writes.

The task has no part in the training cluster. It reads files (evaluator/folder.py), at a low priority, and writes metrics where
TensorBoard shows them beside the training curves. Keras 2 had `SidecarEvaluator` for this; Keras 3 has nothing.
"""

import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.choice import choose
from tfdist.cluster import Cluster, Task
from tfdist.strategies.evaluator import checkpoint_evaluator
from tfdist.strategies.evaluator.checkpoint_evaluator import CheckpointEvaluator
from tfdist.strategies.evaluator.folder import EvaluationFolder
from tfdist.strategies.keras_hooks import trainer

NICENESS = 10
"""Added to the priority of this process, so that on a shared machine the training comes first."""


class Evaluator(tf.distribute.OneDeviceStrategy):
    """One device, a GPU if there is one. Keras' own loop evaluates on it."""

    def __init__(self) -> None:
        super().__init__("/gpu:0" if tf.config.list_physical_devices("GPU") else "/cpu:0")

    def experimental_distribute_dataset(self, dataset: tf.data.Dataset, options: Any = None) -> tf.data.Dataset:
        """Returns the dataset itself. With TensorFlow's distributed dataset the end of the process has crashed."""
        return dataset


def create(cluster: Cluster, task: Task, start_timeout: float) -> Evaluator:
    """Returns the strategy of the evaluator `task` and makes Keras' `fit` evaluate under it.

    Raises:
        ClusterError: if the description names no folder for the chief and the evaluator.
    """
    folder = EvaluationFolder.of(cluster)
    _lower_priority()  # Before TensorFlow starts its threads, which inherit it.
    strategy = Evaluator()
    # Under TensorFlow's default strategy the chief cannot tell a model made inside the scope from another; nor can this task.
    takes_all = not cluster.partial and choose(cluster).strategy == "default"
    trainer.install()
    checkpoint_evaluator.install(CheckpointEvaluator(strategy, task, folder, start_timeout, takes_all))
    return strategy


def _lower_priority() -> None:
    os.nice(NICENESS)
    if os.getsid(0) != os.getpid():
        return
    # Linux may group processes by session (sched(7), "The autogroup feature"), as desktops and many servers do. Niceness then
    # counts inside a session only, and the launcher gives each task its own session.
    try:
        Path("/proc/self/autogroup").write_text(str(NICENESS), encoding="ascii")
    except OSError:
        pass  # This kernel does not group.
