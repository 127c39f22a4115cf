"""From which of its arguments a TensorFlow function computes a result: what branches and loops depend on.

`tf.cond` and `tf.while_loop` keep their branches, conditions and bodies as functions in the graph. A loop runs as long as its
condition is true. The condition is computed from loop variables, which the body computes from others.
"""

from collections.abc import Callable, Collection
from typing import Any


def functions_of(graph: Any) -> dict[str, Any]:
    """Returns the functions that a graph may call, as `FunctionDef`, by name."""
    return {each.signature.name: each for each in graph.as_graph_def().library.function}


def arguments_of(
    definition: Any, result: int, unused: Collection[str] = (), see: Callable[[str], None] = lambda operation: None
) -> set[int]:
    """Returns the numbers of the arguments from which a function computes a result.

    Args:
        definition: a `FunctionDef`.
        result: the number of the result.
        unused: types of operations whose inputs do not count, such as "Shape".
        see: called with the type of each operation on the way.
    """
    arguments = {each.name: number for number, each in enumerate(definition.signature.input_arg)}
    nodes = {node.name: node for node in definition.node_def}
    found, seen, own = [definition.ret[definition.signature.output_arg[result].name]], set(), set()
    while found:
        name = found.pop().partition(":")[0]
        if name in arguments:
            own.add(arguments[name])
        elif name not in seen and name in nodes:
            seen.add(name)
            see(nodes[name].op)
            if nodes[name].op not in unused:
                found += [each for each in nodes[name].input if not each.startswith("^")]
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
