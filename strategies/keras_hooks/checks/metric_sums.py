"""Warns of a metric of the user's whose state is no sum over the examples, such as a maximum.

Every replica has its own state of each metric, and the sum of these states is the metric's result. That is exact for what adds
something for each batch, as all metrics of Keras do. Anything else is wrong without an error: of a maximum the replicas
show the sum of their maxima.
"""

import logging
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.keras_hooks.interface import is_data_parallel
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica
from tfdist.strategies.keras_hooks.replicas.warned import is_first_warning
from tfdist.strategies.keras_hooks.strategy_parts import group_count

_KEEPS = ("Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "TensorScatterAdd")
"""Operations whose result is a sum if their first operand is."""

_ADDS = ("Add", "AddV2", "AddN")

_UNKNOWN = ("If", "Call", "While", "Merge", "Concat", "Pack", "Slice", "Pad", "Transpose", "Gather", "Scatter", "Placeholder")
"""Parts of the types of operations of which nothing is said."""

_log = logging.getLogger("tfdist")
_noted: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def note(variables: Iterable[Any]) -> None:
    """Notes Keras variables of metrics that Keras does not mark as such, and whose changes the replicas add up."""
    _noted.update({id(variable): variable for variable in variables})


def is_counted(variable: Any) -> bool:
    """Returns whether the replicas add up what they add to a Keras variable, because it is a metric's."""
    return variable.synchronization == "on_read" or id(variable) in _noted


def check(replica: Replica, variable: Any, value: Any) -> None:
    """Warns, once for each metric, if what the steps of several replicas assign to its state does not add up to the result.

    Args:
        replica: the current replica.
        variable: the Keras variable.
        value: what is assigned.
    """
    is_alone = replica.share is None and group_count(replica.strategy) < 2
    if is_alone or not is_counted(variable):
        return
    is_added_up = variable.aggregation == "sum" or variable.synchronization != "on_read"
    if not is_added_up and is_data_parallel(replica.strategy) and is_first_warning(variable, "aggregation"):
        _log.warning(
            'the metric variable %s has aggregation="%s": what the replicas count is not added up, so the metric differs from '
            "that in one process. Make the variable without aggregation, and keep sums in it",
            *(variable.path, variable.aggregation),
        )
    if not isinstance(value, tf.Tensor) or tf.executing_eagerly():
        return
    is_sum = adds(value, tf.convert_to_tensor(variable.value).op.inputs[0]) is not False
    if is_sum or not is_first_warning(variable, "assigns no sum"):
        return
    _log.warning(
        "the metric variable %s is assigned something else than itself plus a number: a maximum, a moving average, or the last "
        "value. Every replica keeps its own, and their sum counts, which is wrong. Keep sums (assign_add), or compute this "
        "with predict, or in one process (--tier BASIC)",
        variable.path,
    )


def is_zero(value: Any) -> bool:
    """Returns whether a value is the constant 0, as what `reset_state` assigns: the sums of all replicas begin anew."""
    constant = tf.get_static_value(tf.convert_to_tensor(value))
    return constant is not None and not np.any(constant)


def adds(value: Any, handle: Any) -> bool | None:
    """Returns whether a tensor of a function that is traced is the value of a variable plus something, or 0; None if not known.

    Args:
        value: the tensor.
        handle: the handle of the variable in the function, a tensor.
    """
    operation = value.op
    if is_zero(value):
        return True
    if operation.type == "ReadVariableOp":
        return bool(operation.inputs[0].name == handle.name)
    if operation.type in _KEEPS:
        return adds(operation.inputs[0], handle)
    if operation.type in (*_ADDS, "Sub"):
        operands = operation.inputs[:1] if operation.type == "Sub" else operation.inputs
        results = [adds(operand, handle) for operand in operands]
        return True if True in results else None if None in results else False
    if operation.type in ("Select", "SelectV2"):
        results = [adds(operand, handle) for operand in operation.inputs[1:]]
        return None if None in results else all(results)
    return None if any(part in operation.type for part in _UNKNOWN) else False
