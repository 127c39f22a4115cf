"""Arranges the devices of a data parallel strategy as the mesh of `keras.distribution.set_distribution`, or of a partition."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfdist.partition import Partition
from tfdist.strategies.data_parallel.hooks import DataParallelHooks
from tfdist.strategies.inputs.batch_shards import Layout
from tfdist.strategies.model_parallel import variables
from tfdist.strategies.model_parallel.described import DescribedLayouts
from tfdist.strategies.model_parallel.layouts import LocalMesh, local_mesh
from tfdist.strategies.model_parallel.refusal import BOTH

_KEYS = 1000
"""More groups of devices than the collectives of one arrangement use: those of the next get other numbers."""


class Arrangement:
    """The devices of a strategy: each is a replica, or those of a row of a device mesh are.

    Attributes:
        current: the devices of the replicas; None if each device is a replica.
    """

    def __init__(
        self,
        strategy: Any,
        devices: Sequence[str],
        initialize: Callable[[list[str]], None],
        task: int,
        tasks: int,
        partition: Partition,
    ) -> None:
        """Arranges the devices as the partition says; without one, nothing is arranged yet.

        Args:
            strategy: the strategy.
            devices: the devices of this task.
            initialize: makes TensorFlow's part of the strategy anew, with one device per replica.
            task: the number of this task.
            tasks: the number of tasks.
            partition: that of the description of the cluster.

        Raises:
            ValueError: if the partition does not fit the devices.
        """
        self._strategy = strategy
        self._devices = tuple(devices)
        self._initialize = initialize
        self._task, self._tasks = task, tasks
        self._arranged = 0
        self.current: LocalMesh | None = None
        self._described = DescribedLayouts(partition, devices, tasks) if partition else None
        if self._described is None:
            self.set_hooks(len(self._devices))
        else:
            self._arrange(local_mesh(self._described, self._devices, tasks, task))
            strategy.extended.described = self._described

    def follow(self) -> None:
        """Follows the current distribution of Keras, if there is one. Otherwise the one before stays.

        Models are also built, and their variables made, after Keras' `distribution.scope()` has ended: in `fit`, for example.

        Raises:
            ValueError: if its mesh does not fit the devices, variables exist on another arrangement, or the description of the
                cluster partitions the model already.
        """
        distribution = keras.distribution.distribution()
        if distribution is None:
            return
        if self._described is not None:
            raise ValueError(BOTH)
        wanted = local_mesh(distribution, self._devices, self._tasks, self._task)
        if wanted != self.current and self._strategy.extended.has_variables:
            raise ValueError(
                "the strategy has variables on another arrangement of its devices; call keras.distribution.set_distribution "
                "before the first variable is created in `with strategy.scope():`, and once"
            )
        if wanted != self.current:
            self._arrange(wanted)
        self._strategy.extended.followed = distribution

    def _arrange(self, mesh: LocalMesh) -> None:
        extended = self._strategy.extended
        self._arranged += 1
        # Tasks at different positions of their replicas have different shards, and sum them in groups of their own.
        extended._collective_key_base = _KEYS * (self._arranged * self._tasks + mesh.position)
        self.current = extended.mesh = mesh
        self._initialize([devices[0] for devices in mesh.replicas])
        self.set_hooks(len(mesh.replicas))
        variables.install()

    def set_hooks(self, replicas: int) -> None:
        """Gives the strategy its hooks, for this number of replicas per task."""
        spanned = 1 if self.current is None else self.current.tasks
        first = self._task // spanned * replicas
        layout = Layout(self._tasks // spanned * replicas, range(first, first + replicas))
        self._strategy.tfdist_hooks = DataParallelHooks(self._strategy, layout, is_chief=self._task == 0)
