"""Updates of `keras.optimizers.SGD` by TensorFlow's own kernels: one pass over memory instead of up to six.

Keras computes an update with an operation for every sign in its formula. TensorFlow has one kernel for the whole of it, which
uses several threads, with the same formula (`ApplyGradientDescent` and `ApplyKerasMomentum` in
tensorflow/core/kernels/training_ops.cc). Measured with 1.9 million parameters and momentum: 1.2 instead of 2.6 ms of a core.

Adam stays with Keras. TensorFlow's kernel computes 1 - beta_2 in the dtype of the variable: with 0.999 and float32 it is
0.0013 % smaller than Keras' constant, which is more than rounding, and no float32 beta_2 gives that constant. On a ps XLA
compiles it (parameter_server/fused_adam.py). Sparse gradients stay with Keras, too.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.keras_hooks.interface import hooks_of
from tfdist.strategies.private_api import AggregatingVariable, KerasVariable, MirroredVariable, ResourceVariable, patches


def install() -> None:
    """Replaces the update. Calling it again does nothing."""
    patches.UPDATE_OF_SGD.patch(_sgd)


def _sgd(original: Callable[..., Any], optimizer: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
    slots: list[Any] = []
    applies = _applies(optimizer, gradient, variable)
    if applies and optimizer.momentum:
        slots = [optimizer.momentums[optimizer._get_variable_index(variable)]]
    resources = [_resource(each) for each in (variable, *slots)] if applies else []
    if not resources or any(each is None for each in resources):
        original(optimizer, gradient, variable, learning_rate)
        return
    gradient, rate = (tf.cast(each, variable.dtype) for each in (gradient, learning_rate))
    if slots:
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=resources[0],
            accum=resources[1],
            lr=rate,
            grad=gradient,
            momentum=tf.cast(optimizer.momentum, variable.dtype),
            use_nesterov=optimizer.nesterov,
        )
    else:
        tf.raw_ops.ResourceApplyGradientDescent(var=resources[0], alpha=rate, delta=gradient)


def _applies(optimizer: Any, gradient: Any, variable: Any) -> bool:
    """Returns whether a kernel may compute the update: in a function, for dense floats, of Keras' own SGD in our strategies."""
    is_ours = type(optimizer) is keras.optimizers.SGD and hooks_of(getattr(optimizer, "_distribution_strategy", None))
    is_dense = isinstance(gradient, tf.Tensor) and tf.as_dtype(variable.dtype).is_floating
    return bool(is_ours) and is_dense and not tf.executing_eagerly()


def _resource(variable: Any) -> Any:
    """Returns the resource that holds a variable where it is updated now; None if there is not one alone."""
    variable = variable.value if isinstance(variable, KerasVariable) else variable
    variable = variable.get() if isinstance(variable, AggregatingVariable) else variable
    if hasattr(variable, "handle_for_update"):
        return variable.handle_for_update()
    return variable.handle if type(variable) in (ResourceVariable, MirroredVariable) else None
