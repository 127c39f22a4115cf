"""Variables on ps tasks: a `ServerVariable` is on one ps, a `ShardedVariable` is sharded by rows over all of them.

Keras sees one variable in both cases, with one value to read, assign, save and load. If an optimizer updates each element by
itself, each ps updates its rows (`shard_scope`). Of a table, only rows that are looked up travel (`sparse_read`).
"""

import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.extended import unwrapped
from tfdist.strategies.parameter_server import fused_reads
from tfdist.strategies.parameter_server.relative_assigns import change_of, note_change
from tfdist.strategies.parameter_server.row_access import RowAccess
from tfdist.strategies.private_api import (
    CachingVariable,
    ResourceVariable,
    in_stateless_scope,
    record_operation,
    register_tensor_conversion,
    stop_recording,
    variable_accessed,
)
from tfdist.strategies.private_api.overrides import overrides
from tfdist.strategies.runtime import chief_device
from tfdist.strategies.variable_base import rows_by_part


def _value_of(variable: Any) -> Any:
    """Returns the value of a variable that a step has read; None if it has to be read in place. The program may be about to."""
    if _is_trained_on_chief(variable):
        variable.tfdist_strategy.edits.before_read()
    return fused_reads.current().value_of(variable)


def _note_assignment(variable: Any) -> None:
    """Lets no step in flight come in between if the program itself assigns a weight."""
    if _is_trained_on_chief(variable):
        variable.tfdist_strategy.edits.before_assignment(variable.name)


def _is_trained_on_chief(variable: Any) -> bool:
    return tf.executing_eagerly() and variable.trainable and hasattr(variable.tfdist_strategy, "edits")


class ServerVariable(CachingVariable):
    """A variable on one ps. A step reads it once: if it is small, with the one message for all small variables of that ps.

    Attributes:
        column: the number of the device that reads it, from 0, if it is a shard of a variable that is sharded over the devices
            of a replica. None for others, which the first device reads.
        tfdist_strategy: the strategy that has created it; None for a shard.
    """

    column: int | None = None
    tfdist_strategy: Any = None

    @property
    def parts(self) -> list[Any]:
        """The variables that hold the value: this one."""
        return [self]

    def read_parts(self, rounded: bool = False) -> Any:
        """Reads the value from the ps; as bfloat16 if it is to be rounded, which the ps does."""
        return self._sent(self._read_alone, rounded)

    def _read_alone(self) -> Any:
        """Reads the value. A function with a gradient of its own is not told of it: what it uses may be the whole of shards."""
        if tf.executing_eagerly():
            return self.get().read_value()
        with tf.device(self.device):
            return tf.raw_ops.ReadVariableOp(resource=self.get().handle, dtype=self.dtype)

    def read_rows(self, indices: Any, rounded: bool) -> Any:
        """Reads rows from the ps as `read_parts` reads all. Gradient tapes do not know of rounded ones."""
        return self._sent(lambda: self._rows_alone(indices), rounded)

    def _rows_alone(self, indices: Any) -> Any:
        """Looks rows up, as `_read_alone` reads all."""
        if tf.executing_eagerly():
            return self.get().sparse_read(indices)
        with tf.device(self.device):
            return tf.raw_ops.ResourceGather(resource=self.get().handle, indices=indices, dtype=self.dtype)

    def _sent(self, read: Callable[[], Any], rounded: bool) -> Any:
        if not rounded:
            return read()
        with tf.device(self.device):
            return tf.cast(read(), tf.bfloat16)

    def sparse_read(self, indices: Any, name: Any = None) -> Any:
        """Looks up rows on the ps, as `tf.Variable.sparse_read`."""
        reads = fused_reads.current()
        reads.look_up(self)
        if not reads.rounds(self) or reads.is_in_loop():  # A loop's body: gradients cannot follow a lookup out of it.
            return super().sparse_read(indices, name)
        variable_accessed(self)
        indices = tf.convert_to_tensor(indices)
        with stop_recording():
            found = tf.cast(self.read_rows(indices, True), self.dtype)
            flat = tf.reshape(indices, [-1])
        record_operation("ResourceGather", [found], [self.handle], _gradient_of_rows(flat, self.shape))
        return found

    def gather_nd(self, indices: Any, name: Any = None) -> Any:
        """Looks up elements or slices by their indices, as `tf.Variable.gather_nd`."""
        if not tf.executing_eagerly():
            return super().gather_nd(indices, name)
        # TensorFlow's operation takes a variable of another task for a scalar.
        return tf.gather_nd(self.read_value(), indices, name=name)

    def batch_scatter_update(self, sparse_delta: Any, use_locking: Any = False, name: Any = None) -> Any:
        """Assigns slices of rows, or of the last dimension of their indices, as `tf.Variable.batch_scatter_update`."""
        if not tf.executing_eagerly():
            return super().batch_scatter_update(sparse_delta, use_locking, name)
        with tf.device(chief_device.DEVICE):  # See `gather_nd`.
            updated = ResourceVariable(self.read_value(), trainable=False)
            updated.batch_scatter_update(sparse_delta)
            return self.assign(updated.value())

    def _in_place(self, value: Any) -> Any:
        return fused_reads.current().read_in_place(self, value)

    def value(self) -> Any:
        """Returns the value as a tensor."""
        value = _value_of(self)
        return self._in_place(super().value()) if value is None else value

    def read_value(self) -> Any:
        """Returns the value as a tensor."""
        value = _value_of(self)
        return self._in_place(super().read_value()) if value is None else value

    @overrides(CachingVariable)
    def _dense_var_to_tensor(self, dtype: Any = None, name: Any = None, as_ref: bool = False) -> Any:
        value = _value_of(self)
        return self._in_place(super()._dense_var_to_tensor(dtype, name, as_ref)) if value is None else value

    def handle_for_update(self) -> Any:
        """Returns the resource, for an operation that changes it. A step that reads the variable afterwards reads it again."""
        fused_reads.current().forget(self)
        return self.get().handle

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Assigns a value, as `tf.Variable.assign`. A step that reads the variable afterwards reads it again."""
        if (change := change_of(self, value)) is not None:
            return self.tfdist_strategy.extended.update_elements(self, change)
        _note_assignment(self)
        fused_reads.current().forget(self)
        return super().assign(value, *args, **kwargs)

    def assign_add(self, *args: Any, **kwargs: Any) -> Any:
        """Adds to the value, as `tf.Variable.assign_add`."""
        note_change(self, "add")
        fused_reads.current().forget(self)
        return super().assign_add(*args, **kwargs)

    def assign_sub(self, *args: Any, **kwargs: Any) -> Any:
        """Subtracts from the value, as `tf.Variable.assign_sub`."""
        note_change(self, "add")
        fused_reads.current().forget(self)
        return super().assign_sub(*args, **kwargs)


def _operator(name: str) -> Any:
    method = getattr(tf.Tensor, name)
    return lambda variable, *args: method(variable.value(), *args)


def _scattered(method: str) -> Any:
    def scatter(variable: ServerVariable, indices: Any, updates: Any, name: Any = None) -> Any:
        if not tf.executing_eagerly():
            return getattr(CachingVariable, method)(variable, indices, updates, name)
        updates = tf.convert_to_tensor(updates, variable.dtype)
        return variable.assign(getattr(tf, f"tensor_{method}")(variable.read_value(), indices, updates))  # See `gather_nd`.

    return scatter


for _name in ("scatter_nd_add", "scatter_nd_sub", "scatter_nd_update", "scatter_nd_max", "scatter_nd_min"):
    setattr(ServerVariable, _name, _scattered(_name))
# TensorFlow's read the variable at each use.
for _name in tf.Tensor.OVERLOADABLE_OPERATORS - {"__eq__", "__ne__", "__getitem__"}:
    setattr(ServerVariable, _name, _operator(_name))
ServerVariable.__getitem__ = tf.Variable.__getitem__  # A slice of it can be assigned.


def _gradient_of_rows(rows: Any, shape: tf.TensorShape) -> Callable[[Any], list[Any]]:
    """Returns the gradient of a lookup of rows, int of shape [n], in a variable of this shape."""

    def gradient(change: Any) -> list[Any]:
        change = tf.reshape(change, [-1, *shape[1:].as_list()])
        return [tf.IndexedSlices(change, rows, tf.constant(shape.as_list(), tf.int64))]

    return gradient


class ShardedVariable(RowAccess):
    """A variable whose rows are sharded over several ps tasks.

    Attributes:
        offsets: the first row of each shard, then the number of rows.
    """

    where = "ps tasks"
    tfdist_strategy: Any = None

    def __init__(self, shards: list[Any], offsets: list[int], name: str) -> None:
        """Takes the shards (`ServerVariable`), their first rows, and the name of the variable."""
        super().__init__(shards, [offsets[-1], *shards[0].shape[1:]], name)
        self.offsets = offsets

    @property
    def handle(self) -> Any:
        """The handle of the first shard, by which gradient tapes know the whole variable."""
        return self.shards[0].handle

    @property
    def op(self) -> Any:
        """The operation of the first shard. Variables that are colocated with this variable are on its device."""
        return self.shards[0].op

    def value(self) -> Any:
        """Returns the whole value as a tensor on the current device; in a `shard_scope`, the value of the shard."""
        if self._here is not None:
            return self._here.value()
        reads, value = fused_reads.current(), _value_of(self)
        return reads.read_in_place(self, reads.read_whole(self)) if value is None else value

    @property
    def parts(self) -> list[Any]:
        """The variables that hold the value: the shards."""
        return self.shards

    def read_parts(self, rounded: bool = False) -> Any:
        """Reads the shards and returns the whole value, see `ServerVariable.read_parts`. Gradient tapes do not record it."""
        return tf.concat([shard.read_parts(rounded) for shard in self.shards], axis=0)

    def sparse_read(self, indices: Any, name: Any = None) -> Any:
        """Looks rows up. Each ps sends only the rows that are looked up there.

        Args:
            indices: the numbers of the rows, int, of any shape.
            name: not used.

        Returns:
            The rows, of shape `indices.shape + shape[1:]`.

        Raises:
            tf.errors.InvalidArgumentError: when the function runs, if a row does not exist.
        """
        if self._here is not None:
            return self._here.sparse_read(indices)
        reads = fused_reads.current()
        reads.look_up(self)
        if reads.is_in_loop():  # A loop's body: gradients cannot follow a lookup out of it.
            return tf.gather(self.value(), indices)
        variable_accessed(self)
        indices, rounded = tf.convert_to_tensor(indices), reads.rounds(self)
        with stop_recording():
            flat = tf.reshape(indices, [-1])
            places, rows = [], []
            for shard, (chosen, local) in zip(self.shards, rows_by_part(flat, self.offsets), strict=True):
                places.append(chosen)
                rows.append(shard.read_rows(local, rounded))
            values = tf.cast(tf.dynamic_stitch(places, rows), self.dtype)
            shape = tf.concat([tf.shape(indices), tf.constant(self._shape[1:].as_list(), tf.int32)], axis=0)
            values = tf.ensure_shape(tf.reshape(values, shape), indices.shape.concatenate(self._shape[1:]))
            values = reads.guarded(self, values)
        record_operation("ResourceGather", [values], [self.handle], _gradient_of_rows(flat, self._shape))
        return values

    def split(self, value: Any) -> list[Any]:
        """See `InShards`."""
        if isinstance(value, tf.IndexedSlices):
            pieces = []
            for shard, (chosen, local) in zip(self.shards, rows_by_part(value.indices, self.offsets), strict=True):
                shape = tf.constant(shard.shape.as_list(), local.dtype)
                pieces.append(tf.IndexedSlices(tf.gather(value.values, chosen), local, shape))
            return pieces
        return [value[begin:end] for begin, end in itertools.pairwise(self.offsets)]

    def handle_for_update(self) -> Any:
        """Returns the resource of the shard of a `shard_scope`, for an operation that changes it; None outside of one."""
        fused_reads.current().forget(self)
        return None if self._here is None else self._here.handle_for_update()

    def _write(self, method: str, value: Any) -> "ShardedVariable":
        if method == "assign" and self._here is None and (change := change_of(self, value)) is not None:
            self.tfdist_strategy.extended.update_elements(self, change)
            return self
        if method != "assign" and self._here is None:
            note_change(self, "add")
        if method == "assign":
            _note_assignment(self)
        fused_reads.current().forget(self)
        if self._here is not None:
            getattr(self._here, method)(value)
            return self
        value = value if isinstance(value, tf.IndexedSlices) else self._of_whole_shape(method, value)
        for shard, piece in zip(self.shards, self.split(value), strict=True):
            getattr(shard, method)(piece)
        return self


register_tensor_conversion(ShardedVariable, lambda v, dtype=None, name=None, as_ref=False: v.value())


def is_on_ps(variable: Any) -> bool:
    """Returns whether ps tasks hold the value of a variable of Keras."""
    return not in_stateless_scope() and isinstance(unwrapped(variable._value), ServerVariable | ShardedVariable)
