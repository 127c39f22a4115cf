"""Makes functions of the user with `@tf.function` a part of the step that calls them.

Such a function keeps what it was traced to, and TensorFlow lets other functions call that, too. What is traced in a step
depends on the step: a trial makes no updates, and the examples of a replica, its share and its random numbers are tensors of
the function of that step. So what a step calls is traced for this step.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks import replica_context
from tfdist.strategies.private_api import patches
from tfdist.strategies.private_api.user_functions import is_compiled, python_function


def install() -> None:
    """Makes functions with `@tf.function` a part of tfdist's steps. Calling it again does nothing."""
    patches.CALL_FUNCTION.patch(_call)


def _call(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the function; in a step that is traced its Python function. What XLA compiles stays a function of its own."""
    if replica_context.current() is None or not tf.inside_function() or is_compiled(function):
        return original(function, *args, **kwargs)
    return python_function(function)(*args, **kwargs)
