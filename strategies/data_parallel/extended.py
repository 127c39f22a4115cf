"""TensorFlow's implementation of mirrored replicas, with replicas of a step function that meet in collectives only."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replica_context import current
from tfdist.strategies.model_parallel.described import DescribedLayouts
from tfdist.strategies.model_parallel.layouts import LocalMesh
from tfdist.strategies.model_parallel.split_tensor import SplitTensor, rows_by_part
from tfdist.strategies.model_parallel.split_variable import SplitVariable
from tfdist.strategies.model_parallel.variables import column_devices
from tfdist.strategies.private_api import MirroredExtended
from tfdist.strategies.private_api.overrides import overrides
from tfdist.strategies.variable_base import shard_scope


class DataParallelExtended(MirroredExtended):
    """TensorFlow's extended MirroredStrategy, also a base of that of MultiWorkerMirroredStrategy.

    Attributes:
        mesh: the devices of each replica of this task, if `keras.distribution` or the description of the cluster gives them;
            None otherwise.
        described: the layouts that the description of the cluster gives; None if it gives none.
        has_variables: whether a variable was created.
    """

    mesh: LocalMesh | None = None
    described: DescribedLayouts | None = None
    has_variables = False
    _tfdist_tracing = 0

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Surrounds the tracing of one of tfdist's step functions."""
        self._tfdist_tracing += 1
        try:
            yield
        finally:
            self._tfdist_tracing -= 1

    @overrides(MirroredExtended)
    def _use_merge_call(self) -> bool:
        """Returns False in a compiled step: unlike collectives, `merge_call` cannot stand in a `cond`.

        Nor can it in the user's functions if variables are sharded: it knows no `SplitTensor`.
        """
        is_sharded = self.mesh is not None and self.mesh.axis is not None
        return super()._use_merge_call() and (tf.executing_eagerly() or not (self._tfdist_tracing or is_sharded))

    @overrides(MirroredExtended)
    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        replica = current()
        if replica is not None and replica.postponed is not None:
            raise ValueError(
                "jit_compile=True does not work if the step itself adds up values over the replicas, as "
                "BatchNormalization(synchronized=True) does: XLA cannot compile that; leave jit_compile at 'auto'"
            )
        return super()._replica_ctx_all_reduce(reduce_op, value, options)

    # Variables that are sharded over the devices of a replica.

    @overrides(MirroredExtended)
    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        self.has_variables = True
        devices = column_devices()
        if devices is not None:
            kwargs["colocate_with"] = _Column(devices)
        return super()._create_variable(next_creator, **kwargs)

    @overrides(MirroredExtended)
    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        if not isinstance(colocate_with_variable, SplitVariable):
            super()._validate_colocate_with_variable(colocate_with_variable)

    @overrides(MirroredExtended)
    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: Any) -> Any:
        if not isinstance(var, SplitVariable):
            return super()._update(var, fn, args, kwargs, group)
        return _on_shards(super()._update, var, fn, args, kwargs, group)

    @overrides(MirroredExtended)
    def _replica_ctx_update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: Any) -> Any:
        if not isinstance(var, SplitVariable) or self._use_merge_call():
            return super()._replica_ctx_update(var, fn, args, kwargs, group)
        return _on_shards(super()._replica_ctx_update, var, fn, args, kwargs, group)


class _Column:
    """Where a shard goes: what TensorFlow asks of a variable with which another is colocated."""

    def __init__(self, devices: tuple[str, ...]) -> None:
        self._devices = devices


def _on_shards(update: Any, variable: SplitVariable, function: Any, args: Any, kwargs: Any, group: Any) -> Any:
    """Updates each shard by itself, on its device. In the function the variables stand for their shards."""
    results = []
    split = [_for_shards(value, variable) for value in args]
    for number, shard in enumerate(variable.shards):
        with shard_scope(number):
            own = tuple(values[number] for values in split)
            results.append(update(shard, lambda _, *given, **named: function(variable, *given, **named), own, kwargs, group))
    return results


def _for_shards(value: Any, variable: SplitVariable) -> Any:
    """Returns what each shard gets of an argument of an update."""
    count = len(variable.shards)
    if isinstance(value, SplitTensor) and value.axis == variable.axis and len(value.parts) == count:
        return value.parts
    if isinstance(value, tf.IndexedSlices):
        return _slices_for_shards(value, variable)
    if isinstance(value, SplitTensor):
        value = value.whole()
    is_whole = isinstance(value, tf.Tensor) and value.shape.rank == variable.shape.rank
    if is_whole and value.shape.is_compatible_with(variable.shape):
        return tf.split(value, count, axis=variable.axis)
    return [value] * count


def _slices_for_shards(slices: tf.IndexedSlices, variable: SplitVariable) -> list[tf.IndexedSlices]:
    """Returns the slices of each shard of a table."""
    count = len(variable.shards)
    if variable.axis:
        return [
            tf.IndexedSlices(values, slices.indices, part.shape)
            for values, part in zip(tf.split(slices.values, count, axis=variable.axis), variable.shards, strict=True)
        ]
    by_part = rows_by_part(slices.indices, variable.shape[0], count)
    return [
        tf.IndexedSlices(tf.gather(slices.values, chosen), local, part.shape)
        for (chosen, local), part in zip(by_part, variable.shards, strict=True)
    ]
