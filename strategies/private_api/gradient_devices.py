"""Gradients on the devices of the operations that they belong to.

TensorFlow's GradientTape computes gradients on the device where it is asked for them. An operation on another device then sends
its inputs there. The tape does know the name scope of each operation, so the scope here has the number of the device.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.private_api.checks import need, need_function

_backprop: Any = need("tensorflow.python.eager.backprop")
_gradient_function: Any = need_function(
    _backprop,
    "_gradient_function",
    "op_name, attr_tuple, num_inputs, inputs, outputs, out_grads, skip_input_indices, forward_pass_name_scope",
    "calls",
)
_register: Any = need("tensorflow.python.eager.backprop", "pywrap_tfe", "TFE_Py_RegisterGradientFunction")

_SCOPE = re.compile(r"tfdist_device_(\d+)x")
_devices: list[str] = []


@contextlib.contextmanager
def with_gradients(device: str) -> Iterator[None]:
    """Places operations, and the gradients that tapes compute for them, on a device."""
    if not _devices:
        _register(_on_its_device)
    if device not in _devices:
        _devices.append(device)
    with tf.device(device), tf.name_scope(f"tfdist_device_{_devices.index(device)}x"):
        yield


def _on_its_device(*args: Any) -> Any:
    """Calls TensorFlow's function with the same arguments. The last one is the name scope of the operation."""
    numbers = _SCOPE.findall(args[-1] or "")
    if not numbers:
        return _gradient_function(*args)
    with tf.device(_devices[int(numbers[-1])]):
        return _gradient_function(*args)
