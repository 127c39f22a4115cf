"""Warns of a variable that holds examples, as a queue or a memory bank: the mean of what the groups have is none of these."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.function_arguments import key_of
from tfdist.strategies.keras_hooks.replicas.same_rows import depends_on_batch
from tfdist.strategies.keras_hooks.replicas.warned import warn_once
from tfdist.strategies.private_api import outermost_graph

_MOVES = (
    *("Identity", "StopGradient", "PreventGradient", "CheckNumerics", "EnsureShape", "Snapshot", "Cast", "Reshape", "Squeeze"),
    *("ExpandDims", "ConcatV2", "Slice", "StridedSlice", "Pad", "PadV2", "Roll", "Transpose", "ReverseV2", "GatherV2"),
    *("GatherNd", "TensorScatterUpdate", "SelectV2", "Pack", "Unpack", "Split", "SplitV"),
)
"""Operations whose result has values of their operands, which may be at other places."""


def warn_of_mixed(variable: Any, value: Any) -> None:
    """Warns, once, if a step assigns a variable values that it had, beside others that come from the batch.

    Args:
        variable: the `LocalVariable`.
        value: what the function that is traced assigns.
    """
    if not _is_mixed(variable):
        return
    value = tf.convert_to_tensor(value)
    if depends_on_batch(value) and _has_values_of(value, {key_of(read) for read in _reads_of(variable)}):
        _warn(variable)


def warn_of_mixed_parts(variable: Any, values: Iterable[Any]) -> None:
    """Warns, once, if a step assigns a part of a variable what it computes from the batch.

    Args:
        variable: the `LocalVariable`.
        values: the arguments of the assignment.
    """
    if _is_mixed(variable) and any(map(depends_on_batch, tf.nest.flatten(list(values), expand_composites=True))):
        _warn(variable)


def is_of_step(variable: Any) -> bool:
    """Returns whether a step assigns a variable by itself, not by an optimizer, and several groups make steps."""
    replica = replica_context.current()
    is_of_step = replica is not None and not replica.reduced and replica.recorded is None
    return is_of_step and len(variable.tfdist_strategy.worker_groups) > 1


def _is_mixed(variable: Any) -> bool:
    """Returns whether groups take the mean of what a step assigns."""
    return variable.dtype.is_floating and is_of_step(variable)


def _reads_of(variable: Any) -> list[Any]:
    """Returns what the function that is traced has read of a variable."""
    graphs, function = [tf.compat.v1.get_default_graph()], outermost_graph()
    while graphs[-1] is not function:
        graphs.append(graphs[-1].outer_graph)
    handle, reads = variable.handle, []
    for graph in reversed(graphs):
        if handle.graph is not graph:
            handle = next((inner for outer, inner in graph.captures if outer is handle), handle)
        reads += [each.outputs[0] for each in handle.consumers() if each.type == "ReadVariableOp"]
    return reads


def _has_values_of(tensor: Any, sources: set[tuple[int, str]]) -> bool:
    """Returns whether a tensor has values of `sources`, which are given by their keys, and not only what they make."""
    waiting, seen = [tensor], set()
    while waiting:
        tensor = waiting.pop()
        if key_of(tensor) in sources:
            return True
        if key_of(tensor) in seen:
            continue
        seen.add(key_of(tensor))
        if tensor.op.type == "Placeholder":
            waiting += [outside for outside, inside in getattr(tensor.graph, "captures", ()) if inside is tensor]
        elif tensor.op.type in _MOVES and not _chooses(tensor.op):
            waiting += [each for each in tensor.op.inputs if tf.is_symbolic_tensor(each)]
    return False


def _chooses(operation: Any) -> bool:
    """Returns whether an operation takes all values of one operand or all of another."""
    return bool(operation.type == "SelectV2" and operation.inputs[0].shape.rank == 0)


def _warn(variable: Any) -> None:
    warn_once(
        "a step puts what it computes from its batch into a part of %s, as into a queue of examples. Each worker group of "
        "hogwild has its own, and all go on with the mean of these, in which different examples mix. Use one worker group",
        variable.path,
    )
