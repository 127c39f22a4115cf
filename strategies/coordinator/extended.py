"""Worker groups whose workers are the replicas of one step, as TensorFlow's ParameterServerStrategy sees them."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.worker_groups import WorkerGroup
from tfdist.strategies.keras_hooks import replica_context as replicas
from tfdist.strategies.parameter_server import tensor_fusion
from tfdist.strategies.parameter_server.variables import SharedByReplicas
from tfdist.strategies.private_api import ParameterServerExtended, PerReplica, UpdateContext, call_for_each_replica
from tfdist.strategies.private_api.overrides import overrides


class GroupExtended(ParameterServerExtended):
    """TensorFlow's extended ParameterServerStrategy with worker groups of several replicas, wherever variables are."""

    def __init__(self, strategy: Any, resolver: Any, groups: Sequence[WorkerGroup]) -> None:
        self._tfdist_widest = max(len(group.devices) for group in groups)
        alike = {group.traced_devices for group in groups}
        # What a function that the user schedules by hand is traced for: None where that depends on the group that runs it.
        self._tfdist_usual = alike.pop() if len(alike) == 1 and len(groups[0].tasks) == 1 else None
        self._tfdist_groups = len(groups)
        self._tfdist_tracing: tuple[str, ...] | None = None
        super().__init__(strategy, resolver, None)

    # Replicas.

    @contextlib.contextmanager
    def tracing(self, devices: Sequence[str]) -> Iterator[None]:
        """Around the tracing of a step of a worker group with these replica devices."""
        outer, self._tfdist_tracing = self._tfdist_tracing, tuple(devices)
        try:
            yield
        finally:
            self._tfdist_tracing = outer

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The devices of the replicas of the group whose step is traced; else of whatever group runs the function."""
        return self._tfdist_tracing or self._tfdist_usual or tuple(super().worker_devices)

    @property
    @overrides(ParameterServerExtended)
    def _num_replicas_in_sync(self) -> int:
        return len(self._tfdist_tracing) if self._tfdist_tracing else self._tfdist_widest

    @overrides(ParameterServerExtended)
    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        """Adds up gradients of several replicas, small ones joined. One replica's are what they are."""
        if not self._tfdist_tracing:
            return super()._batch_reduce_to(reduce_op, value_destination_pairs, options)
        values = [self.local_replicas(value) for value, _ in value_destination_pairs]
        replicas = len(self._tfdist_tracing)
        if replicas == 1:
            return [tensors[0] for tensors in values]
        dense = [i for i, tensors in enumerate(values) if not any(isinstance(t, tf.IndexedSlices) for t in tensors)]
        sums = dict(zip(dense, tensor_fusion.add_up([values[i] for i in dense], self._tfdist_tracing), strict=True))
        with tf.device(self._tfdist_tracing[0]):
            for i, tensors in enumerate(values):
                if i not in sums:
                    sums[i] = _joined_slices(tensors)
            mean = str(getattr(reduce_op, "value", reduce_op)).upper() == "MEAN"
            done = [sums[i] for i in range(len(values))]
            return tf.nest.map_structure(lambda v: v / replicas, done) if mean else done

    def local_replicas(self, value: Any) -> list[Any]:
        """The values of the replicas whose step is traced; one that they have in common for each."""
        if isinstance(value, PerReplica):
            return list(value.values)
        return [value] * len(self.worker_devices)

    @overrides(ParameterServerExtended)
    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        if self._tfdist_widest > 1 and not (self._tfdist_tracing or self._tfdist_usual):
            raise RuntimeError(
                "strategy.run cannot be traced by hand where the workers of a group are in several tasks: each group needs a "
                "function of its own. Train with Keras' fit, or describe groups of one worker or groups inside one task"
            )
        return call_for_each_replica(self._container_strategy(), fn, args, kwargs)

    @overrides(ParameterServerExtended)
    def _use_merge_call(self) -> bool:
        """Not once the gradients of a step are added up: the rest of an update may stand in a `cond`, where none can meet."""
        replica = replicas.current()
        return replica is None or not replica.reduced

    @overrides(ParameterServerExtended)
    def _replica_ctx_update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        """An update that every replica asks for alike: the first does it."""
        replica = replicas.current()
        return self._update(var, fn, args, kwargs, group) if replica is None or replica.index == 0 else None

    @staticmethod
    def _update_on(device: str, variable: Any, fn: Any, args: Any, kwargs: Any) -> Any:
        with tf.device(device), UpdateContext(device), tensor_fusion.updating(device):
            return fn(variable, *args, **kwargs)

    def _shared(self, variable: Any, aggregation: Any) -> Any:
        """`variable` as all replicas of a group see it, where they are several."""
        if self._tfdist_widest == 1:
            return variable
        aggregation = aggregation or tf.VariableAggregation.NONE
        if aggregation == tf.VariableAggregation.NONE:
            # Mirrored replicas would each keep their own (moving averages of BatchNormalization); here they share one.
            mean = variable.dtype.is_floating or variable.dtype.is_complex
            aggregation = tf.VariableAggregation.MEAN if mean else tf.VariableAggregation.ONLY_FIRST_REPLICA
        return SharedByReplicas(self._container_strategy(), variable, aggregation)


def _joined_slices(replicas: list[Any]) -> Any:
    """The sum of gradients of which at least one is IndexedSlices."""
    if not all(isinstance(value, tf.IndexedSlices) for value in replicas):
        return tf.add_n([tf.convert_to_tensor(value) for value in replicas])
    return tf.IndexedSlices(
        tf.concat([value.values for value in replicas], axis=0),
        tf.concat([value.indices for value in replicas], axis=0),
        replicas[0].dense_shape,
    )
