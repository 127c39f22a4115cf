"""The order of stateful operations in a function that several replicas of a task trace.

In a function TensorFlow runs the stateful operations that touch no resource, such as assertions and functions of Python, one
after the other, as they were created. Replicas are traced one after the other, so all operations of one would come before those
of the next.

That may be an endless wait: an operation of the first replica needs what the replicas have added up, and an operation of the
second, which comes later, stands before that sum. A loss of sequences is such a case if a step makes two updates, because
TensorFlow compares shapes of labels and logits.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api import run_independently
from tfdist.strategies.private_api.checks import need

_is_stateful: Any = need("tensorflow.python.framework.auto_control_deps", "op_is_stateful")
_add_control_input: Any = need("tensorflow.python.framework.ops", "Operation", "_add_control_input")
_context_of: Any = need("tensorflow.python.framework.ops", "Operation", "_get_control_flow_context")


@contextlib.contextmanager
def ordered_by_replica() -> Iterator[None]:
    """Lets the stateful operations that a replica creates wait for its own only. Surrounds the tracing of its step."""
    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    begin = len(graph.get_operations())
    yield
    before = None
    for operation in filter(_waits_for_all, graph.get_operations()[begin:]):
        run_independently(operation)
        if before is not None:
            _add_control_input(operation, before)
        before = operation


def _waits_for_all(operation: Any) -> bool:
    """Returns whether TensorFlow would run an operation after all such operations that were created before."""
    touches_resource = any(tensor.dtype == tf.resource for tensor in operation.inputs)
    is_collective = operation.type.startswith("Collective")  # Their own order is that of their keys.
    in_context = _context_of(operation) is not None
    return _is_stateful(operation) and not (touches_resource or is_collective or in_context)
