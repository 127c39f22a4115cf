"""The layout map that a cluster description stands for (`tfdist.partition.Partition`)."""

from collections.abc import Sequence
from typing import Any

import keras

from tfdist.partition import Partition, axis_word


class DescribedLayouts(keras.distribution.ModelParallel):  # type: ignore[misc]
    """Gives variables the layouts of a partition, on a mesh of replicas ("batch") and devices of a replica ("model").

    It is not set as Keras' current distribution: the program may not know of it.
    """

    def __init__(self, partition: Partition, devices: Sequence[str], tasks: int) -> None:
        """Makes the mesh.

        Args:
            partition: the partition, with at least one layout.
            devices: the devices of this task.
            tasks: the number of tasks, which have equally many devices.
        """
        size = partition.devices or len(devices)
        names = [device.rpartition("device:")[2].lower() for device in devices] * tasks
        mesh = keras.distribution.DeviceMesh((len(names) // size, size), ("batch", "model"), names)
        super().__init__(layout_map=keras.distribution.LayoutMap(mesh), batch_dim_name="batch")
        self._partition = partition
        self._unmatched = set(range(len(partition.layouts)))

    def get_variable_layout(self, variable: Any) -> Any:
        """Returns the `keras.distribution.TensorLayout` of a variable.

        Raises:
            ValueError: with the path, if the variable does not have the axis.
        """
        number = self._partition.find(variable.path)
        axes: list[str | None] = [None] * len(variable.shape)
        if number is not None:
            self._unmatched.discard(number)
            axis = self._partition.layouts[number][1]
            if axis is not None:
                if not -len(axes) <= axis < len(axes):
                    raise ValueError(
                        f"{self.reason(variable.path)}, and its shape {tuple(variable.shape)} has no such axis; name another "
                        "axis in --partition, or a pattern that does not match it"
                    )
                axes[axis] = "model"
        return keras.distribution.TensorLayout(tuple(axes), self.device_mesh)

    def reason(self, path: str) -> str:
        """Returns the beginning of a sentence about the variable with this path."""
        number = self._partition.find(path)
        if number is None:
            return f"the partition does not name {path}"
        pattern, axis = self._partition.layouts[number]
        return f"the partition {pattern}={axis_word(axis)} names {path}"

    def check_matched(self, model: str, variables: Sequence[Any]) -> None:
        """Checks that every pattern has matched a variable, now that a model is built.

        Raises:
            ValueError: with the patterns that have not, and the variables of the model.
        """
        if not self._unmatched:
            return
        missing = ", ".join(self._partition.layouts[number][0] for number in sorted(self._unmatched))
        paths = [variable.path for variable in variables]
        shown = ", ".join(paths[:20]) + (", ..." if len(paths) > 20 else "")
        raise ValueError(
            f"no trainable variable made in the scope matches {missing} of the partition, or an earlier pattern does; "
            f"the trainable variables of {model} are {shown}"
        )
