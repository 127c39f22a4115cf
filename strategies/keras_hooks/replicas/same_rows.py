"""Rows of a table that a step looks up whatever its batch is, as those of the positions in a sequence.

In one process such a row has one gradient, the sum over the examples. Keras' optimizers square the gradients of a row one by
one, so those of the replicas have to be added up before. A row that examples look up themselves has as many gradients there as
here. A step may look up both in one table: the gradient of the table then has parts of both kinds.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas.function_arguments import operations_behind
from tfdist.strategies.private_api import KerasVariable, branches_of, is_stateful_operation
from tfdist.strategies.private_api.ring_sums import OF_REPLICA

_MOST_OPERATIONS = 1000
"""Operations to look at. Rows that are computed in more of them count as those of a batch."""

_SIZES = ("Shape", "ShapeN", "Size")
_READS = ("ReadVariableOp", "VarHandleOp")
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
_MAY_READ = (*_READS, *_BRANCHES)
_RANDOM = ("Random", "Multinomial", "TruncatedNormal", "StatelessShuffle")
"""Parts of the types of operations that draw random numbers."""

_KEYS = ("StatelessRandomGetKeyCounter", "StatelessRandomGetAlg")
"""Operations that only prepare a draw. The second has no operands."""

_KEEP_ORDER = ("Reshape", "Identity", "Cast")
"""Operations whose first input has the same elements, in the same order."""

OF_EXAMPLES, SAME, DISTINCT = "rows of examples", "the same rows on all replicas", "each row once"

Pieces = list[tuple[Any, str]]
"""A gradient in pieces: each a tensor, IndexedSlices or None, and which rows it has.

In one process those of which a replica has each once (DISTINCT) come once for the whole batch: a lookup of sparse tensors adds
up the gradients of a row before.
"""


# A function of the user's may be converted with all that it calls.
@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def pieces_of(gradient: Any, table: Any) -> Pieces:
    """Takes a gradient apart into rows that are surely the same on all replicas, and in the same order, and others.

    Nothing is known of a step that runs eagerly.

    Args:
        gradient: a tensor, IndexedSlices or None, of the step that is traced.
        table: its variable.
    """
    if not isinstance(gradient, tf.IndexedSlices) or tf.executing_eagerly() or not tf.is_symbolic_tensor(gradient.indices):
        return [(gradient, OF_EXAMPLES)]
    parts = _parts(gradient.indices)
    are_same = [not depends_on_batch(part) for part in parts]
    are_distinct = [_has_each_of_batch_once(part) for part in parts]
    if not any(are_same + are_distinct):
        return [(gradient, OF_EXAMPLES)]
    pieces, others = [], []
    for part, slices, is_same, is_distinct in zip(parts, _divided(gradient, parts), are_same, are_distinct, strict=True):
        same = _of_known_shape(slices, part, table) if is_same else None
        if same is not None:
            pieces.append((same, SAME))
        elif is_distinct:
            pieces.append((slices, DISTINCT))
        else:
            others.append(slices)
    return [*pieces, (joined(others), OF_EXAMPLES)] if others else pieces


def each_once(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Returns slices in which each row comes once, with the sum of its values."""
    rows, numbers = tf.unique(slices.indices)
    return tf.IndexedSlices(tf.math.unsorted_segment_sum(slices.values, numbers, tf.size(rows)), rows, slices.dense_shape)


def joined(pieces: Sequence[Any]) -> Any:
    """Returns the gradient that has these pieces."""
    if len(pieces) == 1:
        return pieces[0]
    values, indices = (tf.concat(each, axis=0) for each in zip(*((p.values, p.indices) for p in pieces), strict=True))
    return tf.IndexedSlices(values, indices, pieces[0].dense_shape)


def with_values(slices: tf.IndexedSlices, values: Any) -> tf.IndexedSlices:
    """Returns slices of the same rows with other values."""
    return tf.IndexedSlices(values, slices.indices, slices.dense_shape)


def _parts(rows: Any) -> list[Any]:
    """Returns the tensors whose elements, one tensor after the other, are the rows that a step looks up."""
    if not tf.is_symbolic_tensor(rows):
        return [rows]
    operation = rows.op
    if operation.type in _KEEP_ORDER:
        parts = _parts(operation.inputs[0])
    elif operation.type == "SelectV2" and _counts_from_end(operation):
        parts = _parts(operation.inputs[2])
    elif operation.type == "ConcatV2" and tf.get_static_value(operation.inputs[-1]) in (0, -(rows.shape.rank or 0)):
        return [part for each in list(operation.inputs)[:-1] for part in _parts(each)]
    else:
        return [rows]
    return parts if len(parts) > 1 else [rows]


def _counts_from_end(select: Any) -> bool:
    """Returns whether an operation replaces negative numbers of rows by those counted from the end, as `keras.ops.take`."""
    is_below, above, rows = (tensor.op for tensor in select.inputs)
    if is_below.type != "Less" or above.type != "AddV2":
        return False
    return is_below.inputs[0].op is rows and above.inputs[0].op is rows and not depends_on_batch(above.inputs[1])


def _divided(gradient: tf.IndexedSlices, parts: Sequence[Any]) -> list[tf.IndexedSlices]:
    """Returns the slices whose rows these tensors have."""
    if len(parts) == 1:
        return [gradient]
    sizes = [part.shape.num_elements() for part in parts]
    runs = [tf.size(part) if size is None else size for part, size in zip(parts, sizes, strict=True)]
    divided = []
    for size, values, indices in zip(sizes, tf.split(gradient.values, runs), tf.split(gradient.indices, runs), strict=True):
        values = tf.ensure_shape(values, [size, *gradient.values.shape[1:]])
        divided.append(tf.IndexedSlices(values, indices, gradient.dense_shape))
    return divided


def _of_known_shape(slices: tf.IndexedSlices, rows: Any, table: Any) -> tf.IndexedSlices | None:
    """Returns slices of a shape that is known, as a sum over the replicas needs it; None if that is not possible.

    As many positions as a sequence has are written into all rows of the table, which has each of them once.
    """
    if slices.values.shape.is_fully_defined():
        return slices
    shape = getattr(table, "shape", [None])
    if not _has_each_once(rows) or shape[0] is None or not slices.values.shape[1:].is_fully_defined():
        return None
    size = tf.constant([shape[0], *slices.values.shape[1:]], slices.indices.dtype)
    values = tf.scatter_nd(slices.indices[:, None], slices.values, size)
    values.set_shape([shape[0], *slices.values.shape[1:]])
    return tf.IndexedSlices(values, tf.range(shape[0], dtype=slices.indices.dtype), slices.dense_shape)


def are_positions(rows: Any) -> bool:
    """Returns whether a tensor surely has the same rows whatever the batch is, and none of them twice."""
    return tf.is_symbolic_tensor(rows) and not depends_on_batch(rows) and _has_each_once(rows)


def _has_each_once(rows: Any) -> bool:
    """Returns whether no row surely comes twice in a tensor that does not depend on the batch."""
    if _is_from(rows, "Range"):
        return True
    constant = tf.get_static_value(_source(rows))
    return constant is not None and len(np.unique(constant)) == constant.size


def _has_each_of_batch_once(rows: Any) -> bool:
    """Returns whether a tensor surely has each row once, and those that a batch looks up."""
    operation = rows.op
    if operation.type == "CollectiveReduceV2" and OF_REPLICA in operation.name:
        # The tasks of a replica have put the rows of their parts of the table together (`TaskSpan.concatenate`).
        padded = operation.inputs[0].op
        return padded.type == "Pad" and all(_is_from(part, "Unique") for part in _parts(padded.inputs[0]))
    return _is_from(rows, "Unique")


def _is_from(rows: Any, kind: str) -> bool:
    """Returns whether a tensor has rows of the first output of an operation of this type, in their order."""
    source = _source(rows)
    return bool(source.op.type == kind and source.value_index == 0)


def _source(rows: Any) -> Any:
    """Returns the tensor that has the rows of a lookup: all those of `rows`, or also those of other parts of the table.

    Of a table in parts (`variable_base.rows_by_part`) each part looks up its own rows, by their numbers in the part.
    """
    while True:
        operation = rows.op
        is_moved = operation.type in ("AddV2", "Sub") and operation.inputs[1].shape.rank == 0
        is_of_part = operation.type == "GatherV2" and _is_from(operation.inputs[1], "Where")
        if operation.type in _KEEP_ORDER or is_moved or is_of_part:
            rows = operation.inputs[0]
        elif operation.type == "SelectV2" and _counts_from_end(operation):
            rows = operation.inputs[2]
        else:
            return rows


def depends_on_batch(value: Any, is_own: Callable[[Any], bool] = lambda handle: False, of_random: bool = True) -> bool:
    """Returns whether a tensor may be computed from the arguments of the step, random numbers or the number of examples.

    Args:
        value: a tensor of the step that is traced.
        is_own: returns whether a handle is that of a variable of which each replica has another value.
        of_random: whether random numbers count, of which each replica draws its own.
    """
    waiting, seen = [value], set()
    while waiting:
        tensor = waiting.pop()
        if not tf.is_symbolic_tensor(tensor) or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        operation = tensor.op
        if operation.type == "Placeholder":
            outer = next((given for given, inner in operation.graph.captures if inner is tensor), None)
            if outer is None:
                return True
            waiting.append(outer)
        elif operation.type in _MAY_READ and any(each.dtype == tf.resource and is_own(each) for each in operation.inputs):
            return True
        elif operation.type in _READS or _is_length(operation):
            continue  # Replicas have the same variables, and sequences of the same length.
        elif draws(operation):
            if of_random:
                return True
            waiting += operation.inputs
        elif operation.type in _SIZES or _may_be_any(operation) or len(seen) > _MOST_OPERATIONS:
            return True
        else:
            waiting += operation.inputs[:1] if operation.type in _KEEP_ORDER else operation.inputs
    return False


def once(outputs: Any, rows: int | None) -> Any:
    """Returns what a replica predicts. What surely does not depend on its batch, such as a table, only the first one predicts.

    Args:
        outputs: nested tensors.
        rows: the number of its examples; None if it is not known while the function is traced.
    """
    number = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)

    def of(value: Any) -> Any:
        value = tf.convert_to_tensor(value) if isinstance(value, tf.Variable | KerasVariable) else value
        has_rows = tf.is_symbolic_tensor(value) and value.shape.rank and value.shape[0] != rows
        return value[:0] if has_rows and not depends_on_batch(value) else value

    return tf.nest.map_structure(of, outputs) if number else outputs


def _may_be_any(operation: Any) -> bool:
    """Returns whether the result of an operation may depend on more than its inputs; a branch may read variables in it."""
    if operation.type not in _BRANCHES:
        return is_stateful_operation(operation.type)
    inner = [each.type for graph in branches_of(operation) for each in graph.get_operations()]
    return any((is_stateful_operation(each) and each not in _READS) or any(part in each for part in _RANDOM) for each in inner)


def draws(operation: Any) -> bool:
    """Returns whether an operation draws random numbers, except for one whose seed is a constant of the program's."""
    if not any(part in operation.type for part in _RANDOM) or operation.type in _KEYS:
        return False
    if not operation.type.startswith("Stateless"):
        return True
    behind = operations_behind(operation.inputs)
    return any(not each.inputs and each.type not in ("Const", *_KEYS[1:]) for each in behind)


def _is_length(operation: Any) -> bool:
    """Returns whether an operation takes the size of a dimension after the first one, which is that of the examples."""
    if operation.type != "StridedSlice" or operation.inputs[0].op.type != "Shape":
        return False
    begin = tf.get_static_value(operation.inputs[1])
    rank = operation.inputs[0].op.inputs[0].shape.rank
    if begin is None or begin.size != 1 or operation.get_attr("shrink_axis_mask") != 1:
        return False
    return int(begin[0]) > 0 or (rank is not None and 0 < rank + int(begin[0]) < rank)
