"""Looking up rows of a table whose parts are on several devices: each part looks up its own rows, where it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.strategies.model_parallel import task_span
from tfdist.strategies.model_parallel.split_tensor import SplitTensor
from tfdist.strategies.model_parallel.split_variable import SplitVariable
from tfdist.strategies.private_api import KerasVariable, in_stateless_scope
from tfdist.strategies.private_api.gradient_devices import with_gradients
from tfdist.strategies.variable_base import rows_by_part


@dataclass(frozen=True)
class Table:
    """A tensor or variable in equal parts, of which rows along the first axis are looked up.

    Attributes:
        shape: of the whole table.
        axis: the axis along which the parts make it up.
        count: the number of all parts.
        own: the numbers of the parts of this task.
        devices: the device that asks for rows of each of these parts.
        rows_of: returns rows of one of these parts, given its position among them and the numbers of the rows in it.
    """

    shape: tf.TensorShape
    axis: int
    count: int
    own: range
    devices: tuple[str, ...]
    rows_of: Callable[[int, tf.Tensor], tf.Tensor]

    def take(self, indices: Any) -> Any:
        """Looks up rows.

        Args:
            indices: their numbers, int of any shape. Negative ones count from the end.

        Returns:
            The rows, of shape `indices.shape + shape[1:]`: a `SplitTensor` if the table is split by columns.
        """
        rows = self.shape[0]
        indices = tf.where(indices < 0, indices + tf.cast(rows, indices.dtype), indices)
        if self.axis:
            parts = [self._on_device(number, indices) for number in range(len(self.own))]
            others = self.count - len(self.own)
            return SplitTensor(
                tuple(parts), len(indices.shape) + self.axis - 1, self.devices, first=self.own.start, others=others
            )
        flat = tf.reshape(indices, [-1])
        pieces = rows_by_part(flat, range(0, rows + 1, rows // self.count))[self.own.start : self.own.stop]
        places = [chosen for chosen, _ in pieces]
        found = [self._on_device(number, local) for number, (_, local) in enumerate(pieces)]
        if len(self.own) < self.count:  # The other tasks look up the other rows.
            where, shape = tf.concat(places, axis=0)[:, tf.newaxis], tf.stack([tf.size(flat), *self.shape[1:]])
            stitched = task_span.current().add(tf.scatter_nd(where, tf.concat(found, axis=0), shape))
        else:
            stitched = tf.dynamic_stitch(places, found)
        looked_up = tf.reshape(stitched, tf.concat([tf.shape(indices), self.shape[1:]], axis=0))
        return tf.ensure_shape(looked_up, indices.shape.concatenate(self.shape[1:]))

    def _on_device(self, number: int, indices: tf.Tensor) -> tf.Tensor:
        with with_gradients(self.devices[number]):
            return self.rows_of(number, indices)


def table(value: Any) -> Table | None:
    """Returns a split tensor or variable, TensorFlow's or Keras', as a table; None for any other value.

    Rows of a variable of Keras are in the dtype in which its layer computes.
    """
    if isinstance(value, SplitTensor):
        own = range(value.first, value.first + len(value.parts))
        return Table(value.shape, value.axis, value.count, own, value.devices, lambda n, rows: tf.gather(value.parts[n], rows))
    is_keras = isinstance(value, KerasVariable) and not in_stateless_scope()
    inner = value._value if is_keras else value
    if not isinstance(inner, SplitVariable) or inner.is_shard:
        return None

    def rows_of(number: int, rows: tf.Tensor) -> tf.Tensor:
        found = inner.local(inner.shards[number]).sparse_read(rows)
        return value._maybe_autocast(found) if is_keras else found

    return Table(inner.shape, inner.axis, inner.count, inner.own, inner.places(), rows_of)
