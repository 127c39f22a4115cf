"""TensorFlow's own functions on variables that are split: what Keras' operations do, where a layer calls `tf.matmul`.

TensorFlow converts the arguments of a function, and a split variable refuses to become one tensor in a step
(`SplitVariable.value`). TensorFlow then asks its global dispatchers for another way: here the function gets the variable as a
`SplitTensor`, if it can compute on the parts. Otherwise the refusal stays.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.model_parallel import moves, rules
from tfdist.strategies.model_parallel.lookups import table
from tfdist.strategies.model_parallel.split_tensor import UNARY, SplitTensor, operand
from tfdist.strategies.private_api import GlobalOpDispatcher

_NOT_SUPPORTED = GlobalOpDispatcher.NOT_SUPPORTED


class _OnParts(GlobalOpDispatcher):  # type: ignore[misc]
    def handle(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Returns the result of a function that has failed, or that there is no other way."""
        rule = _RULES.get(inspect.unwrap(op))
        if rule is None:
            return _NOT_SUPPORTED
        if all(operand(value) is value for value in tf.nest.flatten((args, kwargs))):
            return _NOT_SUPPORTED  # It has failed for another reason.
        return rule(*args, **kwargs)


def install() -> None:
    """Gives TensorFlow's functions this way. Calling it again does nothing."""
    if not _installed:
        _installed.append(_OnParts())
        _installed[0].register()


_installed: list[_OnParts] = []


def _matmul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False, name: Any = None, **others: Any) -> Any:
    if any(others.values()):
        return _NOT_SUPPORTED
    return rules.matmul(tf.matmul, _transposed(a) if transpose_a else a, _transposed(b) if transpose_b else b)


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that gives an elementwise one, which takes a `SplitTensor`, variables as that."""

    def of_variables(*args: Any, **kwargs: Any) -> Any:
        return function(*map(operand, args), **{name: operand(value) for name, value in kwargs.items()})

    return of_variables


def _transposed(value: Any) -> Any:
    value = operand(value)
    if not isinstance(value, SplitTensor):
        return tf.linalg.matrix_transpose(value)
    order = [*range(value.rank - 2), value.rank - 1, value.rank - 2]
    return value.on_parts(lambda _, part: tf.transpose(part, order), axis=order.index(value.axis))


def _tensordot(a: Any, b: Any, axes: Any, name: Any = None) -> Any:
    """Computes the product of the last axis of a tensor and the first of a matrix, as a layer needs it."""
    if len(b.shape) != 2 or not (axes == 1 if isinstance(axes, int) else _are_inner(axes, len(a.shape))):
        return _NOT_SUPPORTED
    return rules.matmul(lambda x, y: tf.tensordot(x, y, 1), a, b)


def _are_inner(axes: Any, rank: int) -> bool:
    """Returns whether axes are the last one of a tensor of this rank and the first one of a matrix."""
    pair = [np.ravel(each) for each in axes]
    return [each.size for each in pair] == [1, 1] and pair[0][0] % rank == rank - 1 and pair[1][0] % 2 == 0


def _einsum(equation: str, *inputs: Any, **kwargs: Any) -> Any:
    return rules.einsum(tf.einsum, equation, *inputs, **kwargs)


def _transpose(a: Any, perm: Any = None, conjugate: bool = False, name: Any = None) -> Any:
    return _NOT_SUPPORTED if conjugate else rules.transpose(tf.transpose, a, perm)


def _gather(params: Any, indices: Any, *others: Any, axis: Any = None, name: Any = None, **named: Any) -> Any:
    rows = table(params)
    if rows is None or any(map(bool, (*others, *named.values()))):
        return _NOT_SUPPORTED
    place = (axis or 0) % len(rows.shape)
    if not place:
        return rows.take(tf.convert_to_tensor(indices))
    if place == rows.axis:
        return _NOT_SUPPORTED
    return moves.gathered(operand(params), indices, place, lambda part, numbers, at: tf.gather(part, numbers, axis=at))


def _embedding_lookup(params: Any, ids: Any, max_norm: Any = None, name: Any = None) -> Any:
    return _NOT_SUPPORTED if max_norm is not None else _gather(params, ids)


def _sum(input_tensor: Any, axis: Any = None, keepdims: bool = False, name: Any = None) -> Any:
    return _NOT_SUPPORTED if axis is not None or keepdims else operand(input_tensor).added(lambda _, part: tf.reduce_sum(part))


def _concat(values: Any, axis: Any, name: Any = "concat") -> Any:
    found = moves.concatenate([operand(value) for value in values], axis)
    return tf.concat(list(map(tf.convert_to_tensor, values)), axis) if found is NotImplemented else found


def _reshape(tensor: Any, shape: Any, name: Any = None) -> Any:
    found = None if isinstance(shape, tf.Tensor) else moves.reshape(operand(tensor), shape)
    return _NOT_SUPPORTED if found is None else found


def _split(value: Any, num_or_size_splits: Any, axis: int = 0, num: Any = None, name: Any = None) -> Any:
    value = operand(value)
    return _NOT_SUPPORTED if axis % value.rank == value.axis else moves.split(value, num_or_size_splits, axis, num)


def _l2_loss(t: Any, name: Any = None) -> Any:
    return operand(t).added(lambda _, part: tf.nn.l2_loss(part))


_ELEMENTWISE = (
    *(tf.add, tf.subtract, tf.multiply, tf.divide, tf.truediv, tf.pow, tf.maximum, tf.minimum),
    *(tf.math.squared_difference, tf.math.multiply_no_nan, tf.math.divide_no_nan),
    *(tf.less, tf.less_equal, tf.greater, tf.greater_equal, tf.equal, tf.not_equal),
)
_BY_NAME: dict[Any, Callable[..., Any]] = {
    **{function: _elementwise(function) for function in (*UNARY, *_ELEMENTWISE, *moves.MOVES)},
    tf.concat: _concat,
    tf.reshape: _reshape,
    tf.split: _split,
    tf.matmul: _matmul,
    tf.tensordot: _tensordot,
    tf.einsum: _einsum,
    tf.transpose: _transpose,
    tf.gather: _gather,
    tf.nn.embedding_lookup: _embedding_lookup,
    tf.reduce_sum: _sum,
    tf.nn.l2_loss: _l2_loss,
}
_RULES = {inspect.unwrap(function): rule for function, rule in _BY_NAME.items()}
"""Function of TensorFlow, without its decorators and what others have wrapped around it -> what computes it on the parts."""
