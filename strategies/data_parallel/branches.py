"""Updates in a branch, or a loop, that not every task takes: the tasks that take it would wait for the others for ever.

Replicas add up their gradients before an update. In a `tf.cond`, each task adds up if its own predicate says so, in a
`tf.while_loop` as often as its own condition says. A predicate that is made of variables only, such as a number of steps, is
the same everywhere. One that depends on the batch is that of a shard.
"""

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.checks.function_arguments import deciding_variables, functions_of
from tfdist.strategies.keras_hooks.replicas.own_values import outermost

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
            for operation in graph.get_operations():
                deciding = _deciding(operation, inner)
                if deciding is None or not all(
                    _is_same_everywhere(each, base, {id(handle) for handle in of_replica}) for each in deciding
                ):
                    raise ValueError(
                        "the step applies gradients in a tf.cond, an `if` on a tensor, or a loop of TensorFlow, whose "
                        "condition depends on the batch. Every task computes it of its own part of the batch, and tasks that "
                        "update would wait for those that do not. Decide by variables, such as the number of steps, or update "
                        "in every step"
                    )


def _deciding(operation: Any, inner: Any) -> list[Any] | None:
    """Returns the inputs of an operation that decide whether, or how often, it runs the graph `inner`.

    Returns:
        An empty list if it never does; None if random numbers decide.
    """
    if operation.type in ("If", "StatelessIf"):
        branches = [operation.get_attr(name).name for name in ("then_branch", "else_branch")]
    elif operation.type in ("Case", "StatelessCase"):
        branches = [each.name for each in operation.get_attr("branches")]
    elif operation.type in ("While", "StatelessWhile") and operation.get_attr("body").name == inner.name:
        return _deciding_of_loop(operation)
    else:
        branches = []
    return [operation.inputs[0]] if inner.name in branches else []


def _deciding_of_loop(operation: Any) -> list[Any] | None:
    """Returns the inputs of a loop that decide how often it runs."""
    functions = functions_of(operation.graph)
    seen: list[str] = []
    condition, body = (functions[operation.get_attr(name).name] for name in ("cond", "body"))
    numbers = deciding_variables(condition, body, see=seen.append)
    if len(seen) > _MOST_OPERATIONS or any("Random" in each for each in seen):
        return None
    return [operation.inputs[number] for number in sorted(numbers)]


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
        if operation.type == "Placeholder" or "Random" in operation.type or len(seen) > _MOST_OPERATIONS:
            return False
        waiting += operation.inputs
    return True
