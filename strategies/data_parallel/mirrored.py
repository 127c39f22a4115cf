"""One task, several devices: TensorFlow's MirroredStrategy, one replica per slot, under which all of Keras 3 works."""

import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.strategies.data_parallel.devices import local_devices
from tfdist.strategies.data_parallel.training_loop import DataParallelHooks
from tfdist.strategies.inputs.batch_shards import Layout
from tfdist.strategies.keras_hooks import optimizer, trainer


class Mirrored(DataParallelHooks, tf.distribute.MirroredStrategy):
    """`tf.distribute.MirroredStrategy` with step functions for Keras."""

    def __init__(self, devices: list[str]) -> None:
        super().__init__(devices)
        self._prepare(Layout(len(devices), range(len(devices))))


def create(cluster: Cluster, start_timeout: float) -> Mirrored:
    """Returns the strategy over as many devices as the task has slots.

    Raises:
        ClusterError: when TensorFlow has already started with fewer logical CPU devices.
    """
    del start_timeout
    (task,) = cluster.training_tasks
    strategy = Mirrored(local_devices(task))
    trainer.install()
    optimizer.install()
    return strategy
