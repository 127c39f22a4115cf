"""`SplitTensor`: a tensor whose parts along one axis are on several devices.

Operations that know it compute on the parts (`rules.py`, and TensorFlow's dispatch below). Any other operation gets the whole
tensor, by a concatenation: the result is right, and no longer split.
"""

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Union

import numpy as np
import tensorflow as tf

from tfdist.strategies.private_api import KerasVariable, in_stateless_scope


class SplitTensor(tf.experimental.ExtensionType, tf.__internal__.types.Tensor):  # type: ignore[misc]
    """A tensor in equal parts along one axis.

    Attributes:
        parts: the parts, in order; all of one shape and dtype.
        axis: the axis along which they make up the tensor, from 0.
        devices: the device of each part.
    """

    parts: tuple[tf.Tensor, ...]
    axis: int
    devices: tuple[str, ...]

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the whole tensor."""
        shape = self.parts[0].shape.as_list()
        if shape[self.axis] is not None:
            shape[self.axis] *= len(self.parts)
        return tf.TensorShape(shape)

    @property
    def dtype(self) -> Any:
        """The dtype."""
        return self.parts[0].dtype

    @property
    def rank(self) -> int:
        """The number of axes."""
        return int(self.parts[0].shape.rank)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.rank

    def whole(self) -> Any:
        """Returns the whole tensor on the current device."""
        return tf.concat(self.parts, axis=self.axis)

    def with_parts(self, parts: Sequence[Any]) -> "SplitTensor":
        """Returns a tensor with other parts in the same places."""
        return SplitTensor(parts=tuple(parts), axis=self.axis, devices=self.devices)

    def get_shape(self) -> tf.TensorShape:
        """Returns `shape`."""
        return self.shape

    def __getitem__(self, key: Any) -> Any:
        """Slices the whole tensor."""
        return self.whole()[key]

    def __len__(self) -> int:
        """Returns the size of the first axis."""
        return int(self.shape[0])

    def on_parts(self, function: Callable[..., Any], axis: int | None = None) -> "SplitTensor":
        """Applies a function to every part, each on its device.

        Args:
            function: gets the number of the part and the part.
            axis: the axis of the result that is split; that of this tensor by default.
        """
        parts = []
        for number, part in self.placed():
            parts.append(function(number, part))
        return SplitTensor(parts=tuple(parts), axis=self.axis if axis is None else axis, devices=self.devices)

    def placed(self) -> Iterator[tuple[int, Any]]:
        """Yields the number and value of each part, with the part's device as the current one."""
        for number, (device, part) in enumerate(zip(self.devices, self.parts, strict=True)):
            with tf.device(device):
                yield number, part


class Splittable(abc.ABC):
    """A variable that can be read in parts: the base of `SplitVariable`."""

    @property
    @abc.abstractmethod
    def is_part(self) -> bool:
        """Whether it stands for one of its parts in this thread."""

    @abc.abstractmethod
    def as_split(self) -> SplitTensor:
        """Returns the value in its parts, each read on its device."""


tf.register_tensor_conversion_function(SplitTensor, lambda value, dtype=None, name=None, as_ref=False: value.whole())


def operand(value: Any) -> Any:
    """Returns a variable that is split, TensorFlow's or Keras', as a `SplitTensor`; any other value as it is.

    The value of a variable of Keras is in the dtype in which its layer computes.
    """
    inner = value._value if isinstance(value, KerasVariable) and not in_stateless_scope() else value
    if not isinstance(inner, Splittable) or inner.is_part:
        return value
    return inner.as_split() if inner is value else value._maybe_autocast(inner.as_split())


def pieces(value: Any, count: int, axis: int) -> Any:
    """Splits a whole tensor into a list of `count` equal parts along an axis."""
    return tf.split(value, count, axis=axis)


def rows_by_part(rows: Any, count: int, parts: int) -> list[tuple[Any, Any]]:
    """Splits row numbers by the part that holds the row.

    Args:
        rows: row numbers, int [n].
        count: the number of rows of the whole tensor.
        parts: the number of parts.

    Returns:
        For each part: the positions in `rows` of those that it holds, int32 [m], and their numbers in the part. Rows that do
        not exist go to the first or last part, where looking them up fails.
    """
    part = tf.clip_by_value(rows // (count // parts), 0, parts - 1)
    found = []
    for number in range(parts):
        chosen = tf.cast(tf.reshape(tf.where(part == number), [-1]), tf.int32)
        found.append((chosen, tf.gather(rows, chosen) - number * (count // parts)))
    return found


def elementwise(function: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """Applies an elementwise function of two tensors, of which one or both are split, with broadcasting.

    The result is split if the other tensor is split in the same place, can be split there, or is broadcast there.
    """
    x, y = operand(x), operand(y)
    one, other = (x, y) if isinstance(x, SplitTensor) else (y, x)
    if isinstance(other, int | float):
        other = tf.constant(other, one.dtype)
    place = one.axis - one.rank  # From the right, as broadcasting counts.
    parts = _parts_for(one, other, place)
    if parts is None:
        return function(_whole(x), _whole(y))
    rank = max(one.rank, len(parts[0].shape))

    def on_part(number: int, part: Any) -> Any:
        return function(part, parts[number]) if one is x else function(parts[number], part)

    return one.on_parts(on_part, axis=rank + place)


def _parts_for(one: SplitTensor, other: Any, place: int) -> Any:
    """Returns what each part of `one` meets of `other`; None if `other` cannot be cut or broadcast there."""
    count = len(one.parts)
    if isinstance(other, SplitTensor):
        same = other.axis - other.rank == place and len(other.parts) == count and other.shape[other.axis] == one.shape[one.axis]
        if same:
            return other.parts
    other = tf.convert_to_tensor(other)
    if other.shape.rank < -place or other.shape[place] == 1:
        return [other] * count
    if other.shape[place] is not None and other.shape[place] == one.shape[one.axis]:
        return pieces(other, count, place)
    return None


def _whole(value: Any) -> Any:
    return value.whole() if isinstance(value, SplitTensor) else value


# TensorFlow's dispatch does not know `X | Y`.
_Whole = Union[tf.Tensor, tf.Variable, KerasVariable, np.ndarray, int, float]  # noqa: UP007
_Any = Union[SplitTensor, _Whole]  # noqa: UP007


@tf.experimental.dispatch_for_unary_elementwise_apis(SplitTensor)  # type: ignore[untyped-decorator]
def _unary(function: Any, x: SplitTensor) -> Any:
    return x.on_parts(lambda number, part: function(part))


@tf.experimental.dispatch_for_binary_elementwise_apis(SplitTensor, _Any)  # type: ignore[untyped-decorator]
def _binary(function: Any, x: Any, y: Any) -> Any:
    return elementwise(function, x, y)


@tf.experimental.dispatch_for_binary_elementwise_apis(_Whole, SplitTensor)  # type: ignore[untyped-decorator]
def _binary_reversed(function: Any, x: Any, y: Any) -> Any:
    return elementwise(function, x, y)


_OPERATORS = {
    "__add__": tf.add,
    "__sub__": tf.subtract,
    "__mul__": tf.multiply,
    "__truediv__": tf.divide,
    "__pow__": tf.pow,
}


def _add_operators() -> None:
    for name, function in _OPERATORS.items():
        setattr(SplitTensor, name, lambda self, other, function=function: function(self, other))
        reverse = name.replace("__", "__r", 1)
        setattr(SplitTensor, reverse, lambda self, other, function=function: function(other, self))
    SplitTensor.__neg__ = lambda self: tf.negative(self)
    for name in ("__matmul__", "__lt__", "__le__", "__gt__", "__ge__", "__mod__", "__floordiv__"):
        setattr(SplitTensor, name, lambda self, other, name=name: getattr(self.whole(), name)(_whole(other)))


_add_operators()
