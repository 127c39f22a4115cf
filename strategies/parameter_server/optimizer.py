"""Keras' optimizers on variables that ps tasks hold: gradients sent joined, shards updated in place, rows looked up there.

Like keras_hooks/trainer.py this replaces methods at run time, each of which goes on to Keras' own for any other strategy.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.parameter_server import tensor_fusion
from tfdist.strategies.parameter_server.placement import ServerExtended
from tfdist.strategies.parameter_server.variables import ServerVariable, ShardedVariable, shard_scope, unwrapped
from tfdist.strategies.private_api import in_stateless_scope, patches

BY_ELEMENT = frozenset(
    (
        keras.optimizers.SGD,
        keras.optimizers.RMSprop,
        keras.optimizers.Adam,
        keras.optimizers.AdamW,
        keras.optimizers.Adadelta,
        keras.optimizers.Adagrad,
        keras.optimizers.Adamax,
        keras.optimizers.Nadam,
        keras.optimizers.Ftrl,
        keras.optimizers.Lion,
    )
)
"""Optimizers whose update of an element depends on that element alone. Lamb, Muon, Adafactor and unknown ones see the whole."""


def install() -> None:
    """Replaces the methods. Calling it again does nothing."""
    patches.UPDATE_STEP.patch(_update_step)
    for method in patches.ELEMENTWISE.values():
        method.patch(_by_element)
    patches.UPDATE_AVERAGES.patch(_update_averages)
    for name, method in patches.ASSIGN_IN_PLACE.items():
        method.patch(_assign_add if name == "assign_add" else _assign_sub)
    patches.SPARSE_READ.add(_sparse_read)


def begin_averages(optimizer: Any) -> None:
    """Lets the moving averages of weights (`use_ema`) begin at the weights, before the first step.

    Keras lets them begin at the first step, which it knows by `iterations`: of several groups each may miss it.
    """
    owner: Any
    for owner in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        if getattr(owner, "use_ema", False) and owner.built and int(owner.iterations.numpy()) == 0:
            for variable, average in zip(owner._trainable_variables, owner._model_variables_moving_average, strict=True):
                if average is not None:
                    average.assign(variable)


# Replacements. The first parameter is the function that they replace.


def _update_step(
    original: Callable[..., Any], optimizer: Any, distribution: Any, grads_and_vars: Any, learning_rate: Any
) -> None:
    extended = distribution.extended
    if not isinstance(extended, ServerExtended):
        original(optimizer, distribution, grads_and_vars, learning_rate)
        return
    pairs = [(extended._select_single_value(gradient), variable) for gradient, variable in grads_and_vars]
    with extended.updates_by_element(type(optimizer) in BY_ELEMENT):
        # Gradients are cut before anything waits for a ps: they travel while another group updates.
        for device, shards in extended.by_server(tensor_fusion.to_servers(pairs)).items():
            with extended.alone_on(device, [gradient for there in shards.values() for gradient, _ in there]):
                for number, there in shards.items():
                    with shard_scope(number):
                        original(optimizer, distribution, there, learning_rate)


def _update_averages(original: Callable[..., Any], optimizer: Any, trainable_variables: Any) -> None:
    """Computes each moving average on the ps that holds it."""
    extended = getattr(optimizer._distribution_strategy, "extended", None)
    if not isinstance(extended, ServerExtended):
        original(optimizer, trainable_variables)
        return
    begun = tf.cast(optimizer.iterations != 0, tf.float32)
    with extended.updates_by_element(True):
        for variable, average in zip(trainable_variables, optimizer._model_variables_moving_average, strict=True):
            if optimizer.use_ema and average is not None:
                momentum = tf.cast(begun * optimizer.ema_momentum, variable.dtype)
                extended.update(average._value, _average, args=(variable._value, momentum), group=False)


def _average(average: Any, variable: Any, momentum: Any) -> None:
    average.assign(momentum * average + (1 - momentum) * variable)


def _by_element(original: Callable[..., Any], optimizer: Any, *args: Any) -> Any:
    extended = getattr(optimizer._distribution_strategy, "extended", None)
    if not isinstance(extended, ServerExtended):
        return original(optimizer, *args)
    with extended.updates_by_element(True):
        return original(optimizer, *args)


# Additions to a Keras variable on a ps are one operation there. Keras reads, adds and writes, so that of two workers that do it
# at once one is lost: `optimizer.iterations` then counts too few steps, and learning-rate schedules run late.


def _is_on_servers(variable: Any) -> bool:
    return not in_stateless_scope() and isinstance(unwrapped(variable._value), ServerVariable | ShardedVariable)


def _assign_add(original: Callable[..., Any], variable: Any, value: Any) -> Any:
    if not _is_on_servers(variable):
        return original(variable, value)
    return variable._value.assign_add(tf.cast(value, variable._value.dtype))


def _assign_sub(original: Callable[..., Any], variable: Any, value: Any) -> Any:
    if not _is_on_servers(variable):
        return original(variable, value)
    return variable._value.assign_sub(tf.cast(value, variable._value.dtype))


def _sparse_read(variable: Any, indices: Any, name: str | None = None) -> Any:
    """Lets `tf.gather`, and with it Keras' Embedding, look rows up on the ps; Keras would fetch the whole table each step."""
    if not _is_on_servers(variable):
        raise AttributeError("sparse_read")  # tf.gather then does what it does with any tensor.
    return variable._maybe_autocast(unwrapped(variable._value).sparse_read(indices, name=name))
