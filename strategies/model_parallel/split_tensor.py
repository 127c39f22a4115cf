"""`SplitTensor`: a tensor whose parts along one axis are on several devices.

Operations that know it compute on the parts (`rules.py`, and TensorFlow's dispatch below). Any other operation gets the whole
tensor, by a concatenation: the result is right, and no longer split.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Union

import numpy as np
import tensorflow as tf

from tfdist.strategies.model_parallel import task_span
from tfdist.strategies.private_api import CompositeTensorGradient, KerasVariable, in_stateless_scope
from tfdist.strategies.private_api.gradient_devices import with_gradients


class _PartGradients(CompositeTensorGradient):  # type: ignore[misc]
    """Makes gradient tapes differentiate by the parts, and the parts."""

    def get_gradient_components(self, value: Any) -> Any:
        return value.parts

    def replace_gradient_components(self, value: Any, component_grads: Any) -> Any:
        if all(gradient is None for gradient in component_grads):
            return None
        given = list(component_grads)
        return value.on_parts(
            lambda number, part: tf.zeros_like(part) if given[number] is None else tf.convert_to_tensor(given[number])
        )


class SplitTensor(tf.experimental.ExtensionType, tf.__internal__.types.Tensor):  # type: ignore[misc]
    """A tensor in equal parts along one axis.

    Attributes:
        parts: the parts of this task, in order; all of one shape and dtype.
        axis: the axis along which they make up the tensor, from 0.
        devices: the device of each of these parts.
        first: the number of the first of them. Default: 0.
        others: how many further parts are in other tasks (`task_span.py`). Default: 0.
    """

    __composite_gradient__ = _PartGradients()
    __array_priority__ = tf.Tensor.__array_priority__  # `array + tensor` calls `__radd__`. NumPy would make it an array.

    parts: tuple[tf.Tensor, ...]
    axis: int
    devices: tuple[str, ...]
    first: int = 0
    others: int = 0

    @property
    def count(self) -> int:
        """The number of all parts."""
        return len(self.parts) + self.others

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the whole tensor."""
        shape = self.parts[0].shape.as_list()
        if shape[self.axis] is not None:
            shape[self.axis] *= self.count
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
        here = tf.concat(self.parts, axis=self.axis)
        return task_span.current().gather(here, self.axis) if self.others else here

    def with_parts(self, parts: Sequence[Any], axis: int | None = None) -> "SplitTensor":
        """Returns a tensor with other parts in the same places, by default along the same axis."""
        axis = self.axis if axis is None else axis
        return SplitTensor(parts=tuple(parts), axis=axis, devices=self.devices, first=self.first, others=self.others)

    def cut(self, value: Any, axis: int) -> list[Any]:
        """Returns what meets each part of this tensor of a whole tensor that is cut along an axis."""
        return own_pieces(self.shared(value)[0], self.count, axis, range(self.first, self.first + len(self.parts)))

    def shared(self, value: Any) -> list[Any]:
        """Returns a whole tensor for operations on each part."""
        if self.others and isinstance(value, tf.Tensor | tf.Variable | KerasVariable):
            value = task_span.current().enter(tf.convert_to_tensor(value))
        return [value] * len(self.parts)

    def added(self, function: Callable[[int, Any], Any]) -> Any:
        """Returns the sum of what a function computes of all parts (`on_parts`), of all tasks, on the current device."""
        total = tf.add_n(self.each(function))
        return task_span.current().add(total) if self.others else total

    def meets(self, other: "SplitTensor") -> bool:
        """Returns whether another tensor has as many parts in the same tasks."""
        return (other.first, other.others, len(other.parts)) == (self.first, self.others, len(self.parts))

    def get_shape(self) -> tf.TensorShape:
        """Returns `shape`."""
        return self.shape

    def __getitem__(self, key: Any) -> Any:
        """Slices the whole tensor. `moves.py` slices the parts where it can."""
        return self.whole()[key]

    def __len__(self) -> int:
        """Returns the size of the first axis."""
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        """Yields the whole tensor's slices along the first axis."""
        return iter(self.whole())

    def set_shape(self, shape: Any) -> None:
        """Checks that the whole tensor may have this shape, which its parts need not be told."""
        self.shape.assert_is_compatible_with(shape)

    def numpy(self) -> Any:
        """Returns the whole tensor as an array; in a graph the error of TensorFlow's own tensors."""
        return self.whole().numpy()

    def __array__(self, dtype: Any = None) -> Any:
        """Returns the whole tensor as an array; raises NotImplementedError in a graph, as TensorFlow's own tensors do."""
        return np.asarray(self.whole(), dtype)

    def on_parts(self, function: Callable[..., Any], axis: int | None = None) -> "SplitTensor":
        """Applies a function to every part, each on its device.

        Args:
            function: gets the number of the part and the part.
            axis: the axis of the result that is split; that of this tensor by default.
        """
        return self.with_parts(self.each(function), axis)

    def each(self, function: Callable[[int, Any], Any]) -> list[Any]:
        """Returns what a function computes of each part (`on_parts`), with the device of the part as that of gradients, too."""
        results = []
        for number, (device, part) in enumerate(zip(self.devices, self.parts, strict=True)):
            with with_gradients(device):  # Not in a generator, which an error would leave on its device.
                results.append(function(number, part))
        return results


def _convert(value: SplitTensor, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> Any:
    if dtype is not None and not dtype.is_compatible_with(value.dtype):
        raise ValueError(f"a tensor of dtype {value.dtype.name} is no tensor of dtype {dtype.name}")
    return value.whole()


tf.register_tensor_conversion_function(SplitTensor, _convert)


def operand(value: Any) -> Any:
    """Returns a variable that is split, TensorFlow's or Keras', as a `SplitTensor`; any other value as it is.

    The value of a variable of Keras is in the dtype in which its layer computes.
    """
    inner = value._value if isinstance(value, KerasVariable) and not in_stateless_scope() else value
    if not hasattr(type(inner), "as_split") or inner.is_shard:  # A `SplitVariable` has it. Its file imports this one.
        return value
    return inner.as_split() if inner is value else value._maybe_autocast(inner.as_split())


def own_pieces(value: Any, count: int, axis: int, own: range) -> list[Any]:
    """Splits a whole tensor into `count` equal parts along an axis, and returns those with these numbers."""
    return list(tf.split(value, count, axis=axis)[own.start : own.stop])


def parts_along(value: Any, axis: int, split: SplitTensor) -> Any:
    """Returns the parts of a tensor along an axis that meet those of `split`; its own parts if it is split there."""
    if isinstance(value, SplitTensor) and value.axis == axis and split.meets(value):
        return value.parts
    dense = tf.sparse.to_dense(value) if isinstance(value, tf.SparseTensor) else tf.convert_to_tensor(whole(value))
    return split.cut(dense, axis)


def elementwise(function: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """Applies an elementwise function of two tensors, of which one or both are split, with broadcasting.

    The result is split if the other tensor is split in the same place, can be split there, or is broadcast there.
    """
    x, y = operand(x), operand(y)
    one, other = (x, y) if isinstance(x, SplitTensor) else (y, x)
    if not isinstance(other, SplitTensor):
        other = _as_tensor(other, one.dtype)
    place = one.axis - one.rank  # From the right, as broadcasting counts.
    parts = _parts_for(one, other, place)
    if parts is None:
        return function(whole(x), whole(y))
    rank = max(one.rank, len(parts[0].shape))

    def on_part(number: int, part: Any) -> Any:
        return function(part, parts[number]) if one is x else function(parts[number], part)

    return one.on_parts(on_part, axis=rank + place)


def _as_tensor(value: Any, dtype: Any) -> tf.Tensor:
    """Converts an operand: TensorFlow gives Python and NumPy values the dtype of the tensor that they meet, where it can."""
    if not isinstance(value, int | float | list | tuple | np.ndarray):
        return tf.convert_to_tensor(value)
    try:
        return tf.convert_to_tensor(value, dtype)
    except (TypeError, ValueError):
        return tf.convert_to_tensor(value)


def _parts_for(one: SplitTensor, other: Any, place: int) -> Any:
    """Returns what each part of `one` meets of `other`; None if `other` cannot be cut or broadcast there."""
    if isinstance(other, SplitTensor):
        same = other.axis - other.rank == place and one.meets(other) and other.shape[other.axis] == one.shape[one.axis]
        if same:
            return other.parts
    other = whole(other)
    if other.shape.rank is None:  # What a `tf.py_function` returns.
        return None
    if other.shape.rank < -place or other.shape[place] == 1:
        return one.shared(other)
    if other.shape[place] is not None and other.shape[place] == one.shape[one.axis]:
        return one.cut(other, place)
    return None


def whole(value: Any) -> Any:
    """Returns a `SplitTensor` as one tensor; any other value as it is."""
    return value.whole() if isinstance(value, SplitTensor) else value


# TensorFlow's dispatch does not know `X | Y`.
_Whole = Union[tf.Tensor, tf.Variable, KerasVariable, np.ndarray, int, float]  # noqa: UP007
_Any = Union[SplitTensor, _Whole]  # noqa: UP007


@tf.experimental.dispatch_for_binary_elementwise_apis(SplitTensor, _Any)  # type: ignore[untyped-decorator]
def _binary(function: Any, x: Any, y: Any) -> Any:
    return elementwise(function, x, y)


@tf.experimental.dispatch_for_binary_elementwise_apis(_Whole, SplitTensor)  # type: ignore[untyped-decorator]
def _binary_reversed(function: Any, x: Any, y: Any) -> Any:
    return elementwise(function, x, y)


UNARY = (
    *(tf.cast, tf.saturate_cast, tf.clip_by_value, tf.zeros_like, tf.ones_like, tf.stop_gradient, tf.debugging.check_numerics),
    *(tf.nn.elu, tf.nn.gelu, tf.nn.leaky_relu, tf.nn.relu, tf.nn.relu6, tf.nn.selu, tf.nn.silu, tf.nn.softsign),
    *(tf.abs, tf.negative, tf.sign, tf.round, tf.floor, tf.math.ceil, tf.math.rint, tf.square, tf.sqrt, tf.math.rsqrt),
    *(tf.exp, tf.math.expm1, tf.math.log, tf.math.log1p, tf.math.log_sigmoid, tf.sigmoid, tf.math.softplus, tf.math.reciprocal),
    *(tf.sin, tf.cos, tf.tan, tf.sinh, tf.cosh, tf.tanh, tf.asin, tf.acos, tf.atan, tf.asinh, tf.acosh, tf.atanh),
    *(tf.math.erf, tf.math.erfc, tf.math.erfinv, tf.math.lgamma, tf.math.digamma, tf.math.is_finite, tf.math.is_inf),
    *(tf.math.is_nan, tf.logical_not),
)
"""Elementwise functions of one tensor. TensorFlow's own list has log_softmax too, which is none."""


def dispatch(function: Callable[..., Any], to: Callable[..., Any]) -> None:
    """Makes TensorFlow call another function instead of one of its own whose first argument is a `SplitTensor`."""
    name = next(iter(inspect.signature(function).parameters))

    @tf.experimental.dispatch_for_api(function, {name: SplitTensor})  # type: ignore[untyped-decorator]
    def dispatched(*args: Any, **kwargs: Any) -> Any:
        return to(*args, **kwargs) if args else to(kwargs.pop(name), **kwargs)


def _on_each_part(function: Callable[..., Any]) -> Callable[..., Any]:
    def on_parts(x: SplitTensor, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, list | tuple) or len(getattr(value, "shape", ())) for value in (*args, *kwargs.values())):
            return function(x.whole(), *args, **kwargs)  # Bounds, for example, which would have to be split too.
        args, kwargs = tuple(x.shared(value)[0] for value in args), {key: x.shared(value)[0] for key, value in kwargs.items()}
        return x.on_parts(lambda number, part: function(part, *args, **kwargs))

    return on_parts


for _function in UNARY:
    dispatch(_function, _on_each_part(_function))


OPERATORS = {
    "add": tf.add,
    "sub": tf.subtract,
    "mul": tf.multiply,
    "truediv": tf.truediv,  # `tf.divide` calls the operator.
    "pow": tf.pow,
    "matmul": tf.matmul,
}
"""Name of an operator of Python -> what computes it, also of a variable in shards."""

_OPERATORS = OPERATORS | {
    "floordiv": tf.math.floordiv,
    "mod": tf.math.floormod,
    "and": lambda x, y: whole(x) & whole(y),
    "or": lambda x, y: whole(x) | whole(y),
    "xor": lambda x, y: whole(x) ^ whole(y),
}
_COMPARISONS = {
    "lt": tf.less,
    "le": tf.less_equal,
    "gt": tf.greater,
    "ge": tf.greater_equal,
    "eq": tf.equal,
    "ne": tf.not_equal,
}


def _listed(tensor: SplitTensor, other: Any) -> Any:
    return _as_tensor(other, tensor.dtype) if isinstance(other, list | tuple) else other


def _add_operators() -> None:
    for name, function in (_OPERATORS | _COMPARISONS).items():
        setattr(SplitTensor, f"__{name}__", lambda self, other, function=function: function(self, _listed(self, other)))
    for name, function in _OPERATORS.items():
        setattr(SplitTensor, f"__r{name}__", lambda self, other, function=function: function(_listed(self, other), self))
    SplitTensor.__neg__ = lambda self: tf.negative(self)
    SplitTensor.__abs__ = lambda self: tf.abs(self)
    SplitTensor.__invert__ = lambda self: ~self.whole()


_add_operators()
