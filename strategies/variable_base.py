"""The bases of variables whose value is in several places: local replicas, and shards on ps tasks or on devices."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import BaseResourceVariable
from tfdist.strategies.private_api.overrides import overrides


class VariableBase(BaseResourceVariable):
    """A variable whose value is held in several places, tasks or devices.

    Keras and checkpoints see one variable with one value. Subclasses implement `_write`.
    """

    @classmethod
    @overrides(BaseResourceVariable)
    def _variable_call(cls, *args: Any, **kwargs: Any) -> None:
        """Keeps the metaclass of TensorFlow's variables from making an ordinary variable of a call to this class."""

    def _write(self, method: str, value: Any) -> Any:
        """Writes `value`, of the whole variable, with this method of `tf.Variable`, for example "assign_add"."""
        raise NotImplementedError

    def assign(self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        """Assigns the value of the whole variable, as `tf.Variable.assign`."""
        del use_locking, name, read_value
        return self._write("assign", value)

    def assign_add(self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        """Adds to the value of the whole variable, as `tf.Variable.assign_add`."""
        del use_locking, name, read_value
        return self._write("assign_add", delta)

    def assign_sub(self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        """Subtracts from the value of the whole variable, as `tf.Variable.assign_sub`."""
        del use_locking, name, read_value
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
    *("gather_nd", "count_up_to", "_strided_slice_assign"),
)
"""Methods of TensorFlow's variables that compute with the one handle of a variable."""


class _Shard(threading.local):
    number: int | None = None


_current_shard = _Shard()


@contextlib.contextmanager
def shard_scope(number: int | None) -> Iterator[None]:
    """Makes every variable in shards stand for its shard `number` in this thread; with None, for the whole variable."""
    outer, _current_shard.number = _current_shard.number, number
    try:
        yield
    finally:
        _current_shard.number = outer


class InShards(VariableBase):
    """A variable that others, its shards, hold along one axis.

    An optimizer that updates each element by itself can update each shard by itself (`shard_scope`). Subclasses implement
    `value` and `_write`.

    Attributes:
        shards: the variables that hold the shards, in order.
        where: on what the shards are, for messages: "ps tasks", "devices".
    """

    where = ""

    def __init__(self, shards: list[Any], shape: Any, name: str) -> None:
        """Takes the shards, the shape of the whole variable, and its name."""
        self.shards = shards
        self._shape = tf.TensorShape(shape)
        self._name = name
        self._unique_id = f"{shards[0]._unique_id}_shards"
        self._trainable = shards[0].trainable
        self._synchronization = shards[0].synchronization
        self._aggregation = shards[0].aggregation
        self._in_graph_mode = False
        self._cached_value = None

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

    @property
    def trainable(self) -> bool:
        """Whether gradient tapes watch it."""
        return bool(self._trainable)

    @property
    def synchronization(self) -> Any:
        """See `tf.Variable.synchronization`."""
        return self._synchronization

    @property
    def aggregation(self) -> Any:
        """See `tf.Variable.aggregation`."""
        return self._aggregation

    @property
    def constraint(self) -> None:
        """None: Keras applies constraints."""
        return None

    def get_shape(self) -> tf.TensorShape:
        """Returns `shape`."""
        return self.shape

    def value(self) -> Any:
        """Returns the whole value as a tensor; in a `shard_scope`, the value of the shard."""
        raise NotImplementedError

    def read_value(self) -> Any:
        """Returns `value()`."""
        return self.value()

    @overrides(VariableBase)
    def _dense_var_to_tensor(self, dtype: Any = None, name: Any = None, as_ref: bool = False) -> Any:
        del dtype, name, as_ref
        return self.value()

    def numpy(self) -> Any:
        """Returns the whole value as a numpy array."""
        return self.value().numpy()

    def _of_whole_shape(self, method: str, value: Any) -> Any:
        """Returns what is to be written as a tensor. Nothing is written if its shape is not that of the whole variable.

        Raises:
            ValueError: if the shape is known and another one. If it is not known, the function raises when it runs.
        """
        value = tf.convert_to_tensor(value, self.dtype)
        if not value.shape.is_compatible_with(self._shape):
            raise ValueError(
                f"{method} of {self._name}: the variable has the shape {self._shape}, and the value {value.shape}; they must "
                "be equal"
            )
        if value.shape.is_fully_defined():
            return value
        message = f"{method} of {self._name}: the value has not the shape of the variable"
        with tf.control_dependencies([tf.debugging.assert_equal(tf.shape(value), self._shape.as_list(), message)]):
            value = tf.identity(value)
        value.set_shape(self._shape)
        return value

    @overrides(VariableBase)
    def _export_to_saved_model_graph(self, object_map: Any, tensor_map: Any, options: Any, **kwargs: Any) -> list[Any]:
        raise NotImplementedError(
            f"{self._name} is sharded over {len(self.shards)} {self.where}, and a SavedModel cannot hold that; save the model "
            "as .keras, load it in a program without a cluster, and export it there"
        )

    def __repr__(self) -> str:
        shards = f"in {len(self.shards)} shards"
        return f"<{type(self).__name__} {self._name!r} shape={self._shape} dtype={self.dtype.name} {shards}>"


def _refused(method: str) -> Any:
    what = "assigning a slice" if method == "_strided_slice_assign" else method

    def refuse(self: InShards, *args: Any, **kwargs: Any) -> Any:
        if self.is_shard:
            return getattr(VariableBase, method)(self, *args, **kwargs)
        raise NotImplementedError(
            f"{what} of {self._name} cannot work: it is sharded over {len(self.shards)} {self.where}; compute the whole value "
            "and assign it"
        )

    refuse.__name__ = method
    return overrides(VariableBase)(refuse) if method.startswith("_") else refuse


for _method in ON_HANDLE:
    setattr(InShards, _method, _refused(_method))
