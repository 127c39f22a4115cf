"""Updates in a branch that not every task takes: the tasks that take it would wait for the others for ever.

Replicas add up their gradients before an update. In a `tf.cond`, each task adds up if its own predicate says so. A predicate
that is made of variables only, such as a number of steps, is the same everywhere. One that depends on the batch is that of a
shard.
"""

from collections.abc import Collection
from typing import Any

import tensorflow as tf

_MOST_OPERATIONS = 5000
"""Operations to look at. A predicate that is made of more may depend on anything."""


def check_updates(graphs: Collection[Any], base: Any, of_replica: Collection[Any]) -> None:
    """Checks that all tasks take the branches in which a step applies gradients.

    Args:
        graphs: the graphs of branches in which the step has applied gradients.
        base: the graph of the step.
        of_replica: handles of variables of which each replica has its own value, such as those of metrics.

    Raises:
        ValueError: if the predicate of such a branch may differ between replicas.
    """
    for graph in graphs:
        while graph is not base and getattr(graph, "outer_graph", None) is not None:
            inner, graph = graph, graph.outer_graph
            predicates = [op.inputs[0] for op in graph.get_operations() if inner.name in _branches(op)]
            if not all(_is_same_everywhere(each, base, {id(handle) for handle in of_replica}) for each in predicates):
                raise ValueError(
                    "the step applies gradients in a tf.cond, or an `if` on a tensor, whose condition depends on the batch. "
                    "Every task computes it of its own part of the batch, and tasks that update would wait for those that do "
                    "not. Decide by variables, such as the number of steps, or update in every step"
                )


def _branches(operation: Any) -> list[str]:
    if operation.type in ("If", "StatelessIf"):
        return [operation.get_attr(name).name for name in ("then_branch", "else_branch")]
    return [each.name for each in operation.get_attr("branches")] if operation.type in ("Case", "StatelessCase") else []


def _is_same_everywhere(tensor: Any, base: Any, of_replica: Collection[int]) -> bool:
    assigned: dict[int, list[Any]] = {}  # What the step itself assigns, by the id of the handle.
    for operation in base.get_operations():
        if operation.type.startswith("Assign") and operation.type.endswith("VariableOp"):
            assigned.setdefault(id(_outermost(operation.inputs[0])), []).append(operation.inputs[1])
    seen: set[int] = set()
    waiting = [tensor]
    while waiting:
        tensor = _outermost(waiting.pop())
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if not tf.is_symbolic_tensor(tensor):  # A variable, or a value from outside of the step.
            if id(tensor) in of_replica:
                return False
            waiting += assigned.get(id(tensor), [])
            continue
        operation = tensor.op
        if operation.type == "Placeholder" or "Random" in operation.type or len(seen) > _MOST_OPERATIONS:
            return False
        waiting += operation.inputs
    return True


def _outermost(tensor: Any) -> Any:
    """Returns the tensor that a function has captured, of the outermost function that has it; other tensors as they are."""
    while tf.is_symbolic_tensor(tensor) and tensor.op.type == "Placeholder":
        captured = {inner.name: outer for outer, inner in getattr(tensor.graph, "captures", ())}
        if tensor.name not in captured:
            break
        tensor = captured[tensor.name]
    return tensor
