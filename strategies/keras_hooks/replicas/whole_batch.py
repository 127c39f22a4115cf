"""Tensors of the whole batch on every replica, for losses and metrics that are one number of a batch, or one for each class.

The rows of the replicas' tensors follow one another. If a tensor has as many rows as there are examples, that is the order of
one process. If it has more, the order cannot be known. Of two views of each example, one below the other, one process has all
first views before the second ones; of words, those of an example follow one another. So the number is computed in both orders,
and if it depends on the order, the step fails.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.batch_sums import REDUCTIONS, removes_first
from tfdist.strategies.keras_hooks.replicas.function_arguments import operations_behind, outermost
from tfdist.strategies.keras_hooks.replicas.held_updates import HeldUpdates
from tfdist.strategies.keras_hooks.replicas.reduction import all_reduce_sum, of_each_replica, sent_as
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica
from tfdist.strategies.private_api import keras_loss_module
from tfdist.strategies.private_api.own_gradients import register, with_gradient

_TOLERANCE, _HALF_TOLERANCE = 1e-3, 0.05
"""Relative differences that are rounding."""

_ACTIVATIONS = {"Softmax": tf.nn.softmax, "Sigmoid": tf.sigmoid}
"""Types of operations whose operands, the logits, Keras' cross-entropies take in place of the results."""

_SIZES = ("Shape", "ShapeN", "Size", "Rank")
"""Types of operations whose results do not depend on the numbers in their operands."""


def can_be_gathered(*nested: Any) -> bool:
    """Returns whether nested values are dense tensors of numbers with a first dimension."""
    return all(isinstance(t, tf.Tensor) and t.shape.rank and t.dtype != tf.string for t in tf.nest.flatten(nested))


def first_dimensions(*nested: Any) -> set[int | None]:
    """Returns the first dimensions of nested tensors, None for one that is not known while a function is traced."""
    shapes = [tf.TensorShape(getattr(value, "shape", ())) for value in tf.nest.flatten(nested)]
    return {shape[0] for shape in shapes if shape.rank}


def is_of_batch(values: Any, rows: set[int | None]) -> bool:
    """Returns whether what a loss or metric function returns surely has not a row for each row of its arguments.

    That is one number, or one for each class, as a Dice coefficient by class.

    Args:
        values: what it returns.
        rows: the first dimensions of its arguments; none if they are not known.
    """
    shape = tf.convert_to_tensor(values).shape
    return shape.rank == 0 or bool(shape.rank and rows and shape[0] is not None and shape[0] not in rows)


def compares_examples(values: Any, arguments: Any) -> bool:
    """Returns whether a row of what a loss or metric function returns surely depends on the rows of other examples.

    That is so if it is computed from floats that were reduced over the examples, as where the Dice loss of a batch is added to
    cross-entropies, or from the transpose of a matrix of examples, as of their similarities.
    """
    tensors = [tensor for tensor in tf.nest.flatten(arguments) if tf.is_symbolic_tensor(tensor)]
    given = {tensor.op for tensor in tensors}
    ends = given | {tensor.op.inputs[0].op for tensor in tensors if tensor.op.type in _ACTIVATIONS}

    def enters(operation: Any) -> bool:
        return operation not in ends and operation.type not in _SIZES

    def depends(tensor: Any) -> bool:
        return any(operation in given for operation in operations_behind([tensor], enters))

    behind = [each for each in operations_behind([values], enters) if enters(each)]
    return any(depends(tensor) for operation in behind for tensor in _of_other_rows(operation))


def _of_other_rows(operation: Any) -> list[Any]:
    """Returns the operands of an operation whose first dimension its result has no more, or in another place."""
    operands = list(operation.inputs)
    if operation.type in REDUCTIONS:
        is_float = operands[0].dtype.is_floating
        return operands[:1] if is_float and (not operation.outputs[0].shape.rank or removes_first(operation)) else []
    if operation.type == "Transpose":
        return operands[:1] if operands[0].shape.rank == 2 and operands[0].dtype.is_floating else []
    return operands[1:] if operation.type == "MatMul" and operation.get_attr("transpose_b") else []


def reads_others(values: Any, arguments: Any, replica: Replica) -> bool:
    """Returns whether what a loss or metric function returned is also computed from other tensors of the batch.

    This is the case if the function reads what the model has kept in its `call`: the loss of a VAE reads means and variances. A
    replica has only those of its own examples, and nobody knows how to gather the others, so the number is not that of the
    whole batch.

    Args:
        values: what the function returned.
        arguments: its arguments, nested tensors.
        replica: the current replica.
    """
    given = [tensor for tensor in tf.nest.flatten(arguments) if tf.is_symbolic_tensor(tensor)]
    masks = [keras_loss_module.backend.get_keras_mask(tensor) for tensor in given]
    logits = [tensor.op.inputs[0] for tensor in given if tensor.op.type in _ACTIVATIONS]
    logits += [getattr(tensor, "_keras_logits", None) for tensor in given]
    ends = {tensor.ref() for tensor in (*given, *masks, *logits) if tf.is_symbolic_tensor(tensor)}
    batch = tf.nest.flatten(replica.batch, expand_composites=True)
    others = {tensor.ref() for tensor in batch if tf.is_symbolic_tensor(tensor)} - ends
    waiting = [values]
    while waiting and others:
        tensor = outermost(waiting.pop())
        if not tf.is_symbolic_tensor(tensor) or tensor.ref() in ends:
            continue
        ends.add(tensor.ref())
        if tensor.ref() in others:
            return True
        if tensor.op.type not in _SIZES:
            waiting += tensor.op.inputs
    return False


def has_number_for_each_class(function: Callable[..., Any], y_true: Any, y_pred: Any) -> bool:
    """Returns whether a function of the user's returns numbers for classes, of which there are as many as rows.

    Where a traced function knows the number of rows, it does not tell the two apart. So the function is traced again without.
    """
    if tf.executing_eagerly() or None in first_dimensions(y_true, y_pred) or not can_be_gathered(y_true, y_pred):
        return False
    try:
        with HeldUpdates():
            values = function(*tf.nest.map_structure(_with_unknown_rows, (y_true, y_pred)))
    except Exception:  # It may need the number of rows.
        return False
    return is_of_batch(values, {None})


def _with_unknown_rows(tensor: Any) -> tf.Tensor:
    return tf.compat.v1.placeholder_with_default(tensor, [None, *tensor.shape[1:]])


def is_over_batch(function: Any, y_pred: Any) -> bool:
    """Returns whether a loss or metric of Keras has an `axis` that is that of the examples, as `CosineSimilarity(axis=0)`."""
    axis = getattr(function, "_fn_kwargs", {}).get("axis", getattr(function, "axis", None))
    if axis is None:
        return False
    rank = tf.nest.flatten(y_pred)[0].shape.rank
    return any(each in (0, -rank) for each in tf.nest.flatten(axis))


def gathered(nested: Any, replica: Replica, dtype: Any = None) -> Any:
    """Returns the tensors of all replicas with their masks, concatenated; gradients flow to this replica's examples only.

    These gradients are divided by the replica's share, with which the optimizer weights them: they count in full. Every replica
    computes the whole loss, so what flows to variables that a loss function reads itself must not be divided.

    Args:
        nested: nested tensors, of each of which the replicas have different numbers of rows.
        replica: the current replica.
        dtype: of what is returned; that of each tensor by default.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return nested
    number = context.replica_id_in_sync_group

    def gather(value: Any, dtype: Any) -> Any:
        rows = tf.where(replica.share > 0, tf.shape(value)[0], 0)  # A replica without examples repeats one.
        value = tf.cast(value[:rows], sent_as(value.dtype) if dtype is None else dtype)
        counts = _of_each(rows)
        before, after = tf.reduce_sum(counts[:number]), tf.reduce_sum(counts[number + 1 :])
        rest = [[0, 0]] * (value.shape.rank - 1)
        whole = tf.stop_gradient(all_reduce_sum([tf.pad(value, [[before, after], *rest])])[0])
        value = with_gradient(_NAME, tf.identity, _gradient, value) if value.dtype.is_floating else value
        return tf.concat([whole[:before], value, whole[before + rows :]], axis=0)

    def gather_with_logits(value: Any) -> Any:
        if dtype not in (None, value.dtype):
            return tf.cast(gather(value, dtype), dtype)
        return _with_logits(value, lambda tensor: tf.cast(gather(tensor, dtype), tensor.dtype))

    def with_mask(value: Any) -> Any:
        key = (id(value), dtype, id(tf.compat.v1.get_default_graph()))
        if key not in replica.gathered:
            whole, mask = gather_with_logits(value), keras_loss_module.backend.get_keras_mask(value)
            if mask is not None:
                keras_loss_module.backend.set_keras_mask(whole, tf.cast(gather(mask, tf.float32), tf.bool))
            replica.gathered[key] = value, whole  # The tensor stays, and its id is that of no other.
        return replica.gathered[key][1]

    return tf.nest.map_structure(with_mask, nested)


def _gradient(of_value: tf.Tensor) -> tf.Tensor:
    """Returns the gradient of a replica's rows of a gathered tensor, given that of these rows, so that it counts in full."""
    replica = replica_context.with_share()
    return of_value if replica is None else tf.math.divide_no_nan(of_value, tf.cast(replica.share, of_value.dtype))


_NAME = "TfdistGatheredRows"
register(_NAME, _gradient)


def _with_logits(tensor: Any, change: Callable[[Any], Any]) -> Any:
    """Returns `change(tensor)`, of which Keras' losses find the logits as they find those of `tensor`.

    They compute the cross-entropy of what a softmax or sigmoid returned from its operand, whatever `from_logits` is.
    """
    logits = getattr(tensor, "_keras_logits", None)
    operation = None if tf.executing_eagerly() else tensor.op
    if operation is None or operation.type not in _ACTIVATIONS:
        changed = change(tensor)
        if logits is not None:
            changed._keras_logits = change(logits)
        return changed
    operand = change(operation.inputs[0])
    changed = _ACTIVATIONS[operation.type](operand)
    if logits is not None:
        changed._keras_logits = operand
    return changed


def check_order(result: Any, compute: Callable[..., Any], local: Any, whole: Any, replica: Replica, name: str) -> None:
    """Makes the step fail if what is computed depends on an order of rows that is not known.

    Args:
        result: what `compute` returned for `whole`.
        compute: a function of nested tensors of the whole batch.
        local: a tuple of nested tensors of this replica, the arguments of `compute`.
        whole: the same of the whole batch.
        replica: the current replica.
        name: of what is computed, such as "the loss nt_xent".
    """
    tensors = tf.nest.flatten(local)
    if tf.distribute.get_replica_context().num_replicas_in_sync == 1:
        return
    if replica.rows and all(tensor.shape[0] == replica.rows for tensor in tensors):
        return
    own = tf.shape(tensors[0])[0] if replica.examples is None else replica.examples
    counts = _of_each(tf.where(replica.share > 0, own, 0))

    def in_blocks(tensor: Any, whole: Any) -> Any:
        """Returns the rows as one process has them if each replica's are blocks of a row for each example."""
        ends = tf.cumsum(counts * tf.maximum(tf.shape(tensor)[0] // own, 1))
        rows = tf.range(tf.shape(whole)[0])
        owner = tf.minimum(tf.searchsorted(ends, rows, side="right"), tf.size(counts) - 1)
        place = rows - tf.gather(tf.concat([[0], ends], axis=0), owner)
        block = place // tf.maximum(tf.gather(counts, owner), 1)
        ordered = _with_logits(whole, lambda t: tf.gather(tf.stop_gradient(t), tf.argsort(block, stable=True)))
        if (mask := keras_loss_module.backend.get_keras_mask(whole)) is not None:
            keras_loss_module.backend.set_keras_mask(ordered, tf.gather(mask, tf.argsort(block, stable=True)))
        return ordered

    def differs() -> tf.Tensor:
        with HeldUpdates():
            one, other = tf.stop_gradient(result), compute(*tf.nest.map_structure(in_blocks, local, whole))
        tolerance = _HALF_TOLERANCE if one.dtype.size < 4 else _TOLERANCE
        one, other = (tf.reduce_mean(tf.cast(each, tf.float32)) for each in (one, other))  # Rows of results are ordered, too.
        return tf.abs(one - other) > tolerance * tf.maximum(tf.abs(one), 1e-3)  # False for NaN.

    has_other_rows = tf.reduce_any([tf.shape(tensor)[0] != own for tensor in tensors])
    tf.debugging.Assert(
        tf.logical_not(tf.cond(has_other_rows, differs, lambda: tf.constant(False))),
        [
            f"{name} depends on the order of its rows, and that of the whole batch is not known: an output has other rows than "
            "there are examples, as after concatenate([z1, z2], axis=0), and every replica has a part of the batch. Return one "
            "row for each example, such as stack([z1, z2], axis=1), and take it apart in the function"
        ],
    )


def _of_each(count: Any) -> Any:
    """Returns the number that each replica of the cluster has, int32."""
    return tf.cast(of_each_replica([tf.cast(count, tf.float32)])[0], tf.int32)
