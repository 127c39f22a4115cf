"""How a number that a step computes grows with the number of examples, as far as its operations tell.

A trial (shard_check.py) computes a step with each example twice. That tells nothing of a number that is 0 for these examples,
as the hits of a model that knows nothing yet. Then the last operations tell: what a `Mean` over the examples returns does not
grow, what a `Sum` over them returns is twice as large.
"""

from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas.batch_sums import is_fixed, removes_first

_KEEPS = ("Identity", "Cast", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "Neg")
_ADDS = ("AddV2", "AddN", "Sub")
_QUOTIENTS = ("RealDiv", "DivNoNan")

_MOST_OPERATIONS = 50
"""Operations to look at, one after the other."""

SUM_TOLERANCE = 0.01
"""Of the growth of a sum. Only sums that do not depend on random numbers grow so exactly."""


def is_of_sum(growth: float | None) -> bool:
    """Returns whether what grows so with each example twice is a sum over the examples; None stands for what is not known."""
    return growth is not None and abs(growth - 2.0) < SUM_TOLERANCE


def growth_of(value: Any) -> float | None:
    """Returns how many times as large a number is with each example twice: 1, 2 or 4; None if the operations do not tell.

    Args:
        value: a tensor of a function of a batch, whose number of examples is not known while it is traced.
    """
    power = None if is_fixed(value) else _power(value, _MOST_OPERATIONS)
    return 2.0**power if power in (0, 1, 2) else None


def _power(value: Any, left: int) -> int | None:
    """Returns with which power of the number of examples a tensor grows that has no row for each example; else None."""
    if is_fixed(value):
        return 0
    operation = value.op
    if not left or _has_rows(value):
        return None
    operands = list(operation.inputs)
    if operation.type in ("Mean", "Sum", "Prod", "Max"):
        values = operands[0]
        if _has_rows(values):
            return {"Mean": 0, "Sum": 1}.get(operation.type) if removes_first(operation) else None
        return _power(values, left - 1)
    if operation.type in ("Size", "Shape"):
        return int(_has_rows(operands[0]))
    if operation.type == "StridedSlice" and operands[0].op.type == "Shape":
        return _power_of_size(operands[0].op.inputs[0], tf.get_static_value(operands[1]))
    if operation.type in _KEEPS:
        return _power(operands[0], left - 1)
    if operation.type in _ADDS:
        powers = {_power(each, left - 1) for each in operands if not _is_read(each)}
        return powers.pop() if len(powers) == 1 else None
    if operation.type == "Mul" or operation.type in _QUOTIENTS:
        if any(tf.get_static_value(each) == 0 for each in operands if not each.shape.rank):
            return None  # As a loss that is one number for a batch: in a trial it is 0, and counts rightly.
        one, other = (_power(each, left - 1) for each in operands)
        if one is None or other is None:
            return None
        return one + other if operation.type == "Mul" else one - other
    return None


def _has_rows(value: Any) -> bool:
    return bool(value.shape.rank) and value.shape[0] is None


def _power_of_size(values: Any, begin: Any) -> int | None:
    """Returns the power of one dimension of a tensor, given the operand of the slice that takes it from the shape."""
    if begin is None or begin.size != 1 or not values.shape.rank:
        return None
    return int(_has_rows(values) and int(begin[0]) in (0, -values.shape.rank))


def _is_read(value: Any) -> bool:
    """Returns whether a tensor is the value of a variable, to which something is added."""
    while value.op.type in ("Identity", "Cast"):
        value = value.op.inputs[0]
    return bool(value.op.type == "ReadVariableOp")
