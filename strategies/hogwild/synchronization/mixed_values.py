"""Warns of a variable that holds examples, as a queue or a memory bank: the mean of what the groups have is none of these."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.affine import Affine
from tfdist.strategies.keras_hooks.replicas.same_rows import depends_on_batch
from tfdist.strategies.keras_hooks.replicas.warned import warn_once
from tfdist.strategies.private_api import outermost_graph


def warn_of_mixed(variable: Any, value: Any) -> None:
    """Warns, once, if a step assigns a variable what it computes from the batch and the old value, and no moving average.

    Args:
        variable: the `LocalVariable`.
        value: what the function that is traced assigns.
    """
    if not _is_mixed(variable):
        return
    value = tf.convert_to_tensor(value)
    graphs, reads = _reads_of(variable)
    old = Affine(reads, graphs, variable.shape)
    if old.depends(value) and old.of(value) is None and depends_on_batch(value):
        _warn(variable)


def warn_of_mixed_parts(variable: Any, values: Iterable[Any]) -> None:
    """Warns, once, if a step assigns a part of a variable what it computes from the batch.

    Args:
        variable: the `LocalVariable`.
        values: the arguments of the assignment.
    """
    if _is_mixed(variable) and any(map(depends_on_batch, tf.nest.flatten(list(values), expand_composites=True))):
        _warn(variable)


def _is_mixed(variable: Any) -> bool:
    """Returns whether groups take the mean of what a step assigns by itself, and it is a step, not an optimizer."""
    replica = replica_context.current()
    is_of_step = replica is not None and not replica.reduced and replica.recorded is None
    return is_of_step and variable.dtype.is_floating and len(variable.tfdist_strategy.worker_groups) > 1


def _reads_of(variable: Any) -> tuple[list[Any], list[Any]]:
    """Returns the graph that is traced, those around it, and finally that of the function; and what they read of a variable."""
    graphs, function = [tf.compat.v1.get_default_graph()], outermost_graph()
    while graphs[-1] is not function:
        graphs.append(graphs[-1].outer_graph)
    handle, reads = variable.handle, []
    for graph in reversed(graphs):
        if handle.graph is not graph:
            handle = next((inner for outer, inner in graph.captures if outer is handle), handle)
        reads += [each.outputs[0] for each in handle.consumers() if each.type == "ReadVariableOp"]
    return graphs, reads


def _warn(variable: Any) -> None:
    warn_once(
        "a step assigns %s what it computes from its batch and the old value, as a queue of examples. Each worker group of "
        "hogwild has its own, and all go on with the mean of these, in which different examples mix. Use one worker group",
        variable.path,
    )
