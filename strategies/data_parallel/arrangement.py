"""Arranges the devices of a data parallel strategy as the mesh of `keras.distribution.set_distribution`."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfdist.strategies.data_parallel.hooks import DataParallelHooks
from tfdist.strategies.inputs.batch_shards import Layout
from tfdist.strategies.model_parallel import variables
from tfdist.strategies.model_parallel.layouts import Partition, partition

_KEYS = 1000
"""More groups of devices than the collectives of one arrangement use: those of the next get other numbers."""


class Arrangement:
    """The devices of a strategy: each is a replica, or the rows of a device mesh are.

    Attributes:
        current: the rows of the mesh; None if each device is a replica.
    """

    def __init__(self, strategy: Any, devices: Sequence[str], initialize: Callable[[list[str]], None], task: int, tasks: int):
        """Nothing is arranged yet.

        Args:
            strategy: the strategy.
            devices: the devices of this task.
            initialize: makes TensorFlow's part of the strategy anew, with one device per replica.
            task: the number of this task.
            tasks: the number of tasks.
        """
        self._strategy = strategy
        self._devices = tuple(devices)
        self._initialize = initialize
        self._task, self._tasks = task, tasks
        self.current: Partition | None = None
        self.set_hooks(len(self._devices))

    def follow(self) -> None:
        """Follows the current distribution of Keras, if there is one.

        Raises:
            ValueError: if its mesh does not fit the devices, or variables exist on another arrangement.
        """
        distribution = keras.distribution.distribution()
        wanted = None if distribution is None else partition(distribution, self._devices, self._tasks)
        if wanted is None or wanted == self.current:
            return
        extended = self._strategy.extended
        if extended.has_variables:
            raise ValueError(
                "the strategy has variables on another arrangement of its devices; call keras.distribution.set_distribution "
                "before the first variable is created in `with strategy.scope():`, and once"
            )
        extended._collective_key_base += _KEYS
        self._initialize([row[0] for row in wanted.rows])
        self.current = extended.partition = wanted
        self.set_hooks(len(wanted.rows))
        variables.install()

    def set_hooks(self, replicas: int) -> None:
        """Gives the strategy its hooks, for this number of replicas per task."""
        first = self._task * replicas
        layout = Layout(self._tasks * replicas, range(first, first + replicas))
        self._strategy.tfdist_hooks = DataParallelHooks(self._strategy, layout, is_chief=self._task == 0)
