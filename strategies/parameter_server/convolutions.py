"""Reads the kernels of convolutions before XLA compiles them: it has no access to variables of another task.

On a CPU Keras has XLA compute convolutions with groups, and those in three dimensions with the channels first. TensorFlow's own
kernels refuse the former in three dimensions, and compute the latter wrongly.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.parameter_server.variables import is_on_ps
from tfdist.strategies.private_api import KerasVariable, patches


def install() -> None:
    """Replaces Keras' function. Calling it again does nothing."""
    patches.CONV.patch(_conv)


def _conv(original: Callable[..., Any], inputs: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(kernel, KerasVariable) and is_on_ps(kernel):
        kernel = tf.convert_to_tensor(kernel)
    return original(inputs, kernel, *args, **kwargs)
