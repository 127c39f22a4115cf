"""Split tensors in operations with functions or nested tensors among their arguments, such as `tf.cond` and `tf.map_fn`.

TensorFlow converts no tensors there: it would take a `SplitTensor` for as many tensors as it has parts, and find branches or
steps of a loop that return other structures. So these operations get whole tensors, and so do their functions return them.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.model_parallel.split_tensor import SplitTensor, operand
from tfdist.strategies.private_api import patches


def install() -> None:
    """Makes these operations get whole tensors. Calling it again does nothing."""
    for point in patches.NESTED_OPERATIONS.values():
        point.patch(_with_whole_tensors)


def _with_whole_tensors(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(*map(_argument, args), **{name: _argument(value) for name, value in kwargs.items()})


def _argument(value: Any) -> Any:
    """Returns an argument with whole tensors, and with functions that return whole tensors."""
    if _is_function(value):
        return _returning_whole(value)
    if isinstance(value, dict) and any(map(_is_function, value.values())):
        return {key: _argument(each) for key, each in value.items()}
    if isinstance(value, list) and any(_is_function(each) or isinstance(each, tuple) for each in value):
        return [tuple(map(_argument, each)) if type(each) is tuple else _argument(each) for each in value]  # Of `switch_case`.
    return whole_tensors(value)


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, type)


def _returning_whole(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def returning_whole(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if isinstance(result, tuple | list):  # TensorFlow takes no variables in shards as results.
            result = type(result)(map(operand, result)) if type(result) in (tuple, list) else result
        return whole_tensors(operand(result))

    return returning_whole


def whole_tensors(nested: Any) -> Any:
    """Returns nested values with every `SplitTensor` as one tensor."""
    if isinstance(nested, SplitTensor):
        return nested.whole()
    is_nested = isinstance(nested, list | tuple | dict)
    if not is_nested or not any(isinstance(leaf, SplitTensor) for leaf in tf.nest.flatten(nested)):
        return nested
    return tf.nest.map_structure(lambda leaf: leaf.whole() if isinstance(leaf, SplitTensor) else leaf, nested)
