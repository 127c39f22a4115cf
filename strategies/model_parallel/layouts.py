"""What `keras.distribution` says: which devices make up a replica, and along which axis a variable is split."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras


@dataclass(frozen=True)
class Partition:
    """How the devices of a task make up replicas.

    Attributes:
        rows: the devices of each replica.
        axis: the name of the mesh axis along which variables are split; None if a replica has one device.
    """

    rows: tuple[tuple[str, ...], ...]
    axis: str | None


def partition(distribution: Any, devices: Sequence[str], tasks: int = 1) -> Partition:
    """Returns the replicas of this task that a distribution describes.

    Args:
        distribution: `keras.distribution.DataParallel` or `ModelParallel`.
        devices: the devices of this task. Those of all tasks, in order, are laid out as the mesh, the axis of the batch first.
        tasks: the number of tasks, which have equally many devices.

    Raises:
        ValueError: if the distribution is of another class, its mesh has more than one axis beside that of the batch, or
            another number of devices, or a replica would span tasks.
    """
    if not isinstance(distribution, keras.distribution.DataParallel | keras.distribution.ModelParallel):
        raise ValueError(
            f"tfdist trains under keras.distribution.DataParallel and ModelParallel, and the distribution is a "
            f"{type(distribution).__name__}"
        )
    mesh = distribution.device_mesh
    if math.prod(mesh.shape) != len(devices) * tasks:
        raise ValueError(
            f"the device mesh of keras.distribution has the shape {tuple(mesh.shape)}, and {tasks} tasks have {len(devices)} "
            "devices each; use a mesh of all devices, or describe other numbers of tasks and slots"
        )
    if isinstance(distribution, keras.distribution.DataParallel):
        return Partition(tuple((device,) for device in devices), None)
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
    size = len(devices) * tasks // replicas
    if len(devices) % size:
        raise ValueError(
            f"the device mesh of keras.distribution has the shape {tuple(mesh.shape)}, so that a replica has {size} devices, "
            f"and a task has {len(devices)}; all devices of a replica have to be in one task"
        )
    rows = tuple(tuple(devices[first : first + size]) for first in range(0, len(devices), size))
    return Partition(rows, split[0] if split else None)


def split_axis(layout: Any, path: str, shape: tuple[int, ...], partition: Partition) -> int | None:
    """Returns the axis along which a variable is split; None if it is not.

    Args:
        layout: its `keras.distribution.TensorLayout`.
        path: its path, for messages.
        shape: its shape.
        partition: the devices.

    Raises:
        ValueError: with the path, if the layout does not fit the variable.
    """
    where = f"the layout map gives {path} the layout {layout.axes}"
    if len(layout.axes) != len(shape):
        raise ValueError(f"{where} of {len(layout.axes)} axes, and its shape is {shape}")
    sizes = dict(zip(layout.device_mesh.axis_names, layout.device_mesh.shape, strict=True))
    named = [number for number, name in enumerate(layout.axes) if name is not None and sizes[name] > 1]
    others = [layout.axes[number] for number in named if layout.axes[number] != partition.axis]
    if others:
        raise ValueError(
            f"{where}, and {others[0]!r} is the axis of the batch: every replica needs the whole model, so that tfdist splits "
            "variables along the other axis of the mesh only"
        )
    if not named:
        return None
    if len(named) > 1:
        raise ValueError(f"{where}, which names the axis {partition.axis!r} twice")
    (axis,) = named
    count = len(partition.rows[0])
    if shape[axis] % count:
        raise ValueError(
            f"{where}, and its shape {shape} cannot be split into {count} equal parts along axis {axis}; choose a multiple of "
            f"{count}, or leave the variable out of the layout map"
        )
    return axis
