"""Updates of Adam and AdamW on a ps in one pass over memory: Keras' formula, compiled by XLA.

Keras computes an update with twelve operations, each of which reads and writes as many bytes as the variable has. TensorFlow's
own kernel (`ResourceApplyAdam`) makes one pass, but it computes 1 - beta_2 in float32: with 0.999 that is 0.0013 % less than
Keras' constant, and no float32 beta_2 gives it, because those near 1 are 6e-8 apart. So XLA compiles the operations as Keras
has them, on the ps that holds the variable. The numbers are Keras' to float32's rounding: XLA may round a product and a sum
once.

Small variables stay with Keras, because compiling takes a tenth of a second for each shape. So do sparse gradients and amsgrad.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.coordinator.calls.tensor_fusion import is_small
from tfdist.strategies.coordinator.extended import unwrapped
from tfdist.strategies.parameter_server.variables import ServerVariable, ShardedVariable
from tfdist.strategies.private_api import patches


def install() -> None:
    """Replaces the update. Calling it again does nothing."""
    patches.UPDATE_OF_ADAM.patch(_adam)


def _adam(original: Callable[..., Any], optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    resources = _resources(optimizer, gradient, variable)
    if resources is None:
        original(optimizer, gradient, variable, learning_rate)
        return
    rate, step = tf.cast(learning_rate, tf.float32), tf.cast(optimizer.iterations + 1, tf.float32)
    beta_1, beta_2 = (tf.constant(beta, tf.float32) for beta in (optimizer.beta_1, optimizer.beta_2))
    alpha = rate * tf.sqrt(1 - tf.pow(beta_2, step)) / (1 - tf.pow(beta_1, step))
    constants = (1 - optimizer.beta_1, 1 - optimizer.beta_2, optimizer.epsilon)
    _compiled(*resources, tf.cast(gradient, tf.float32), alpha, *(tf.constant(each, tf.float32) for each in constants))


def _update(
    variable: Any, momentum: Any, velocity: Any, gradient: Any, alpha: Any, rest_1: Any, rest_2: Any, epsilon: Any
) -> None:
    """Makes an update. Variables of equal shapes share the compiled code, so they are arguments.

    Args:
        variable: the resource of the variable, float32.
        momentum: the resource of its first moment.
        velocity: the resource of its second moment.
        gradient: the gradient, of the shape of the variable.
        alpha: the learning rate with the corrections of the moments, scalar.
        rest_1: 1 - beta_1, scalar.
        rest_2: 1 - beta_2, scalar.
        epsilon: scalar.
    """
    m, v = (
        tf.ensure_shape(tf.raw_ops.ReadVariableOp(resource=r, dtype=tf.float32), gradient.shape) for r in (momentum, velocity)
    )
    m += (gradient - m) * rest_1
    v += (tf.square(gradient) - v) * rest_2
    tf.raw_ops.AssignVariableOp(resource=momentum, value=m)
    tf.raw_ops.AssignVariableOp(resource=velocity, value=v)
    tf.raw_ops.AssignSubVariableOp(resource=variable, value=m * alpha / (tf.sqrt(v) + epsilon))


_compiled = tf.function(_update, jit_compile=True, autograph=False)


def _resources(optimizer: Any, gradient: Any, variable: Any) -> list[Any] | None:
    """Returns the resources of a variable and its moments on the ps; None if Keras updates them."""
    is_plain = type(optimizer) in (keras.optimizers.Adam, keras.optimizers.AdamW) and not optimizer.amsgrad
    if not is_plain or tf.executing_eagerly() or not isinstance(gradient, tf.Tensor):
        return None
    wrapped = unwrapped(getattr(variable, "_value", variable))
    if not isinstance(wrapped, ServerVariable | ShardedVariable) or wrapped.dtype != tf.float32:
        return None
    if is_small(gradient.shape, tf.float32) or not gradient.shape.is_fully_defined():
        return None
    index = optimizer._get_variable_index(variable)
    slots = [unwrapped(slot._value) for slot in (optimizer._momentums[index], optimizer._velocities[index])]
    if any(type(slot) is not type(wrapped) or slot.dtype != tf.float32 for slot in slots):
        return None
    found = [each.handle_for_update() for each in (wrapped, *slots)]
    return None if any(each is None for each in found) else found
