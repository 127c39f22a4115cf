"""Creates the variables that a layout map names as `SplitVariable`s."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.model_parallel import rules
from tfdist.strategies.model_parallel.layouts import split_axis
from tfdist.strategies.model_parallel.split_variable import SplitVariable
from tfdist.strategies.private_api import patches


class _Column(threading.local):
    devices: tuple[str, ...] | None = None


_column = _Column()


def install() -> None:
    """Makes Keras' variables ask for their layout. Calling it again does nothing."""
    rules.install()
    patches.INITIALIZE.patch(_initialize)


def column_devices() -> tuple[str, ...] | None:
    """Returns the devices, one per replica, of the part that this thread creates now; None outside."""
    return _column.devices


@contextlib.contextmanager
def _column_of(devices: tuple[str, ...]) -> Iterator[None]:
    outer, _column.devices = _column.devices, devices
    try:
        yield
    finally:
        _column.devices = outer


def _initialize(original: Callable[..., Any], variable: Any, value: Any) -> None:
    partition = getattr(tf.distribute.get_strategy().extended, "partition", None)
    layout = None if partition is None else _layout_of(variable)
    axis = None if layout is None else split_axis(layout, variable.path, tuple(variable._shape or value.shape), partition)
    if axis is None:
        original(variable, value)
        return
    variable._layout = layout  # Optimizers give it to the slots.
    begin = tf.convert_to_tensor(value() if callable(value) else value, dtype=variable._dtype)
    pieces = tf.split(begin, len(partition.rows[0]), axis=axis)
    parts = []
    for number, piece in enumerate(pieces):
        with _column_of(tuple(row[number] for row in partition.rows)):
            part = tf.Variable(
                lambda piece=piece: piece,
                dtype=variable._dtype,
                trainable=variable.trainable,
                name=f"{variable.name}/part_{number}",
                aggregation=variable._map_aggregation(variable.aggregation),
                synchronization=variable._map_synchronization(variable.synchronization),
            )
        parts.append(part)
    variable._value = SplitVariable(parts, axis, variable.path)


def _layout_of(variable: Any) -> Any:
    """Returns the layout of a slot, which is that of its weight, or that of a weight in the current layout map; or None."""
    distribution = keras.distribution.distribution()
    if variable._layout is not None or not variable.trainable:
        return variable._layout
    return distribution.get_variable_layout(variable) if isinstance(distribution, keras.distribution.ModelParallel) else None
