"""One task with several devices: TensorFlow's MirroredStrategy, one replica per slot, with all of Keras 3."""

import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.strategies.data_parallel.devices import local_devices
from tfdist.strategies.data_parallel.extended import DataParallelExtended
from tfdist.strategies.data_parallel.hooks import DataParallelHooks
from tfdist.strategies.inputs.batch_shards import Layout
from tfdist.strategies.keras_hooks import optimizer, trainer


class Mirrored(tf.distribute.MirroredStrategy):
    """`tf.distribute.MirroredStrategy` with hooks for Keras."""

    def __init__(self, devices: list[str]) -> None:
        # As MirroredStrategy.__init__, with another `extended`.
        tf.distribute.Strategy.__init__(self, DataParallelExtended(self, devices))
        self.tfdist_hooks = DataParallelHooks(self, Layout(len(devices), range(len(devices))))


def create(cluster: Cluster, start_timeout: float) -> Mirrored:
    """Returns the strategy over as many devices as the task has slots.

    Raises:
        ClusterError: if TensorFlow has already started with fewer logical CPU devices.
    """
    del start_timeout
    (task,) = cluster.training_tasks
    strategy = Mirrored(local_devices(task))
    trainer.install()
    optimizer.install()
    return strategy
