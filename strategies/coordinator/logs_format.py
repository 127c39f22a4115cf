"""How logs travel from a group to the chief: as a vector of numbers, whose names and shapes both know."""

from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.calls.tensor_fusion import flatten, unflatten_array
from tfdist.strategies.keras_hooks import step_logs


class LogsFormat:
    """The names and shapes of logs that travel as a vector."""

    def __init__(self) -> None:
        self._structure: Any = {}
        self._shapes: list[tuple[int, ...]] = []
        self._places: dict[str, int] | None = {}  # Of each log in the vector; None if they are not all scalars in one dict.

    def flatten(self, logs: Any) -> Any:
        """Returns nested logs as a float64 vector, in a function, and notes their format."""
        values = [step_logs.of_known_shape(value) for value in tf.nest.flatten(logs)]
        self._structure = tf.nest.map_structure(lambda _: 0, logs)
        self._shapes = [tuple(value.shape) for value in values]
        self._places = None
        is_flat = type(logs) is dict and not any(map(tf.nest.is_nested, logs.values()))
        if is_flat and len(logs) == len(values) and not any(self._shapes):
            order = {name: place for place, name in enumerate(sorted(logs))}
            self._places = {name: order[name] for name in logs}
        return float64_vector(values)

    def unflatten(self, rows: Any) -> list[Any]:
        """Returns the logs in each row of `rows`, [rows, n], on the chief; scalars as floats."""
        if self._places is not None:
            return [{name: row[place] for name, place in self._places.items()} for row in rows.tolist()]
        return [tf.nest.pack_sequence_as(self._structure, unflatten_array(row, self._shapes)) for row in rows]


def float64_vector(values: list[Any]) -> Any:
    """Returns tensors, one after the other, as a float64 vector, in a function."""
    return flatten([tf.cast(value, tf.float64) for value in values]) if values else tf.zeros([0], tf.float64)
