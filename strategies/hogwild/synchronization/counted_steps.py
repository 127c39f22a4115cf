"""Warns of a variable that counts steps, or changes by a fixed rule with each: each worker group makes only its own steps."""

from typing import Any

import tensorflow as tf

from tfdist.strategies.hogwild.synchronization.mixed_values import is_of_step
from tfdist.strategies.keras_hooks.replicas.function_arguments import outermost
from tfdist.strategies.keras_hooks.replicas.same_rows import depends_on_batch
from tfdist.strategies.keras_hooks.replicas.warned import warn_once


def warn_of_counted(variable: Any, method: str, value: Any) -> None:
    """Warns, once, if a step computes the next value of a number from its value alone.

    Args:
        variable: the `LocalVariable`.
        method: "assign", "assign_add" or "assign_sub".
        value: its argument, in the function that is traced.
    """
    is_sum = variable.aggregation == tf.VariableAggregation.SUM  # assigned_weights.py warns of these.
    if variable.shape.rank != 0 or is_sum or not is_of_step(variable):
        return
    own, value = outermost(variable.handle), tf.convert_to_tensor(value, variable.dtype)
    if depends_on_batch(value, is_own=lambda handle: outermost(handle) is not own):
        return
    if method != "assign" or depends_on_batch(value, is_own=lambda handle: True):
        warn_once(
            "each step changes %s whatever its batch is, as a count of steps, and each worker group of hogwild makes only its "
            "own steps: the chief reads %s, not the value after all steps. Use optimizer.iterations, or one worker group",
            *(variable.path, "the mean of the groups" if variable.dtype.is_floating else "that of the first group"),
        )
