"""The bases of variables whose value is in several places: local replicas, and shards on ps tasks or on devices."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies.attributes import replaced
from tfdist.strategies.private_api import BaseResourceVariable
from tfdist.strategies.private_api.overrides import overrides


class VariableBase(BaseResourceVariable):
    """A variable whose value is held in several places, tasks or devices.

    Keras and checkpoints see one variable with one value. Subclasses implement `_write`.
    """

    # TensorFlow's variables have these attributes.
    _in_graph_mode = False
    _cached_value = None
    _constraint = None  # Keras applies constraints.

    @classmethod
    @overrides(BaseResourceVariable)
    def _variable_call(cls, *args: Any, **kwargs: Any) -> None:
        """Keeps the metaclass of TensorFlow's variables from making an ordinary variable of a call to this class."""

    def _write(self, method: str, value: Any) -> Any:
        """Writes `value`, of the whole variable, with this method of `tf.Variable`, for example "assign_add"."""
        raise NotImplementedError

    def read_value(self) -> Any:
        """Returns `value()`."""
        return self.value()

    def assign(self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        """Assigns the value of the whole variable, as `tf.Variable.assign`."""
        return self._write("assign", value)

    def assign_add(self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        """Adds to the value of the whole variable, as `tf.Variable.assign_add`."""
        return self._write("assign_add", delta)

    def assign_sub(self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        """Subtracts from the value of the whole variable, as `tf.Variable.assign_sub`."""
        return self._write("assign_sub", delta)

    # A checkpoint holds the whole value under one name. Another cluster, or a program without one, can load it.

    @overrides(BaseResourceVariable)
    def _serialize_to_tensors(self) -> dict[str, Any]:
        return {"VARIABLE_VALUE": self.value()}

    @overrides(BaseResourceVariable)
    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        return self.assign(restored_tensors["VARIABLE_VALUE"])

    @overrides(BaseResourceVariable)
    def _gather_saveables_for_checkpoint(self) -> dict[str, Any]:
        raise NotImplementedError  # Makes TensorFlow use the two methods above.

    @overrides(BaseResourceVariable)
    def _copy_trackable_to_cpu(self, object_map: dict[Any, Any]) -> None:
        object_map[self] = tf.Variable(self.value(), trainable=self.trainable, name=self.name.partition(":")[0])


ON_HANDLE = (
    *("scatter_add", "scatter_sub", "scatter_update", "scatter_max", "scatter_min", "scatter_mul", "scatter_div"),
    *("scatter_nd_add", "scatter_nd_sub", "scatter_nd_update", "scatter_nd_max", "scatter_nd_min"),
    *("batch_scatter_update", "gather_nd", "count_up_to", "_strided_slice_assign"),
)
"""Methods of TensorFlow's variables that compute with the one handle of a variable."""


class _Shard(threading.local):
    number: int | None = None


_current_shard = _Shard()


def shard_scope(number: int | None) -> contextlib.AbstractContextManager[None]:
    """Makes every variable in shards stand for its shard `number` in this thread; with None, for the whole variable."""
    return replaced(_current_shard, number=number)


def rows_by_part(rows: Any, offsets: Sequence[int]) -> list[tuple[Any, Any]]:
    """Splits row numbers by the part of a table that holds the row.

    Args:
        rows: row numbers, int [n], a tensor or an array.
        offsets: the first row of each part, then the number of rows.

    Returns:
        For each part: the positions in `rows` of those that it holds, int32 [m], and their numbers in the part. Rows that do
        not exist go to the first or last part, where looking them up fails.
    """
    rows = tf.convert_to_tensor(rows)
    found = []
    for number, (begin, end) in enumerate(itertools.pairwise(offsets)):
        held = (rows >= begin if number else rows >= rows.dtype.min) & (rows < end if end < offsets[-1] else rows >= begin)
        chosen = tf.cast(tf.reshape(tf.where(held), [-1]), tf.int32)
        found.append((chosen, tf.gather(rows, chosen) - begin))
    return found


def take_rows(look_up: Callable[[Any], Any], indices: Any) -> Any:
    """Looks rows up as `keras.ops.take` along the first axis: those that a sparse tensor names once each, and row 0 for gaps.

    Args:
        look_up: returns the rows with these numbers, of any shape.
        indices: the numbers: a tensor, an array, a SparseTensor or a RaggedTensor.
    """
    if isinstance(indices, tf.RaggedTensor):
        return indices.with_flat_values(tf.convert_to_tensor(look_up(indices.flat_values)))
    if not isinstance(indices, tf.SparseTensor):
        return look_up(tf.convert_to_tensor(indices))
    dense = tf.sparse.to_dense(tf.sparse.reorder(indices))
    rows, numbers = tf.unique(tf.reshape(dense, [-1]))  # An optimizer squares the gradient of each row that is looked up.
    numbers = tf.ensure_shape(tf.reshape(numbers, tf.shape(dense)), dense.shape)
    return keras.ops.take(look_up(rows), numbers, axis=0)


class InShards(VariableBase):
    """A variable that others, its shards, hold along one axis.

    An optimizer that updates each element by itself can update each shard by itself (`shard_scope`). Subclasses implement
    `value` and `_write`.

    Attributes:
        shards: the variables that hold the shards, in order.
        where: on what the shards are, for messages: "ps tasks", "devices".
    """

    where = ""

    def __init__(self, shards: list[Any], shape: Any, name: str, path: str | None = None) -> None:
        """Takes the shards, the shape of the whole variable, its name, and what messages call it, by default the name."""
        self.shards = shards
        self._shape = tf.TensorShape(shape)
        self._name = name
        self.path = path or name
        self._unique_id = f"{shards[0]._unique_id}_shards"
        self._trainable = shards[0].trainable
        self._synchronization = shards[0].synchronization
        self._aggregation = shards[0].aggregation

    @property
    def _here(self) -> Any:
        """The shard that this variable stands for in a `shard_scope`; None outside."""
        return None if _current_shard.number is None else self.shards[_current_shard.number]

    @property
    def is_shard(self) -> bool:
        """Whether it stands for one of its shards in this thread."""
        return _current_shard.number is not None

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the whole variable; in a `shard_scope`, of the shard."""
        return self._shape if self._here is None else self._here.shape

    @property
    def dtype(self) -> Any:
        """The dtype."""
        return self.shards[0].dtype

    @property
    def device(self) -> str:
        """The device of the first shard; in a `shard_scope`, of the shard."""
        return str((self.shards[0] if self._here is None else self._here).device)

    @property
    def name(self) -> str:
        """The name of the whole variable."""
        return self._name

    def value(self) -> Any:
        """Returns the whole value as a tensor; in a `shard_scope`, the value of the shard."""
        raise NotImplementedError

    @overrides(VariableBase)
    def _dense_var_to_tensor(self, dtype: Any = None, name: Any = None, as_ref: bool = False) -> Any:
        return self.value()

    def split(self, value: Any) -> list[Any]:
        """Splits a tensor of the whole shape, or IndexedSlices of it, into one for each shard."""
        raise NotImplementedError

    def for_shards(self, value: Any) -> list[Any]:
        """Returns an argument of an update for each shard: its part of a value of the variable's shape, others as they are."""
        if isinstance(value, np.ndarray):  # A loop of one's own may compute gradients without TensorFlow.
            value = tf.convert_to_tensor(value)
        if isinstance(value, tf.IndexedSlices):
            return self.split(value)
        is_dense = tf.is_tensor(value) and not hasattr(value, "handle")
        if not is_dense or value.shape.rank != self._shape.rank or not value.shape.is_compatible_with(self._shape):
            return [value] * len(self.shards)
        # A step may learn only when it runs how many features a batch has.
        return self.split(value if value.shape == self._shape else tf.ensure_shape(value, self._shape))

    def _of_whole_shape(self, method: str, value: Any) -> Any:
        """Returns what is to be written as a tensor. Nothing is written if its shape is not that of the whole variable.

        Raises:
            ValueError: if the shape is known and another one. If it is not known, the function raises when it runs.
        """
        value = tf.convert_to_tensor(value, self.dtype)
        if not value.shape.is_compatible_with(self._shape):
            raise ValueError(
                f"{method} of {self.path}: the variable has the shape {self._shape}, and the value {value.shape}; they must "
                "be equal"
            )
        if value.shape.is_fully_defined():
            return value
        message = f"{method} of {self.path}: the value has not the shape of the variable"
        with tf.control_dependencies([tf.debugging.assert_equal(tf.shape(value), self._shape.as_list(), message)]):
            value = tf.identity(value)
        value.set_shape(self._shape)
        return value

    @overrides(VariableBase)
    def _export_to_saved_model_graph(self, object_map: Any, tensor_map: Any, options: Any, **kwargs: Any) -> list[Any]:
        raise NotImplementedError(
            f"{self.path} is sharded over {len(self.shards)} {self.where}, and a SavedModel cannot hold that; save the model "
            "as .keras, load it in a program without a cluster, and export it there"
        )

    def __repr__(self) -> str:
        shards = f"in {len(self.shards)} shards"
        return f"<{type(self).__name__} {self.path!r} shape={self._shape} dtype={self.dtype.name} {shards}>"


def on_shards(update: Callable[..., Any], variable: InShards, function: Any, args: Any, kwargs: Any, group: Any) -> list[Any]:
    """Updates each shard by itself, where it is. In the function the variables stand for their shards.

    Args:
        update: updates a shard by a function, as `tf.distribute.StrategyExtended.update`.
        variable: the variable.
        function: gets the variable, and of each argument what belongs to the shard.
        args: the arguments.
        kwargs: arguments that are the same for all shards.
        group: see `tf.distribute.StrategyExtended.update`.
    """
    split = [variable.for_shards(value) for value in args]
    results = []
    for number, shard in enumerate(variable.shards):
        with shard_scope(number):
            own = tuple(values[number] for values in split)
            results.append(update(shard, lambda _, *given, **named: function(variable, *given, **named), own, kwargs, group))
    return results


def _refused(method: str) -> Any:
    what = "assigning a slice" if method == "_strided_slice_assign" else method

    def refuse(self: InShards, *args: Any, **kwargs: Any) -> Any:
        if self.is_shard:
            return getattr(VariableBase, method)(self, *args, **kwargs)
        raise NotImplementedError(
            f"{what} of {self.path} cannot work: it is sharded over {len(self.shards)} {self.where}; compute the whole value "
            "and assign it"
        )

    refuse.__name__ = method
    return overrides(VariableBase)(refuse) if method.startswith("_") else refuse


for _method in ON_HANDLE:
    setattr(InShards, _method, _refused(_method))
