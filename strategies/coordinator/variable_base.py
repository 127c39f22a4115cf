"""What variables have in common that TensorFlow does not hold as one: shards on several ps, copies in worker groups."""

from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import BaseResourceVariable
from tfdist.strategies.private_api.overrides import overrides


class VariableBase(BaseResourceVariable):
    """To Keras and in checkpoints one variable of one value; `_write(method, value)` says where a value goes."""

    @classmethod
    @overrides(BaseResourceVariable)
    def _variable_call(cls, *args: Any, **kwargs: Any) -> None:
        """The metaclass of TensorFlow's variables would make an ordinary one of this call."""

    def _write(self, method: str, value: Any) -> Any:
        raise NotImplementedError

    def assign(self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        """As `tf.Variable.assign`, with the value of the whole variable."""
        del use_locking, name, read_value
        return self._write("assign", value)

    def assign_add(self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        """As `tf.Variable.assign_add`."""
        del use_locking, name, read_value
        return self._write("assign_add", delta)

    def assign_sub(self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True) -> Any:
        """As `tf.Variable.assign_sub`."""
        del use_locking, name, read_value
        return self._write("assign_sub", delta)

    # Checkpoints hold the whole value under one name, so that another cluster, or a program without one, can load it.

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
