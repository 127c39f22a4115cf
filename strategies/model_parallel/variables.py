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
    extended = tf.distribute.get_strategy().extended
    rows = getattr(extended, "tfdist_rows", None)
    distribution = keras.distribution.distribution()
    if rows is None or distribution is None:
        original(variable, value)
        return
    layout, axis = split_axis(variable, distribution)
    if axis is None:
        original(variable, value)
        return
    variable._layout = layout  # Optimizers give it to the slots.
    begin = tf.convert_to_tensor(value() if callable(value) else value, dtype=variable._dtype)
    count = len(rows[0])
    size = begin.shape[axis] // count
    parts = []
    for number in range(count):
        index = [slice(None)] * axis + [slice(number * size, (number + 1) * size)]
        with _column_of(tuple(row[number] for row in rows)):
            part = tf.Variable(
                lambda index=index: begin[tuple(index)],
                dtype=variable._dtype,
                trainable=variable.trainable,
                name=f"{variable.name}/part_{number}",
                aggregation=variable._map_aggregation(variable.aggregation),
                synchronization=variable._map_synchronization(variable.synchronization),
            )
        parts.append(part)
    variable._value = SplitVariable(parts, axis, variable.path)
