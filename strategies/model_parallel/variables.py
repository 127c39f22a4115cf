"""Creates the variables that a layout map names as `SplitVariable`s."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.attributes import replaced
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.model_parallel import optimizer, rules, tensorflow_functions
from tfdist.strategies.model_parallel.layouts import sharded_axis
from tfdist.strategies.model_parallel.split_tensor import SplitTensor, own_pieces
from tfdist.strategies.model_parallel.split_variable import SplitVariable
from tfdist.strategies.private_api import patches


@dataclass(frozen=True)
class Column:
    """The place of a shard. TensorFlow takes it for a variable with which the shard is colocated.

    Attributes:
        number: the number of the shard.
        _devices: its devices, one per replica.
    """

    number: int
    _devices: tuple[str, ...]


class _Current(threading.local):
    column: Column | None = None


_current = _Current()


def install() -> None:
    """Makes Keras' variables ask for their layout. Calling it again does nothing."""
    rules.install()
    tensorflow_functions.install()
    optimizer.install()
    patches.INITIALIZE.patch(_initialize)
    for point in patches.DISTRIBUTE_TENSOR.values():
        point.patch(_distribute_tensor)


def current_column() -> Column | None:
    """Returns the place of the shard that this thread creates now; None outside."""
    return _current.column


def _initialize(original: Callable[..., Any], variable: Any, value: Any) -> None:
    extended = tf.distribute.get_strategy().extended
    mesh = getattr(extended, "mesh", None)
    if mesh is not None and variable._shape is None:  # Made of a value. Keras notes the shape later; distributions ask for it.
        variable._shape = tuple(value.shape)
    layout = None if mesh is None else _layout_of(variable, extended)
    if mesh is None or layout is None:
        original(variable, value)
        return
    reason = None if extended.described is None else extended.described.reason(variable.path)
    axis = sharded_axis(layout, variable.path, tuple(variable._shape), mesh, reason)
    if axis is None:
        original(variable, value)
        return
    variable._layout = layout  # Optimizers give it to the slots.
    begin = tf.convert_to_tensor(value() if callable(value) else value, dtype=variable._dtype)
    if mesh.others:
        begin = extended.of_chief(begin)
    parts = []
    for number, piece in enumerate(own_pieces(begin, mesh.count, axis, mesh.own)):
        with replaced(_current, column=Column(number, tuple(devices[number] for devices in mesh.replicas))):
            part = tf.Variable(
                lambda piece=piece: piece,
                dtype=variable._dtype,
                trainable=variable.trainable,
                name=f"{variable.name}/shard_{mesh.own[number]}",
                aggregation=variable._map_aggregation(variable.aggregation),
                synchronization=variable._map_synchronization(variable.synchronization),
            )
        parts.append(part)
    variable._value = SplitVariable(parts, axis, variable, tf.distribute.get_strategy(), mesh.own, mesh.count)


def _layout_of(variable: Any, extended: Any) -> Any:
    """Returns the layout of a slot, which is that of its weight, or that of a weight in the layout map; or None."""
    distribution = extended.described or extended.followed
    if variable._layout is not None or not variable.trainable:
        return variable._layout
    return distribution.get_variable_layout(variable) if isinstance(distribution, keras.distribution.ModelParallel) else None


def _distribute_tensor(original: Callable[..., Any], tensor: Any, layout: Any) -> Any:
    """Splits the output of a layer that the layout map names, or joins it; of several outputs each."""
    if isinstance(tensor, list | tuple | dict):
        return tf.nest.map_structure(lambda each: _distribute_tensor(original, each, layout), tensor)
    mesh = getattr(tf.distribute.get_strategy().extended, "mesh", None)
    if keras.backend.is_keras_tensor(tensor):
        return original(tensor, layout)
    if mesh is None or tensor is None:  # Outside the scope, as in `generate` of Keras Hub; Keras' backend has no such function.
        return tensor
    batch = layout.axes[0] if layout.axes and layout.axes[0] != mesh.axis else None  # Each replica has its own examples.
    inner = keras.distribution.TensorLayout((None, *layout.axes[1:]) if batch else layout.axes, layout.device_mesh)
    axis = sharded_axis(inner, "an output of a layer", tuple(tensor.shape), mesh)
    if isinstance(tensor, SplitTensor):
        if tensor.axis == axis:
            return tensor
        tensor = tensor.whole()
    if axis is None:
        return tensor
    replica = replica_context.current()
    devices = mesh.replicas[0 if replica is None else replica.index]
    empty = SplitTensor(parts=(tensor,) * len(devices), axis=axis, devices=devices, first=mesh.own.start, others=mesh.others)
    return empty.with_parts(empty.cut(tensor, axis))
