"""Operations with gradients of their own, which leave nothing behind.

`tf.custom_gradient` in a function registers its gradient in a table from which nothing is ever removed: the function, its graph
and the variables of the model would exist until the process ends. Here the gradients are registered once, by name.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api.checks import need, need_function

_record: Any = need("tensorflow.python.eager.record")
need_function(_record, "stop_recording", "", "calls")
need_function(
    _record, "record_operation", "op_type, output_tensors, input_tensors, backward_function, forward_function", "calls"
)

_gradients_util: Any = need("tensorflow.python.ops.gradients_util")
need_function(_gradients_util, "PossibleTapeGradientTypes", "tensors", "calls")

Function = Callable[[Any], Any]


def register(name: str, gradient: Function) -> None:
    """Names a gradient, once: for `tf.while_loop` and `tf.cond`, which do not ask a `GradientTape`.

    Args:
        name: its name, which no other gradient has.
        gradient: returns the gradient of the input, given that of the result.
    """

    @tf.RegisterGradient(name)  # type: ignore[untyped-decorator]
    def _(operation: Any, of_result: Any, of_input: Any) -> list[Any]:
        return [None, gradient(of_result)]


def with_gradient(name: str, function: Function, gradient: Function, value: tf.Tensor) -> tf.Tensor:
    """Returns what a function of one tensor returns, another tensor; tapes compute its gradient with `gradient`.

    Args:
        name: the name with which `gradient` is registered.
        function: the function, with any operations.
        gradient: returns the gradient of the input, given that of the result.
        value: the tensor.
    """
    with _record.stop_recording():
        result = function(value)
        if not tf.executing_eagerly():
            with tf.compat.v1.get_default_graph().gradient_override_map({"IdentityN": name}):
                result, _ = tf.identity_n([result, value])
    _record.record_operation(name, [result], [value], lambda of_result: [gradient(of_result)])
    return result


def with_refused_gradient(message: str, value: tf.Tensor) -> tf.Tensor:
    """Returns the value of a tensor, whose gradient raises ValueError with this message."""
    return with_gradient(*_refusal(message), value)


@functools.cache  # What is registered stays: once for each message, and not for each tensor.
def _refusal(message: str) -> tuple[str, Function, Function]:
    def refuse(of_result: Any) -> Any:
        raise ValueError(message)

    name = f"TfdistRefused{next(_numbers)}"
    register(name, refuse)
    return name, tf.identity, refuse


_numbers = itertools.count()


def have_the_same_tape(value: tf.Tensor, computed: tf.Tensor) -> bool:
    """Returns whether the same tapes record what is computed from two tensors: none, or one that is not persistent.

    Args:
        value: a tensor.
        computed: a tensor that has been computed from it. Tapes that have begun later do not know where it comes from.
    """
    several = _gradients_util.POSSIBLE_GRADIENT_TYPES_HIGHER_ORDER
    kind = _gradients_util.PossibleTapeGradientTypes([value])
    return bool(kind != several and kind == _gradients_util.PossibleTapeGradientTypes([computed]))
