"""Variables with a copy on every replica, which the chief adds up when it reads them. Keras' metrics use them.

Keras updates metrics with `total.assign(total + value)`. On a ps that asynchronous workers share, such an update can be lost.
Keras marks these variables `on_read`: each replica may update a copy, and only a read needs all copies. So the copies are on
the workers. A step makes no round trip for them, and the chief's sum counts every example exactly once.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.private_api import PerWorkerVariable, PerWorkerVariableSpec, ResourceVariable, is_saving
from tfdist.strategies.private_api.coordinator import create_per_worker, dispatch_context, remote_value, remote_value_within
from tfdist.strategies.private_api.overrides import overrides
from tfdist.strategies.runtime import chief_device

CREATION_SECONDS = 60.0
"""If a worker takes longer to create its copy, the sum leaves the copy out."""


class HandleSpec(PerWorkerVariableSpec):
    """TensorFlow's type of the handle of a copy. `reduce_retracing` needs it to be the common supertype of itself."""

    def most_specific_common_supertype(self, others: Any) -> "HandleSpec | None":
        """Returns this type if all others are equal to it."""
        return self if all(self == other for other in others) else None


def _unknown() -> None:
    """The sum of copies that the chief has to read."""


def _untold(value: Any) -> bool:
    """Tells nobody of an assignment."""
    return False


class SyncOnReadVariable(PerWorkerVariable):
    """A variable with a copy on the chief and on each replica of each worker group.

    In a function of a worker group it is the copy of the replica. On the chief its value is the sum of all copies: assigning
    sets the chief's copy to the value and the others to zero. If a worker is gone, its copies are missing in the sum.

    Attributes:
        known_sum: returns the sum as a numpy array if the chief knows it without reading the copies, else None. Steps that run
            change the copies of one variable after the other, such as a total and its count.
        when_assigned: called with what the chief assigns, before it does; returns whether `known_sum` knows the value then.
        is_sent: whether steps return the copies. Those of a group then begin with zero after a call of it has failed: the chief
            knows what they had counted before, and the steps of that call are made again.
    """

    def __init__(self, strategy: tf.distribute.Strategy, next_creator: Any, **kwargs: Any) -> None:
        if tf.inside_function():  # A metric creates it with its first batch, and `next_creator` is that of the function.
            with tf.init_scope(), tf.device(chief_device.DEVICE):
                super().__init__(strategy, _create_outside, **kwargs)
        else:
            super().__init__(strategy, next_creator, **kwargs)
        self._groups, self._membership = strategy.worker_groups, strategy.membership
        # Keras and checkpoints need these, which TensorFlow leaves empty.
        self._unique_id = f"worker_local_{id(self)}"
        self._synchronization = tf.VariableSynchronization.ON_READ
        self._aggregation = tf.VariableAggregation.SUM
        self._by_replica: dict[int, Any] = {}
        self._version = 0  # Of the value that the chief has assigned.
        self._versions: dict[tuple[int, int], int] = {}  # To which each copy belongs, by replica and group.
        self._counting: dict[tuple[int, int], Any] = {}  # `Membership.counting` at the last call, in the same way.
        self.forget_sum()
        self.is_sent = False
        self._capture_key = object()  # Functions hold it: they would hold the variable.

    def forget_sum(self) -> None:
        """Makes the chief read the copies for the sum."""
        self.known_sum: Callable[[], Any] = _unknown
        self.when_assigned: Callable[[Any], bool] = _untold

    @property
    def handle(self) -> Any:
        """The handle of the chief's copy; in a function, a placeholder for the handle of the copy where the function runs.

        There is one placeholder per function. With one per use TensorFlow would not see that a read follows an assignment to
        the same variable.
        """
        if tf.executing_eagerly() or is_saving():
            return self._coordinator_instance.handle
        context = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
        replica = 0 if context is None else int(tf.get_static_value(context.replica_id_in_sync_group))
        self._create_copies(replica)
        closure, spec = self._copy_at_call_time(replica)
        graph, in_files = tf.compat.v1.get_default_graph(), self._coordinator_instance.handle
        return graph.capture_call_time_value(closure, spec, key=(self._capture_key, replica), default_value=in_files)

    def _create_copies(self, replica: int) -> None:
        """Creates the copy of this replica in every group."""
        if replica in self._by_replica:
            return

        def create() -> Any:
            devices = self._groups[dispatch_context().worker_index].devices
            with tf.device(devices[min(replica, len(devices) - 1)]):
                return self._var_creator()

        self._by_replica[replica] = create_per_worker(self._coordinator, create)

    def _copy_at_call_time(self, replica: int) -> tuple[Any, HandleSpec]:
        """Returns the closure that finds the handle when a group runs the function, and the type of the handle."""

        def closure() -> Any:
            dispatched = dispatch_context()
            if dispatched is None:
                return self._coordinator_instance.handle  # The function is being traced.
            group = dispatched.worker_index
            copy = remote_value(self._by_replica[replica][group])
            version, counting, key = self._version, self._membership.counting(group), (replica, group)
            begins_anew = self.is_sent and self._counting.setdefault(key, counting) != counting
            if self._versions.get(key, 0) != version or begins_anew:
                # In the thread of the group, so the chief does not wait for a worker that does not answer. (`zeros_like` would
                # read the copy, and TensorFlow's implicit reads hold Python's lock until the worker has answered.)
                copy.assign(chief_device.constant(np.zeros(copy.shape, copy.dtype.as_numpy_dtype)))
                self._versions[key], self._counting[key] = version, counting
            return copy.handle

        return closure, HandleSpec(value=self._coordinator_instance.handle)

    def _copies(self) -> Iterator[Any]:
        """Yields the copies on the workers that have been created since the last assignment and whose workers answer."""
        for replica, copies in self._by_replica.items():
            for group, remote in enumerate(copies):
                if self._versions.get((replica, group), 0) != self._version:
                    continue
                if (copy := remote_value_within(remote, CREATION_SECONDS)) is not None:
                    yield copy

    def value(self) -> Any:
        """Returns the value as a tensor: the sum of all copies; in a function, the value of the replica's copy."""
        if not tf.executing_eagerly():
            return super().value()
        if (known := self.known_sum()) is not None:
            return tf.constant(known, self.dtype)
        total = tf.convert_to_tensor(self._coordinator_instance)
        for copy in self._copies():
            try:
                total += tf.identity(copy.read_value())
            except tf.errors.UnavailableError:
                continue  # The worker is gone, and with it what it has counted.
        return total

    def read_value(self) -> Any:
        """Returns `value()`."""
        return super().read_value() if not tf.executing_eagerly() else self.value()

    @overrides(PerWorkerVariable)
    def _read_variable_op(self, no_copy: bool = False) -> Any:
        return super()._read_variable_op(no_copy) if not tf.executing_eagerly() else self.value()

    def numpy(self) -> Any:
        """Returns the sum of all copies as a numpy array."""
        return self.value().numpy()

    def assign(self, value: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True) -> Any:
        """Makes `value` the sum of all copies; in a function, assigns it to the replica's copy."""
        if not tf.executing_eagerly():
            return super().assign(value, use_locking, name, read_value)
        if not self.when_assigned(value):
            self.forget_sum()
        self._version += 1  # Each group sets its copies to zero when it runs its next function.
        self._coordinator_instance.assign(value)
        return self


def _create_outside(**kwargs: Any) -> Any:
    """Creates a variable that belongs to no function."""
    return ResourceVariable(
        **{name: kwargs[name] for name in ("initial_value", "trainable", "name", "dtype") if name in kwargs}
    )
