"""What a function gets when it is called, in loops and conditions.

Under parameter servers a lookup table has a copy on each task. A function that is traced on the chief uses the copy of the task
that runs it, which TensorFlow supplies with each call. It forgets to do so in the body of a `while` or a `cond`, as of the
tokenizers of Keras Hub.

A function that calls another one captures what that one has captured, by the same closure. A closure with a method
`captured_by(graph)` is replaced by what that returns, for the graph of the caller.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import ControlFlowFuncGraph, FuncGraph, patches


def install() -> None:
    """Supplies it there, too. Calling it again does nothing."""
    patches.CAPTURE_AT_CALL.patch(_capture_at_call)


# Replacements. The first parameter is the function that they replace.


def _capture_at_call(
    original: Callable[..., Any],
    graph: Any,
    closure: Callable[[], Any],
    spec: Any,
    key: Any = None,
    default_value: Any = None,
    placeholder: Any = None,
) -> Any:
    closure = closure.captured_by(graph) if hasattr(closure, "captured_by") else closure
    outer = getattr(graph, "outer_graph", None)
    if placeholder is not None or not isinstance(graph, ControlFlowFuncGraph) or not isinstance(outer, FuncGraph):
        return original(graph, closure, spec, key, default_value, placeholder)
    with outer.as_default():
        value = outer.capture_call_time_value(closure, spec, key, default_value)
    return tf.nest.map_structure(graph.capture, value)
