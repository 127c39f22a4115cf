"""`SplitVariable`: a variable whose shards are on the devices of a replica.

Keras sees one variable, with one value to read, assign, save and load. A gradient tape differentiates by its shards, so
that its gradient is a `SplitTensor`. An optimizer updates each shard by itself (`shard_scope`).
"""

from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.same_rows import are_positions
from tfdist.strategies.model_parallel import moves, task_span
from tfdist.strategies.model_parallel.split_tensor import OPERATORS, SplitTensor, own_pieces
from tfdist.strategies.private_api import CompositeTensorGradient, register_tensor_conversion
from tfdist.strategies.variable_base import InShards, rows_by_part


class _ShardGradients(CompositeTensorGradient):  # type: ignore[misc]
    """Makes gradient tapes differentiate by the shards."""

    def get_gradient_components(self, value: Any) -> list[Any]:
        return list(value.handles)

    def replace_gradient_components(self, value: Any, component_grads: list[Any]) -> Any:
        if all(gradient is None for gradient in component_grads):
            return None
        are_rows = all(isinstance(gradient, tf.IndexedSlices) for gradient in component_grads)
        if are_rows and (value.axis or not all(are_positions(gradient.indices) for gradient in component_grads)):
            return _joined(component_grads, value.axis, value.first, len(value.handles) + value.others)
        parts = []
        found = tf.convert_to_tensor(next(gradient for gradient in component_grads if gradient is not None))
        for device, gradient in zip(value.devices, component_grads, strict=True):
            with tf.device(device):  # A slice may have left out a shard.
                parts.append(tf.zeros_like(found) if gradient is None else tf.convert_to_tensor(gradient))
        return SplitTensor(parts=tuple(parts), axis=value.axis, devices=value.devices, first=value.first, others=value.others)


def _joined(slices: list[Any], axis: int, first: int, count: int) -> Any:
    """Returns the gradients of the parts of a table as the IndexedSlices that a table in one place would have.

    Args:
        slices: the gradients of the parts of this task.
        axis: the axis along which the table is split.
        first: the number of the first of these parts.
        count: the number of all parts. Other tasks have the others.
    """
    spans = count > len(slices)
    rank = slices[0].values.shape.rank
    shape = slices[0].dense_shape * [count if each == axis else 1 for each in range(rank)]
    if axis:  # Each part looks up the same rows.
        values, indices = tf.concat([each.values for each in slices], axis=axis), slices[0].indices
        return tf.IndexedSlices(task_span.current().gather(values, axis) if spans else values, indices, shape)
    begins = [number * tf.cast(each.dense_shape[0], each.indices.dtype) for number, each in enumerate(slices, first)]
    indices = tf.concat([each.indices + begin for each, begin in zip(slices, begins, strict=True)], axis=0)
    values = tf.concat([each.values for each in slices], axis=0)
    if spans:
        values, indices = task_span.current().concatenate([values, indices])
    return tf.IndexedSlices(values, indices, shape)


class _Handles(tf.experimental.ExtensionType):  # type: ignore[misc]
    """The handles of the shards, which a gradient tape takes as one source."""

    __name__ = "tfdist.Handles"
    __composite_gradient__ = _ShardGradients()

    handles: tuple[tf.Tensor, ...]
    axis: int
    devices: tuple[str, ...]
    first: int
    others: int


class SplitVariable(InShards):
    """A variable in equal shards along one axis, each on a device of the replica.

    Attributes:
        shards: the variables that hold the shards of this task, in order. Each has a copy per replica.
        axis: the axis along which they make up the variable, from 0.
        count: the number of all shards.
        own: the numbers of the shards of this task.
    """

    where = "devices"

    def __init__(self, shards: list[Any], axis: int, of_keras: Any, strategy: Any, own: range, count: int) -> None:
        """Takes the attributes, the variable of Keras that has it, and the strategy in whose scope it is created."""
        shape = shards[0].shape.as_list()
        shape[axis] *= count
        super().__init__(shards, shape, f"{of_keras.name}:0", of_keras.path)
        self.axis, self.own, self.count = axis, own, count
        self._number = task_span.current().next_number() if count > len(shards) else None
        self._distribute_strategy = strategy

    def local(self, shard: Any) -> Any:
        """Returns the current replica's variable of a shard; outside of replicas, the first one's."""
        if not isinstance(shard, tf.distribute.DistributedValues):
            return shard
        found = shard._get()
        return found if isinstance(found, tf.Variable) else shard.values[0]

    @property
    def handle(self) -> Any:
        """The handles of the shards; in a `shard_scope`, the handle of the shard."""
        if self._here is not None:
            return self.local(self._here).handle
        handles = tuple(self.local(shard).handle for shard in self.shards)
        return _Handles(handles=handles, axis=self.axis, devices=self.places(), **self._others())

    def _others(self) -> dict[str, int]:
        return {"first": self.own.start, "others": self.count - len(self.own)}

    def places(self) -> tuple[str, ...]:
        """Returns the devices that compute with the shards: those of the current replica, else those that hold the shards."""
        places = getattr(self._distribute_strategy.extended, "shard_devices", None)
        return (places and places()) or tuple(self.local(shard).device for shard in self.shards)

    @property
    def device(self) -> str:
        """The device of the first shard; in a `shard_scope`, of the shard."""
        return str(self.local(self.shards[0] if self._here is None else self._here).device)

    @property
    def distribute_strategy(self) -> Any:
        """The strategy in whose scope it was created."""
        return self._distribute_strategy

    @property
    def _devices(self) -> Any:
        """Where a variable that is colocated with this one goes."""
        return self.shards[0]._devices

    def is_split_as(self, value: SplitTensor) -> bool:
        """Returns whether a tensor has a part for each shard."""
        return value.axis == self.axis and value.count == self.count and len(value.parts) == len(self.shards)

    def for_shards(self, value: Any) -> list[Any]:
        """See `InShards`. A tensor in the same parts stays in them."""
        if isinstance(value, SplitTensor):
            if self.is_split_as(value):
                return list(value.parts)
            value = value.whole()
        return super().for_shards(value)

    def split(self, value: Any) -> list[Any]:
        """Returns what of a whole tensor, or of IndexedSlices, belongs to the shards of this task."""
        if not isinstance(value, tf.IndexedSlices):
            return own_pieces(value, self.count, self.axis, self.own)
        shape = tf.constant(self.shards[0].shape.as_list())
        if self.axis:
            return [tf.IndexedSlices(values, value.indices, shape) for values in self.split(value.values)]
        rows = self._shape[0]
        by_part = rows_by_part(value.indices, range(0, rows + 1, rows // self.count))[self.own.start : self.own.stop]
        return [tf.IndexedSlices(tf.gather(value.values, chosen), local, shape) for chosen, local in by_part]

    def as_split(self) -> SplitTensor:
        """Returns the value in its shards, each read on its device."""
        devices = self.places()
        values = []
        for shard, device in zip(self.shards, devices, strict=True):
            with tf.device(device):
                values.append(self.local(shard).read_value())
        return SplitTensor(parts=tuple(values), axis=self.axis, devices=devices, **self._others())

    def value(self) -> Any:
        """Returns the whole value as a tensor; in a `shard_scope`, the value of the shard."""
        if self._here is not None:
            return self.local(self._here).read_value()
        if replica_context.current() is not None:
            raise ValueError(
                f"{self.path} is sharded over {self.count} devices, and this step reads it as a whole, for an operation "
                "that cannot compute on its shards; leave it whole (docs/model_parallel.md lists the operations)"
            )
        split = self.as_split()
        if self._number is None:
            return split.whole()
        return task_span.current().read(tf.concat(split.parts, axis=self.axis), self.axis, self._number, self.path)

    def __neg__(self) -> Any:
        """Returns the negative value; TensorFlow's own operators would read all shards as one tensor, also in a step."""
        return tf.negative(self)

    def __abs__(self) -> Any:
        """Returns the absolute value, as `__neg__` the negative one."""
        return tf.abs(self)

    def __getitem__(self, key: Any) -> Any:
        """Slices the value; in a step its parts, so that no device gets all of them."""
        is_split = self._here is None and replica_context.current() is not None
        found = moves.item(self.as_split(), key) if is_split else NotImplemented
        return super().__getitem__(key) if found is NotImplemented else found

    def _write(self, method: str, value: Any) -> "SplitVariable":
        context = tf.distribute.get_replica_context()  # Outside of any scope it is that of TensorFlow's default strategy.
        in_replica = context is not None and context.strategy is self._distribute_strategy
        if self._here is not None:
            getattr(self.local(self._here), method)(value)
            return self
        if isinstance(value, SplitTensor) and self.is_split_as(value):
            parts = list(value.parts)
        else:
            parts = self.split(tf.convert_to_tensor(value, self.dtype))
        for variable, part in zip(self.shards, parts, strict=True):
            target = self.local(variable) if in_replica else variable
            getattr(target, method)(part)
        return self


def _add_operators() -> None:
    for name, function in OPERATORS.items():
        setattr(SplitVariable, f"__{name}__", lambda self, other, function=function: function(self, other))
        setattr(SplitVariable, f"__r{name}__", lambda self, other, function=function: function(other, self))


_add_operators()
register_tensor_conversion(SplitVariable, lambda v, dtype=None, name=None, as_ref=False: v.value())
