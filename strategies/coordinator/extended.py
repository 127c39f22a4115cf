"""TensorFlow's view of the worker groups: which devices are the replicas of a step, and how their values are combined."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.strategies.attributes import replaced
from tfdist.strategies.coordinator.calls import tensor_fusion
from tfdist.strategies.coordinator.members.worker_groups import WorkerGroup
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.private_api import (
    AggregatingVariable,
    ParameterServerExtended,
    PerReplica,
    UpdateContext,
    call_for_each_replica,
)
from tfdist.strategies.private_api.overrides import overrides
from tfdist.strategies.variable_base import ON_HANDLE


class GroupExtended(ParameterServerExtended):
    """`tf.distribute.StrategyExtended` of a strategy with worker groups, each of one or more replicas.

    Subclasses create the variables (`_create_variable`) and update them (`_update`).

    Attributes:
        worker_mesh: the devices of replicas that have several (`model_parallel.worker_mesh.WorkerMesh`); None if they have one.
    """

    worker_mesh: Any = None

    def __init__(self, strategy: Any, resolver: Any, groups: Sequence[WorkerGroup]) -> None:
        self._tfdist_process = os.getpid()
        self._tfdist_widest = max(len(group.devices) for group in groups)
        alike = {group.traced_devices for group in groups}
        # The devices for a function that the user schedules; None if they depend on the group that runs it.
        self._tfdist_common_devices = alike.pop() if len(alike) == 1 and len(groups[0].tasks) == 1 else None
        self._tfdist_tracing: tuple[str, ...] | None = None
        self.group_devices: tuple[str, ...] = ()  # Of the group whose function is traced.
        super().__init__(strategy, resolver, None)

    def check_process(self) -> None:
        """Raises RuntimeError in a fork of the chief, where an operation of another task would wait forever."""
        if os.getpid() != self._tfdist_process:
            raise RuntimeError(
                f"a variable cannot be made in process {os.getpid()}, a fork of the chief, {self._tfdist_process}: it has "
                "no connection to the ps and workers; start it with multiprocessing.get_context('spawn')"
            )

    # Replicas.

    def tracing(self, devices: Sequence[str], group_devices: Sequence[str] | None = None) -> AbstractContextManager[None]:
        """Makes these devices the replicas while a function of a worker group is traced.

        Args:
            devices: the devices.
            group_devices: all devices of the group, if the function uses only some of them for its steps.
        """
        return replaced(self, _tfdist_tracing=tuple(devices), group_devices=tuple(group_devices or devices))

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The devices of the replicas: those of the function that is traced, else those that the groups have in common."""
        return self._tfdist_tracing or self._tfdist_common_devices or tuple(super().worker_devices)

    @property
    @overrides(ParameterServerExtended)
    def _num_replicas_in_sync(self) -> int:
        replica_context.note_read_of_replicas()
        return len(self._tfdist_tracing) if self._tfdist_tracing else self._tfdist_widest

    def local_replicas(self, value: Any) -> list[Any]:
        """Returns one value per replica of the function that is traced. Replicas share a value that is not `PerReplica`."""
        if isinstance(value, PerReplica):
            return list(value.values)
        return [value] * len(self.worker_devices)

    @overrides(ParameterServerExtended)
    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        if self.worker_mesh is not None and not self._tfdist_tracing:
            raise RuntimeError(
                "strategy.run cannot be traced by hand if the description of the cluster partitions the model: a function that "
                "you schedule does not know the devices of its worker. Train with Keras' fit, or leave --partition out"
            )
        if self._tfdist_widest > 1 and not (self._tfdist_tracing or self._tfdist_common_devices):
            raise RuntimeError(
                "strategy.run cannot be traced by hand where the workers of a group are in several tasks: each group needs a "
                "function of its own. Train with Keras' fit, or describe groups of one worker or groups inside one task"
            )
        return call_for_each_replica(self._container_strategy(), fn, args, kwargs)

    # Replicas of several devices.

    @property
    def mesh(self) -> Any:
        """The devices of the replicas of the function that is traced (`LocalMesh`); None if each has one."""
        return None if self.worker_mesh is None else self.worker_mesh.of(self._tfdist_tracing or ())

    @property
    def described(self) -> Any:
        """The layouts that the description of the cluster gives; None if it gives none."""
        return None if self.worker_mesh is None else self.worker_mesh.described

    def shard_devices(self) -> tuple[str, ...] | None:
        """Returns the devices that compute with the shards of variables in the replica that is traced; None elsewhere."""
        if self.worker_mesh is None or not self._tfdist_tracing:
            return None
        replica = replica_context.current()
        row: tuple[str, ...] = self.worker_mesh.row_of(self._tfdist_tracing[0 if replica is None else replica.index])
        return row

    # Gradients and updates.

    @overrides(ParameterServerExtended)
    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        if not self._tfdist_tracing:
            return super()._batch_reduce_to(reduce_op, value_destination_pairs, options)
        values = [self.local_replicas(value) for value, _ in value_destination_pairs]
        replicas = len(self._tfdist_tracing)
        if replicas == 1:
            return [tensors[0] for tensors in values]
        dense = [i for i, tensors in enumerate(values) if not any(isinstance(t, tf.IndexedSlices) for t in tensors)]
        sums = tensor_fusion.sum_over_replicas([values[i] for i in dense], self._tfdist_tracing)
        by_position = dict(zip(dense, sums, strict=True))
        with tf.device(self._tfdist_tracing[0]):
            totals = [by_position[i] if i in by_position else _sum_of_slices(tensors) for i, tensors in enumerate(values)]
            mean = str(getattr(reduce_op, "value", reduce_op)).upper() == "MEAN"
            return tf.nest.map_structure(lambda total: total / replicas, totals) if mean else totals

    @overrides(ParameterServerExtended)
    def _use_merge_call(self) -> bool:
        """Returns False once the gradients of a step are added up: replicas cannot merge in a `cond` of the update.

        Outside of `strategy.run`, in a loop of the user's own, there are no replicas to merge.
        """
        replica = replica_context.current()
        if replica is not None:
            return not replica.reduced
        context = tf.distribute.get_replica_context()
        return context is not None and context.strategy is self._container_strategy()

    @overrides(ParameterServerExtended)
    def _replica_ctx_update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        """Makes the first replica do an update that all replicas ask for."""
        replica = replica_context.current()
        return self._update(var, fn, args, kwargs, group) if replica is None or replica.index == 0 else None

    # For subclasses.

    def shared(self, variable: Any, aggregation: Any) -> Any:
        """Returns `variable` as the replicas of a group see it.

        Args:
            variable: the variable.
            aggregation: how TensorFlow aggregates what several replicas assign; None for the default of its dtype.
        """
        if self._tfdist_widest == 1:
            return variable
        aggregation = aggregation or tf.VariableAggregation.NONE
        if aggregation == tf.VariableAggregation.NONE:
            # Mirrored replicas keep such a value each (a moving average of BatchNormalization). Here they share it.
            mean = variable.dtype.is_floating or variable.dtype.is_complex
            aggregation = tf.VariableAggregation.MEAN if mean else tf.VariableAggregation.ONLY_FIRST_REPLICA
        return SharedByReplicas(self._container_strategy(), variable, aggregation)


class SharedByReplicas(AggregatingVariable):
    """TensorFlow's wrapper of a variable that the replicas of a group share.

    If the replicas assign different values, the mean over the examples counts, or what TensorFlow makes of them if the variable
    says how. If all assign the same value, because the gradients have been added up before, the first replica assigns it.
    """

    @overrides(AggregatingVariable)
    def _assign_func(self, *args: Any, **kwargs: Any) -> Any:
        replica = replica_context.current()
        if replica is None or tf.distribute.in_cross_replica_context():
            return super()._assign_func(*args, **kwargs)
        if replica.reduced:
            function = kwargs.pop("f")
            return function(self.get(), *args, **kwargs) if replica.index == 0 else None
        if not tf.executing_eagerly() and replica.graph not in (None, tf.compat.v1.get_default_graph()):
            raise ValueError(
                f"a step assigns {self.name} in a tf.cond, an `if` on a tensor, or a loop of TensorFlow, where the workers of "
                "a group cannot combine their values. Assign it in every step, or describe groups of one worker"
            )
        is_mean = self.aggregation == tf.VariableAggregation.MEAN and self.dtype.is_floating
        if is_mean and replica.share is not None and args and not isinstance(args[0], tf.IndexedSlices):
            return self._assign_mean(replica.share, kwargs.pop("f"), args[0])
        return super()._assign_func(*args, **kwargs)

    def _assign_mean(self, share: Any, assign: Callable[..., Any], value: Any) -> Any:
        """Assigns the mean of what the replicas assign, each with its share of the examples.

        TensorFlow's mean would be that of the replicas. In float64 the mean of equal values, such as a count, is this value.
        """
        share = tf.cast(share, tf.float64)

        def merge(strategy: Any, *sent: Any) -> Any:
            total, whole = strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, [(each, self) for each in sent])
            mean = tf.cast(tf.math.divide_no_nan(total, whole), self.dtype)
            return strategy.extended.update(self, assign, args=(mean,))

        value = tf.convert_to_tensor(value, None if tf.is_tensor(value) else self.dtype)
        return tf.distribute.get_replica_context().merge_call(merge, args=(tf.cast(value, tf.float64) * share, share))

    # TensorFlow's read and write the one handle of a variable, which may be that of its first shard.

    @overrides(AggregatingVariable)
    def _serialize_to_tensors(self) -> Any:
        return self.get()._serialize_to_tensors()

    @overrides(AggregatingVariable)
    def _restore_from_tensors(self, restored_tensors: Any) -> Any:
        return self.get()._restore_from_tensors(restored_tensors)


def _of_inner(method: str) -> Any:
    return lambda variable, *args, **kwargs: getattr(variable.get(), method)(*args, **kwargs)


for _method in ON_HANDLE:
    if not _method.startswith("_"):  # TensorFlow slices the variable inside.
        setattr(SharedByReplicas, _method, _of_inner(_method))


def unwrapped(variable: Any) -> Any:
    """Returns the variable inside `SharedByReplicas`; any other object as it is."""
    return variable.get() if isinstance(variable, AggregatingVariable) else variable


def update_on(device: str, variable: Any, update: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Calls `update(variable, *args, **kwargs)` on a device, in TensorFlow's context for updates."""
    with tf.device(device), UpdateContext(device):
        return update(variable, *args, **kwargs)


def _sum_of_slices(values: list[Any]) -> Any:
    """Returns the sum of the replicas' gradients of a variable, of which at least one is IndexedSlices."""
    if not all(isinstance(value, tf.IndexedSlices) for value in values):
        return tf.add_n([tf.convert_to_tensor(value) for value in values])
    return tf.IndexedSlices(
        tf.concat([value.values for value in values], axis=0),
        tf.concat([value.indices for value in values], axis=0),
        values[0].dense_shape,
    )
