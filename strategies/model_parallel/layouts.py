"""What `keras.distribution` says: which devices make up a replica, and along which axis a variable is sharded."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tfdist.strategies.keras_hooks.replicas.warned import warn_once

_log = logging.getLogger("tfdist")


@dataclass(frozen=True)
class LocalMesh:
    """The devices of a device mesh that belong to one task.

    Attributes:
        replicas: the devices of each replica that are in this task.
        axis: the name of the mesh axis along which variables are sharded; None if a replica has one device.
        tasks: the number of tasks of a replica. If there are several, this task has devices of one replica only.
        position: the number of this task among them.
    """

    replicas: tuple[tuple[str, ...], ...]
    axis: str | None
    tasks: int = 1
    position: int = 0

    @property
    def count(self) -> int:
        """The number of devices of a replica, those in other tasks included."""
        return len(self.replicas[0]) * self.tasks

    @property
    def others(self) -> int:
        """The number of devices of a replica that are in other tasks."""
        return self.count - len(self.replicas[0])

    @property
    def own(self) -> range:
        """The numbers of the devices of a replica that are in this task."""
        first = self.position * len(self.replicas[0])
        return range(first, first + len(self.replicas[0]))


def local_mesh(distribution: Any, devices: Sequence[str], tasks: int = 1, task: int = 0) -> LocalMesh:
    """Returns the replicas of this task that a distribution describes.

    Args:
        distribution: `keras.distribution.DataParallel` or `ModelParallel`.
        devices: the devices of this task. Those of all tasks, in order, are laid out as the mesh, the axis of the batch first.
        tasks: the number of tasks, which have equally many devices.
        task: the number of this task.

    Raises:
        ValueError: if the distribution is of another class, its mesh has more than one axis beside that of the batch, or
            another number of devices, a replica has some devices of a task and those of other tasks, or it is for data that
            the program has sharded.
    """
    _check_distribution(distribution, len(devices), tasks)
    if isinstance(distribution, keras.distribution.DataParallel):
        return LocalMesh(tuple((device,) for device in devices), None)
    mesh = distribution.device_mesh
    sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
    replicas = sizes.pop(distribution.batch_dim_name)
    split = [name for name, size in sizes.items() if size > 1]
    if len(split) > 1:
        raise ValueError(
            f"the device mesh shards models along {len(split)} axes ({', '.join(split)}), and tfdist shards along one; use a "
            "mesh of a batch axis and a model axis"
        )
    axis = split[0] if split else None
    size = len(devices) * tasks // replicas
    if size % len(devices) == 0:
        spanned = size // len(devices)
        return LocalMesh((tuple(devices),), axis, spanned, task % spanned)
    if len(devices) % size:
        raise ValueError(
            f"the device mesh of keras.distribution has the shape {tuple(mesh.shape)}, so that a replica has {size} devices, "
            f"and a task has {len(devices)}; a replica has all devices of one or of several tasks, or a task has whole replicas"
        )
    return LocalMesh(tuple(tuple(devices[first : first + size]) for first in range(0, len(devices), size)), axis)


def _check_distribution(distribution: Any, devices: int, tasks: int) -> None:
    """Raises ValueError if tfdist does not train under a distribution, or if its mesh is not that of `devices` per task."""
    if not isinstance(distribution, keras.distribution.DataParallel | keras.distribution.ModelParallel):
        raise ValueError(
            f"tfdist trains under keras.distribution.DataParallel and ModelParallel, and the distribution is a "
            f"{type(distribution).__name__}"
        )
    if tasks > 1 and not getattr(distribution, "auto_shard_dataset", True):  # Older versions of Keras have none.
        raise ValueError(
            "keras.distribution has auto_shard_dataset=False, for data that the program itself has sharded by task, and every "
            "task would train on a part of its part; leave it out, and give every task all data, or a tf.data.Dataset with "
            "the auto_shard_policy OFF"
        )
    mesh = distribution.device_mesh
    if math.prod(mesh.shape) != devices * tasks:
        raise ValueError(
            f"the device mesh of keras.distribution has the shape {tuple(mesh.shape)}, and {tasks} tasks have {devices} "
            "devices each; use a mesh of all devices, or describe other numbers of tasks and slots"
        )
    is_model_parallel = isinstance(distribution, keras.distribution.ModelParallel)
    if is_model_parallel and distribution.batch_dim_name not in mesh.axis_names:
        raise ValueError(
            f"the device mesh has the axes {', '.join(mesh.axis_names)}, and none is the distribution's batch_dim_name "
            f"{distribution.batch_dim_name!r}"
        )


def sharded_axis(
    layout: Any, path: str, shape: tuple[int | None, ...], mesh: LocalMesh, reason: str | None = None
) -> int | None:
    """Returns the axis along which a variable is sharded over the devices of a replica; None if it is not.

    Every replica has the whole model, so that a layout that also names the axis of the batch is followed by a warning only.

    Args:
        layout: its `keras.distribution.TensorLayout`. Axes that it does not reach are whole, as in JAX.
        path: its path, for messages.
        shape: its shape, with None for what a step does not know of an output of a layer.
        mesh: the devices.
        reason: why it has this layout, as the beginning of a sentence. Default: because of the layout map.

    Raises:
        ValueError: with the path, if the layout does not fit the variable.
    """
    where = reason or f"the layout map gives {path} the layout {layout.axes}"
    if len(layout.axes) > len(shape):
        raise ValueError(f"{where} of {len(layout.axes)} axes, and its shape is {shape}")
    sizes = dict(zip(layout.device_mesh.axis_names, layout.device_mesh.shape, strict=True))
    named = [number for number, name in enumerate(layout.axes) if name is not None and sizes[name] > 1]
    for name in {layout.axes[number] for number in named} - {mesh.axis}:
        _warn_of_batch_axis(name, where)
    sharded = [number for number in named if layout.axes[number] == mesh.axis]
    if not sharded:
        return None
    if len(sharded) > 1:
        raise ValueError(f"{where}, which names the axis {mesh.axis!r} twice")
    (axis,) = sharded
    count, length = mesh.count, shape[axis]
    if length is None:  # Of an output. It may differ between batches.
        return None
    if length % count:
        raise ValueError(
            f"{where}, and its shape {shape} cannot be sharded equally over {count} devices along axis {axis}; choose a "
            f"multiple of {count}, or leave the variable whole"
        )
    return axis


_warned: set[str] = set()  # Axes of batches: one warning stands for all variables.


def _warn_of_batch_axis(name: str, where: str) -> None:
    if name not in _warned:
        _warned.add(name)
        _log.warning("%s, and %r is the axis of the batch: every replica holds such variables whole along it", where, name)


def warn_of_no_shards(model: str, variables: Sequence[Any], distribution: Any, mesh: LocalMesh) -> None:
    """Warns, once for a model, of a layout map that shards none of its variables. Keras says nothing.

    Args:
        model: its name.
        variables: its variables. Those that are frozen now, as with LoRA, may be sharded too.
        distribution: the current `keras.distribution.ModelParallel`.
        mesh: the devices.
    """
    if not isinstance(distribution, keras.distribution.ModelParallel) or mesh.axis is None:
        return
    trainable = [variable for variable in variables if variable.trainable]
    layouts = [variable._layout for variable in variables] + [distribution.get_variable_layout(each) for each in trainable]
    if not trainable or any(layout is not None and mesh.axis in layout.axes for layout in layouts):
        return
    warn_once(
        "the layout map shards no variable of %s along %r: a pattern has to match a whole path, such as %s; begin it with .*, "
        "for example",
        *(model, mesh.axis, trainable[0].path),
    )
