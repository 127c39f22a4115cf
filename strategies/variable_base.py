"""The base of variables whose value is in several places: shards on ps tasks, local replicas, parts on devices."""

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
