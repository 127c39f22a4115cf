"""Reads the kernels of convolutions before XLA compiles them: it has no access to variables of another task.

On a CPU Keras has XLA compute convolutions with groups, and those in three dimensions with the channels first. TensorFlow's own
kernels refuse the former in three dimensions, and compute the latter wrongly.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.extended import unwrapped
from tfdist.strategies.parameter_server.variables import ServerVariable, ShardedVariable
from tfdist.strategies.private_api import KerasVariable, patches


def install() -> None:
    """Replaces Keras' function. Calling it again does nothing."""
    patches.CONV.patch(_conv)


def _conv(original: Callable[..., Any], inputs: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
    value = kernel.value if isinstance(kernel, KerasVariable) else kernel  # In a stateless scope, that of the scope.
    if isinstance(unwrapped(value), ServerVariable | ShardedVariable):
        kernel = tf.convert_to_tensor(value)
    return original(inputs, kernel, *args, **kwargs)
