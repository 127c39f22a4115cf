"""Variables of which every replica has its own copy, summed when the chief reads them.

Keras updates metrics by `total.assign(total + value)`. On a ps shared by asynchronous workers such an update can be lost. Keras
marks these variables `on_read`: each worker may update its own, only a read has to bring them together. So they live on the
workers, cost no round trip in a step, and the chief's sum counts every example exactly once.
"""

import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.coordinator import chief_device
from tfdist.strategies.private_api import (
    PerWorkerVariable,
    PerWorkerVariableSpec,
    dispatch_context,
    is_saving,
    outermost_graph,
    wait_until_ready,
)
from tfdist.strategies.private_api.overrides import overrides

CREATION_SECONDS = 60.0
"""How long a worker may take to create its copy, before it is counted as gone."""


class HandleSpec(PerWorkerVariableSpec):
    """TensorFlow's type of such a handle, which cannot be generalized: `reduce_retracing` needs that."""

    def most_specific_common_supertype(self, others: Any) -> "HandleSpec | None":
        """This type, where all others are the same."""
        return self if all(self == other for other in others) else None


class SyncOnReadVariable(PerWorkerVariable):
    """One variable per replica of each worker group and one on the chief.

    In a function that a worker runs it is the replica's own. On the chief, reading gives the sum over all of them, assigning
    sets the chief's to the value and the workers' to zero, so that the sum is what was assigned. A worker that is gone takes
    its share with it.
    """

    def __init__(self, strategy: tf.distribute.Strategy, next_creator: Any, **kwargs: Any) -> None:
        super().__init__(strategy, next_creator, **kwargs)
        self._groups = strategy.worker_groups
        # TensorFlow leaves the following empty, and Keras and checkpoints ask for it.
        self._unique_id = f"worker_local_{id(self)}"
        self._synchronization = tf.VariableSynchronization.ON_READ
        self._aggregation = tf.VariableAggregation.SUM
        self._by_replica: dict[int, Any] = {}
        self._version = 0  # Goes up when the chief assigns.
        self._versions: dict[tuple[int, int], int] = {}  # For which of them the copy of a replica and group counts.
        self.known_sum: Any = None  # Set by who knows what the copies add up to; until the next step or assignment.
        self._handles: weakref.WeakKeyDictionary[Any, dict[int, Any]] = weakref.WeakKeyDictionary()

    @property
    def handle(self) -> Any:
        """The handle: of the chief's variable when eager, in a function a placeholder for that of the worker which runs it.

        One placeholder per outermost function: with one per use, TensorFlow would not see that a read follows an assignment
        to the same variable, and one made inside a loop's body would be lost.
        """
        if tf.executing_eagerly() or is_saving():
            return self._coordinator_instance.handle
        context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
        replica = 0 if context is None else int(tf.get_static_value(context.replica_id_in_sync_group))
        graph = outermost_graph()
        handles = self._handles.setdefault(graph, {})
        if replica not in handles:
            self._create_copies(replica)
            closure, spec = self._copy_at_call_time(replica)
            with graph.as_default():
                handles[replica] = graph.capture_call_time_value(closure, spec)
        return handles[replica]

    def _create_copies(self, replica: int) -> None:
        """Creates the copy of replica number `replica` in every group."""
        if replica in self._by_replica:
            return

        def create() -> Any:
            devices = self._groups[dispatch_context().worker_index].devices
            with tf.device(devices[min(replica, len(devices) - 1)]):
                return self._var_creator()

        self._by_replica[replica] = self._coordinator._create_per_worker_variables(create)

    def _copy_at_call_time(self, replica: int) -> tuple[Any, HandleSpec]:
        """TensorFlow's closure that finds the handle when a group runs the function, and the handle's type."""

        def closure() -> Any:
            dispatched = dispatch_context()
            if dispatched is None:
                return self._coordinator_instance.handle  # Only traced.
            group = dispatched.worker_index
            copy = dispatched.maybe_get_remote_value(self._by_replica[replica]._values[group])
            version = self._version
            if self._versions.get((replica, group), 0) != version:
                # In the group's own thread: nobody waits for a worker that does not answer. (`zeros_like` would read the copy,
                # and TensorFlow's implicit reads hold Python's lock until the worker has answered.)
                copy.assign(chief_device.constant(np.zeros(copy.shape, copy.dtype.as_numpy_dtype)))
                self._versions[replica, group] = version
            return copy.handle

        return closure, HandleSpec(value=self._coordinator_instance.handle)

    def _copies(self) -> Iterator[Any]:
        """The workers' variables, as far as they exist and count; not those of workers that are gone."""
        for replica, copies in self._by_replica.items():
            for group, remote in enumerate(copies._values):
                if self._versions.get((replica, group), 0) != self._version:
                    continue
                if wait_until_ready(remote, CREATION_SECONDS) and remote._values is not None:
                    yield remote._values

    def value(self) -> Any:
        """The value as a tensor: a replica's own inside its function, the sum over all when eager."""
        if not tf.executing_eagerly():
            return super().value()
        if self.known_sum is not None:
            return self.known_sum
        total = tf.convert_to_tensor(self._coordinator_instance)
        for copy in self._copies():
            try:
                total += tf.identity(copy.read_value())
            except tf.errors.UnavailableError:
                continue  # That worker is gone, and what it counted with it.
        return total

    def read_value(self) -> Any:
        """As `value()`."""
        return super().read_value() if not tf.executing_eagerly() else self.value()

    @overrides(PerWorkerVariable)
    def _read_variable_op(self, no_copy: bool = False) -> Any:
        return super()._read_variable_op(no_copy) if not tf.executing_eagerly() else self.value()

    def numpy(self) -> Any:
        """The sum over all copies, as a numpy array."""
        return self.value().numpy()

    def assign(self, value: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True) -> Any:
        """Inside a function assigns the replica's own; on the chief makes `value` the sum."""
        if not tf.executing_eagerly():
            return super().assign(value, use_locking, name, read_value)
        self.known_sum = None
        self._version += 1  # Each group begins with zero when it runs its next function.
        self._coordinator_instance.assign(value)
        return self
