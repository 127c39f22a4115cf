"""One task with several devices: TensorFlow's MirroredStrategy, one replica per slot, with all of Keras 3."""

from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster import Cluster
from tfdist.strategies.data_parallel.devices import local_devices
from tfdist.strategies.data_parallel.extended import DataParallelExtended
from tfdist.strategies.data_parallel.hooks import DataParallelHooks
from tfdist.strategies.inputs.batch_shards import Layout
from tfdist.strategies.keras_hooks import optimizer, trainer
from tfdist.strategies.model_parallel import variables as split_variables
from tfdist.strategies.model_parallel.layouts import device_rows


class Mirrored(tf.distribute.MirroredStrategy):
    """`tf.distribute.MirroredStrategy` with hooks for Keras. A replica has one device, or a row of `keras.distribution`'s mesh."""

    def __init__(self, devices: list[str]) -> None:
        # As MirroredStrategy.__init__, with another `extended`.
        tf.distribute.Strategy.__init__(self, DataParallelExtended(self, devices))
        self._tfdist_devices = devices
        self.tfdist_hooks = DataParallelHooks(self, Layout(len(devices), range(len(devices))))

    def scope(self) -> Any:
        """See `tf.distribute.Strategy.scope`. Arranges the devices as the mesh of `keras.distribution.set_distribution`.

        Raises:
            ValueError: if the mesh does not fit the devices of the strategy.
        """
        distribution = keras.distribution.distribution()
        if distribution is not None:
            rows = arranged(self._tfdist_devices, distribution)
            if rows != self.extended.tfdist_rows:
                self.extended._initialize_strategy([row[0] for row in rows])
                self.extended.tfdist_rows = rows
                self.tfdist_hooks = DataParallelHooks(self, Layout(len(rows), range(len(rows))))
                split_variables.install()
        return super().scope()


def arranged(devices: list[str], distribution: Any) -> list[list[str]]:
    """Returns the devices of each replica.

    Raises:
        ValueError: if the mesh has another number of devices.
    """
    rows = device_rows(distribution)
    if rows.replicas * rows.devices != len(devices):
        raise ValueError(
            f"the device mesh {distribution.device_mesh.shape} of keras.distribution needs {rows.replicas * rows.devices} "
            f"devices, and the task has {len(devices)}; describe it with as many slots"
        )
    return [devices[first : first + rows.devices] for first in range(0, len(devices), rows.devices)]


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
