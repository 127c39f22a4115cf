"""One task with several devices: TensorFlow's MirroredStrategy, one replica per slot, with all of Keras 3."""

import itertools
from typing import Any

import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.partition import Partition
from tfdist.strategies.data_parallel.arrangement import Arrangement
from tfdist.strategies.data_parallel.devices import local_devices
from tfdist.strategies.data_parallel.extended import DataParallelExtended
from tfdist.strategies.keras_hooks import optimizer, trainer

_GROUP_KEYS = itertools.count(0, 1000)
"""The first key of the groups of devices of each strategy. No strategy has a thousand.

TensorFlow remembers the shapes that were added up under the keys of a group as long as the process runs, and each strategy
counts them anew.
"""


class Mirrored(tf.distribute.MirroredStrategy):
    """`tf.distribute.MirroredStrategy` with hooks for Keras."""

    def __init__(self, devices: list[str], partition: Partition) -> None:
        self._collective_key_base = next(_GROUP_KEYS)
        # As MirroredStrategy.__init__, with another `extended`.
        tf.distribute.Strategy.__init__(self, DataParallelExtended(self, devices))
        self._arrangement = Arrangement(self, devices, self.extended._initialize_strategy, task=0, tasks=1, partition=partition)

    def scope(self) -> Any:
        """See `tf.distribute.Strategy.scope`. Follows `keras.distribution.set_distribution`."""
        self._arrangement.follow()
        return super().scope()


def create(cluster: Cluster, start_timeout: float) -> Mirrored:
    """Returns the strategy over as many devices as the task has slots.

    Raises:
        ClusterError: if TensorFlow has already started with fewer logical CPU devices.
    """
    (task,) = cluster.training_tasks
    strategy = Mirrored(local_devices(task), cluster.partition)
    trainer.install()
    optimizer.install()
    return strategy
