"""Branches and loops of a step that depend on the examples of its batch.

Each replica takes the branch of its shard. A trial on a few examples (shard_check.py) may see one branch only, so the traced
step is read. What functions of Keras and TensorFlow branch on, as those of CTC do, is left out: examples add up there.
"""

import inspect
import os
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas.function_arguments import (
    deciding_inputs,
    deciding_variables,
    functions_of,
    operations_behind,
    outermost,
)

_LIBRARIES = tuple(os.path.dirname(str(each.__file__)) + os.sep for each in (keras, tf))
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep
"""The folder of the strategies, which replace functions of both: their callers count."""
_WRAPPERS = tuple(
    os.path.join(_LIBRARIES[0], "src", *path) for path in (("ops", "core.py"), ("backend", "tensorflow", "core.py"))
)
"""Files of Keras in which a branch or a loop of the user's ends up, as `keras.ops.cond`."""

_GRADIENTS = inspect.getfile(tf.GradientTape)
"""The file that computes gradients. Those of a branch or loop are another one, which is the user's if the first is."""

_BRANCHES, _LOOPS, _SIZES = ("If", "StatelessIf"), ("While", "StatelessWhile"), ("Shape", "ShapeN", "Size")

REASON = (
    "it takes a branch (ops.cond, tf.cond, an `if` on a tensor), or ends a loop, by a value that it computes from the examples "
    "of the batch, and every replica has a part of them. Choose for each example (ops.where), or by variables"
)
"""What is to be said of a step whose `decides_by_examples` is true."""


def decides_by_examples(function: Any, arguments: int, assigning: Sequence[Any] = ()) -> bool:
    """Returns whether a traced step takes a branch, or ends a loop, by a value that depends on examples, not on their number.

    Those for each example, inside a loop, are left out.

    Args:
        function: the traced step.
        arguments: how many of its first tensors are those of the batch.
        assigning: the graphs of branches and loops in which it would assign variables.
    """
    graph = function.graph
    examples = {id(tensor) for tensor in graph.inputs[:arguments]}
    functions = functions_of(graph)
    if any(_is_from(each, examples) for inner in assigning for each in deciding_inputs(inner, graph) or ()):
        return True
    for operation in operations_behind(graph.outputs):
        if not any(output.dtype.is_floating for output in operation.outputs):
            continue  # As of an assertion.
        if operation.type in _BRANCHES and _is_from(operation.inputs[0], examples) and _is_own(operation):
            return True
        if operation.type in _LOOPS and _is_own(operation):
            condition, body = (functions[operation.get_attr(name).name] for name in ("cond", "body"))
            if any(_is_from(operation.inputs[each], examples) for each in deciding_variables(condition, body, _SIZES)):
                return True
    return False


def _is_own(operation: Any) -> bool:
    """Returns whether the user's code made an operation, itself or by `keras.ops` or TensorFlow's function for it."""
    for frame in reversed(list(operation.traceback)):
        if frame.filename == _GRADIENTS:
            return False
        is_wrapper = frame.filename in _WRAPPERS or "traceback_utils" in frame.filename
        if not is_wrapper and not frame.filename.startswith((_LIBRARIES[1], _OURS)):
            return not frame.filename.startswith(_LIBRARIES[0])
    return False


def _is_from(tensor: Any, examples: set[int]) -> bool:
    waiting, seen = [tensor], set()
    while waiting:
        tensor = outermost(waiting.pop())
        if id(tensor) in examples:
            return True
        if id(tensor) not in seen and tf.is_symbolic_tensor(tensor) and tensor.op.type not in _SIZES:
            seen.add(id(tensor))
            waiting += tensor.op.inputs
    return False
