"""Functions of a SavedModel, as `keras.layers.TFSMLayer` calls them, in steps of a worker group.

TensorFlow binds a function that it loads to the handles that its variables have at that moment: those of the chief's values,
which no group trains.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.extended import unwrapped
from tfdist.strategies.coordinator.sync_on_read_variable import HandleSpec
from tfdist.strategies.hogwild.synchronization.local_variable import LocalVariable
from tfdist.strategies.private_api import is_saving, patches


def install() -> None:
    """Makes a loaded function use the handles that its variables have where it is called. Calling it again does nothing."""
    patches.RESTORE_CAPTURES.patch(_restore)


# The replacement. The first parameter is the function that it replaces.


def _restore(original: Callable[..., Any], concrete_function: Any, inputs: Sequence[Any]) -> None:
    original(concrete_function, inputs)
    for variable in map(unwrapped, inputs):
        if isinstance(variable, LocalVariable):
            bound = variable.handle
            handle = functools.partial(_handle_in_call, variable, bound)
            concrete_function.replace_capture_with_deferred_capture(bound, handle, HandleSpec(value=bound))


def _handle_in_call(variable: LocalVariable, bound: Any) -> Any:
    """Returns the handle that a loaded function gets where it is called; `bound` is that of the chief's value."""
    if tf.executing_eagerly() or is_saving() or variable.tfdist_strategy.extended.is_tracing:
        return variable.handle
    # In this function, not in the outermost one: TensorFlow keeps the trace of a loaded function for others that call it.
    graph, spec = tf.compat.v1.get_default_graph(), HandleSpec(value=bound)
    return graph.capture_call_time_value(lambda: variable.handle, spec, key=id(variable), default_value=bound)
