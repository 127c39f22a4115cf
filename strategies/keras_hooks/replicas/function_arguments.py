"""From which of its arguments a TensorFlow function computes a result: what branches and loops depend on.

`tf.cond` and `tf.while_loop` keep their branches, conditions and bodies as functions in the graph. A loop runs as long as its
condition is true. The condition is computed from loop variables, which the body computes from others.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import tensorflow as tf

MOST_OPERATIONS = 5000
"""Operations to look at. A predicate that is made of more may depend on anything."""


def operations_behind(tensors: Iterable[Any], enters: Callable[[Any], bool] = lambda operation: True) -> Iterator[Any]:
    """Yields the operations from which tensors are computed in the graph that has them, each once.

    Args:
        tensors: the tensors. Those without operations, such as numbers, are left out.
        enters: returns whether to go on with the inputs of an operation.
    """
    waiting = list({tensor.op: None for tensor in tensors if tf.is_symbolic_tensor(tensor)})
    seen = set(waiting)
    while waiting:
        operation = waiting.pop()
        yield operation
        found = [each.op for each in operation.inputs if each.op not in seen] if enters(operation) else []
        seen.update(found)
        waiting += dict.fromkeys(found)


def functions_of(graph: Any) -> dict[str, Any]:
    """Returns the functions that a graph may call, as `FunctionDef`, by name."""
    return {each.signature.name: each for each in graph.as_graph_def().library.function}


def arguments_of(definition: Any, result: int, unused: Collection[str], see: Callable[[str], None]) -> set[int]:
    """Returns the numbers of the arguments from which a function computes a result.

    Args:
        definition: a `FunctionDef`.
        result: the number of the result.
        unused: types of operations whose inputs do not count, such as "Shape".
        see: called with the type of each operation on the way.
    """
    arguments = {each.name: number for number, each in enumerate(definition.signature.input_arg)}
    nodes = {node.name: node for node in definition.node_def}
    waiting, seen, own = [definition.ret[definition.signature.output_arg[result].name]], set(), set()
    while waiting:
        name = waiting.pop().partition(":")[0]
        if name in arguments:
            own.add(arguments[name])
        elif name not in seen and name in nodes:
            seen.add(name)
            see(nodes[name].op)
            if nodes[name].op not in unused:
                waiting += [each for each in nodes[name].input if not each.startswith("^")]
    return own


def deciding_variables(
    condition: Any, body: Any, unused: Collection[str] = (), see: Callable[[str], None] = lambda operation: None
) -> set[int]:
    """Returns the numbers of the loop variables whose first values decide how often a loop runs.

    Args:
        condition: the `FunctionDef` of its condition.
        body: the `FunctionDef` of its body.
        unused: as for `arguments_of`.
        see: as for `arguments_of`.
    """
    deciding: set[int] = set()
    waiting = arguments_of(condition, 0, unused, see)
    while waiting:
        deciding |= waiting
        waiting = set().union(*(arguments_of(body, number, unused, see) for number in waiting)) - deciding
    return deciding


def deciding_inputs(graph: Any, base: Any) -> list[Any] | None:
    """Returns the tensors that decide whether, or how often, the graph of a branch or loop runs.

    Args:
        graph: the graph, which may be in a branch or loop itself.
        base: the graph that is in none of them.

    Returns:
        An empty list if nothing does; None if random numbers decide.
    """
    found: list[Any] = []
    while graph is not base and getattr(graph, "outer_graph", None) is not None:
        inner, graph = graph, graph.outer_graph
        for operation in graph.get_operations():
            if (deciding := _deciding(operation, inner)) is None:
                return None
            found += deciding
    return found


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
    if len(seen) > MOST_OPERATIONS or any("Random" in each for each in seen):
        return None
    return [operation.inputs[number] for number in sorted(numbers)]


def outermost(tensor: Any) -> Any:
    """Returns the tensor that a function has captured, of the outermost function that has it; other tensors as they are."""
    while tf.is_symbolic_tensor(tensor) and tensor.op.type == "Placeholder":
        captured = {inner.name: outer for outer, inner in getattr(tensor.graph, "captures", ())}
        if tensor.name not in captured:
            break
        tensor = captured[tensor.name]
    return tensor


def key_of(tensor: Any) -> tuple[int, str]:
    """Returns what is the same for all objects that stand for one tensor of a graph."""
    return id(tensor.graph), tensor.name
