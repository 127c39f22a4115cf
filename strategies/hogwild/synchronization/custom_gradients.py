"""Functions with a gradient of their own, such as `tf.recompute_grad` and `keras.remat`, in steps of a worker group.

TensorFlow looks among all variables for those that such a function uses, by the names of their handles. Replicas of a group
have handles in the step alone, and the tape knows the variables to which they belong.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.named_variable import PREFIX
from tfdist.strategies.private_api import patches


def install() -> None:
    """Makes TensorFlow leave out handles of replicas. Calling it again does nothing."""
    patches.VARIABLE_BY_NAME.patch(_variable_by_name)


# The replacement. The first parameter is the function that it replaces.


def _variable_by_name(original: Callable[..., Any], var_name: str) -> Any:
    handle = tf.compat.v1.get_default_graph().get_operation_by_name(var_name)
    is_of_replica = handle.type == "VarHandleOp" and handle.get_attr("shared_name").startswith(PREFIX.encode())
    return None if is_of_replica else original(var_name)
