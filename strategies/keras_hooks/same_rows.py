"""Rows of a table that a step looks up whatever its batch is, as those of the positions in a sequence.

In one process such a row has one gradient, the sum over the examples. Keras' optimizers square the gradients of a row one by
one, so those of the replicas have to be added up before. A row that examples look up themselves has as many gradients there as
here.
"""

from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import is_stateful_operation

_MOST_OPERATIONS = 1000
"""Operations to look at. Rows that are computed in more of them count as those of a batch."""

_SIZES = ("Shape", "ShapeN", "Size")
_READS = ("ReadVariableOp", "VarHandleOp")


# A function of the user's may be converted with all that it calls.
@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def are_same(slices: Any) -> bool:
    """Returns whether a gradient is one of rows that are surely the same on all replicas, and in the same order.

    Args:
        slices: a tensor or IndexedSlices of the step that is traced. Nothing is known of a step that runs eagerly.
    """
    is_known = isinstance(slices, tf.IndexedSlices) and slices.values.shape.is_fully_defined() and not tf.executing_eagerly()
    return is_known and not _depends_on_batch(slices.indices)


def _depends_on_batch(rows: Any) -> bool:
    """Returns whether a tensor may be computed from the arguments of the step, random numbers or the number of examples."""
    found, seen = [rows], set()
    while found:
        tensor = found.pop()
        if not tf.is_symbolic_tensor(tensor) or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        operation = tensor.op
        if operation.type == "Placeholder":
            outer = next((given for given, inner in operation.graph.captures if inner is tensor), None)
            if outer is None:
                return True
            found.append(outer)
        elif operation.type in _READS or _is_length(operation):
            continue  # Replicas have the same variables, and sequences of the same length.
        elif operation.type in _SIZES or is_stateful_operation(operation.type) or len(seen) > _MOST_OPERATIONS:
            return True
        else:
            found += operation.inputs
    return False


def _is_length(operation: Any) -> bool:
    """Returns whether an operation takes the size of a dimension after the first one, which is that of the examples."""
    if operation.type != "StridedSlice" or operation.inputs[0].op.type != "Shape":
        return False
    begin = tf.get_static_value(operation.inputs[1])
    return begin is not None and begin.size == 1 and int(begin[0]) > 0 and operation.get_attr("shrink_axis_mask") == 1
