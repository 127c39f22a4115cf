"""Several tasks that all train, without ps: TensorFlow's MultiWorkerMirroredStrategy, under which all of Keras 3 works.

Every chief and worker runs the whole program. Each keeps a copy of the model and steps together with the others on its part
of every batch; gradients are added up by a ring of collectives, all of one step in one round.
"""

import contextlib
import faulthandler
import logging
import sys
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.strategies.data_parallel import random_state
from tfdist.strategies.data_parallel.devices import local_devices
from tfdist.strategies.data_parallel.training_loop import DataParallelHooks
from tfdist.strategies.inputs.batch_shards import Layout
from tfdist.strategies.keras_hooks import optimizer, trainer
from tfdist.strategies.private_api import MultiWorkerMirroredExtended
from tfdist.strategies.runtime.peers import meet

WRITERS = (keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)
"""Callbacks that write files and act on nothing else: they run on the chief only."""

_log = logging.getLogger("tfdist")


def create(cluster: Cluster, start_timeout: float) -> "MultiWorkerMirrored":
    """Waits for the other tasks and returns the strategy.

    TensorFlow would wait for them for ever, in C++, and not say for whom; so all meet first, without it.

    Raises:
        StartTimeoutError: naming the tasks that did not come within `start_timeout` seconds.
        ClusterError: when this process is no task of the cluster, or its tasks have different numbers of slots.
    """
    tasks = cluster.training_tasks
    if cluster.task is None:
        raise cluster.source.error(
            f"under multi_worker_mirrored every task trains, and this process is none of {cluster.describe()}; run the program "
            "on every task: `python -m tfdist.launch` with this description does, or start it with each task's TF_CONFIG"
        )
    if len({task.slots for task in tasks}) > 1:
        widths = ", ".join(f"{task.name} {task.slots}" for task in tasks)
        raise cluster.source.error(
            f"under multi_worker_mirrored every task has as many slots as the others, and here they differ: {widths}"
        )
    me = cluster.find(*cluster.task)
    meet(me, tasks, start_timeout, _log.warning)
    with _bounded(start_timeout):
        strategy = MultiWorkerMirrored(cluster, me)
        random_state.share(strategy)
    trainer.install()
    optimizer.install()
    return strategy


class MultiWorkerMirrored(DataParallelHooks, tf.distribute.MultiWorkerMirroredStrategy):
    """`tf.distribute.MultiWorkerMirroredStrategy` with step functions for Keras."""

    def __init__(self, cluster: Cluster, me: Task) -> None:
        tasks = cluster.training_tasks
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster.cluster_spec()), task_type=me.job, task_id=me.index, rpc_layer=cluster.protocol
        )
        # By default TensorFlow packs all gradients of one `all_reduce` into one collective. Measured: 160 small ones: 3.4 ms
        # on two processes of one machine, and one by one (bytes_per_pack=1) 218 ms.
        options = tf.distribute.experimental.CommunicationOptions()
        # What MultiWorkerMirroredStrategy.__init__ does, with this task's own devices.
        tf.distribute.Strategy.__init__(self, _Extended(self, resolver, options, local_devices(me)))
        first = tasks.index(me) * me.slots
        self._prepare(Layout(len(tasks) * me.slots, range(first, first + me.slots)))
        self.shows_progress = me is tasks[0]

    def callbacks(self, callbacks: list[Any]) -> list[Any]:
        """See `KerasHooks`: on the chief all, elsewhere those that do more than write files."""
        return callbacks if self.shows_progress else [each for each in callbacks if not isinstance(each, WRITERS)]


class _Extended(MultiWorkerMirroredExtended):
    """TensorFlow's implementation, which by itself takes all GPUs of the machine, or one CPU device."""

    def __init__(self, strategy: MultiWorkerMirrored, resolver: Any, options: Any, devices: list[str]) -> None:
        self._tfdist_devices = devices
        super().__init__(strategy, cluster_resolver=resolver, communication_options=options)

    def _initialize_local_devices(self, cluster_resolver: Any, worker_device: str) -> tuple[tuple[str, ...], str]:
        del cluster_resolver
        names = tuple(f"{worker_device}/device:{device}" for device in self._tfdist_devices)
        return names, self._tfdist_devices[0].partition(":")[0]


@contextlib.contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """Ends the process with a traceback and exit code 1 when the block takes longer.

    While TensorFlow connects to tasks that are gone again, no other thread of Python runs: only faulthandler's timer does.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
