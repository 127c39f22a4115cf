"""Updates in a branch, or a loop, that not every task takes: the tasks that take it would wait for the others forever.

Replicas add up their gradients before an update. In a `tf.cond`, each task adds up if its own predicate says so, in a
`tf.while_loop` as often as its own condition says. A predicate that is made of variables only, such as a number of steps, is
the same everywhere. One that depends on the batch is that of a shard.
"""

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas.function_arguments import MOST_OPERATIONS, deciding_inputs, outermost


def check_updates(graphs: Collection[Any], base: Any, of_replica: Collection[Any]) -> None:
    """Checks that all tasks take the branches in which a step applies gradients.

    Args:
        graphs: the graphs of branches in which the step has applied gradients.
        base: the graph of the step.
        of_replica: handles of variables of which each replica has its own value, such as those of metrics.

    Raises:
        ValueError: if the predicate of such a branch may differ between replicas.
    """
    own = {id(handle) for handle in of_replica}
    for graph in graphs:
        deciding = deciding_inputs(graph, base)
        if deciding is None or not all(_is_same_everywhere(each, base, own) for each in deciding):
            raise ValueError(
                "the step applies gradients in a tf.cond, an `if` on a tensor, or a loop of TensorFlow, whose condition "
                "depends on the batch. Every task computes it of its own part of the batch, and tasks that update would wait "
                "for those that do not. Decide by variables, such as the number of steps, or update in every step"
            )


def _is_same_everywhere(tensor: Any, base: Any, of_replica: Collection[int]) -> bool:
    assigned: dict[int, list[Any]] = {}  # What the step itself assigns, by the id of the handle.
    for operation in base.get_operations():
        if operation.type.startswith("Assign") and operation.type.endswith("VariableOp"):
            assigned.setdefault(id(outermost(operation.inputs[0])), []).append(operation.inputs[1])
    seen: set[int] = set()
    waiting = [tensor]
    while waiting:
        tensor = outermost(waiting.pop())
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if not tf.is_symbolic_tensor(tensor):  # A variable, or a value from outside of the step.
            if id(tensor) in of_replica:
                return False
            waiting += assigned.get(id(tensor), [])
            continue
        operation = tensor.op
        if operation.type == "Placeholder" or "Random" in operation.type or len(seen) > MOST_OPERATIONS:
            return False
        waiting += operation.inputs
    return True
