"""What `keras.distribution` says: which devices make up a replica, and along which axis a variable is split."""

import math
from dataclasses import dataclass
from typing import Any

import keras


@dataclass(frozen=True)
class DeviceRows:
    """A device mesh as replicas and their devices.

    Attributes:
        replicas: the number of replicas: the size of the mesh's batch axis.
        devices: the number of devices of each replica.
        axis: the name of the mesh axis along which variables are split; None if there is none.
    """

    replicas: int
    devices: int
    axis: str | None


def device_rows(distribution: Any) -> DeviceRows:
    """Returns the replicas that a distribution describes.

    Args:
        distribution: `keras.distribution.DataParallel` or `ModelParallel`.

    Raises:
        ValueError: if the mesh has more than one axis beside the batch axis, or the distribution is of another class.
    """
    if not isinstance(distribution, keras.distribution.DataParallel | keras.distribution.ModelParallel):
        raise ValueError(
            f"tfdist trains under keras.distribution.DataParallel and ModelParallel, and the distribution is a "
            f"{type(distribution).__name__}"
        )
    mesh = distribution.device_mesh
    if isinstance(distribution, keras.distribution.DataParallel):
        return DeviceRows(math.prod(mesh.shape), 1, None)
    if distribution.batch_dim_name not in mesh.axis_names:
        raise ValueError(
            f"the device mesh has the axes {', '.join(mesh.axis_names)}, and none is the distribution's batch_dim_name "
            f"{distribution.batch_dim_name!r}"
        )
    sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
    replicas = sizes.pop(distribution.batch_dim_name)
    split = [name for name, size in sizes.items() if size > 1]
    if len(split) > 1:
        raise ValueError(
            f"the device mesh splits models along {len(split)} axes ({', '.join(split)}), and tfdist splits along one; use a "
            "mesh of a batch axis and a model axis"
        )
    axis = split[0] if split else next(iter(sizes), None)
    return DeviceRows(replicas, math.prod(sizes.values()), axis)


def split_axis(variable: Any, distribution: Any) -> tuple[Any, int | None]:
    """Returns the layout of a variable of Keras, and the axis along which it is split; None for a variable that is not.

    Args:
        variable: the variable, a weight of a layer or a slot of an optimizer.
        distribution: the current distribution.

    Raises:
        ValueError: with the variable's path, if the layout does not fit it.
    """
    layout = variable._layout
    if layout is None and isinstance(distribution, keras.distribution.ModelParallel) and variable.trainable:
        layout = distribution.get_variable_layout(variable)
    if layout is None:
        return None, None
    rows = device_rows(distribution)
    named = [number for number, name in enumerate(layout.axes) if name is not None and name == rows.axis]
    others = [name for name in layout.axes if name is not None and name != rows.axis]
    where = f"the layout map gives {variable.path} the layout {layout.axes}"
    if others:
        raise ValueError(
            f"{where}, and {others[0]!r} is the axis of the batch: tfdist splits variables along {rows.axis!r} only, because "
            "every replica needs the whole model"
        )
    if not named or rows.devices == 1:
        return layout, None
    shape = tuple(variable._shape)
    if len(layout.axes) != len(shape):
        raise ValueError(f"{where}, which has {len(layout.axes)} axes, and its shape is {shape}")
    if len(named) > 1:
        raise ValueError(f"{where}, which names the axis {rows.axis!r} twice")
    (axis,) = named
    if shape[axis] % rows.devices:
        raise ValueError(
            f"{where}, and its shape {shape} cannot be split into {rows.devices} equal parts along axis {axis}; choose a "
            f"multiple of {rows.devices}, or leave it out of the layout map"
        )
    return layout, axis
