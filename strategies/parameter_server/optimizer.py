"""Keras' optimizers on variables that ps tasks hold: gradients sent joined, shards updated in place, rows looked up there.

Like keras_hooks/trainer.py this replaces methods at run time, each of which goes on to Keras' own for any other strategy.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.parameter_server import tensor_fusion
from tfdist.strategies.parameter_server.placement import ServerExtended
from tfdist.strategies.parameter_server.variables import ServerVariable, ShardedVariable, shard_scope, unwrapped
from tfdist.strategies.private_api import KerasVariable, TFOptimizer, in_stateless_scope

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
    if getattr(TFOptimizer, "_tfdist_servers_installed", False):
        return
    TFOptimizer._tfdist_servers_installed = True
    update_step = TFOptimizer._distributed_tf_update_step

    @functools.wraps(update_step)
    def _distributed_tf_update_step(self: Any, distribution: Any, grads_and_vars: Any, learning_rate: Any) -> None:
        extended = distribution.extended
        if not isinstance(extended, ServerExtended):
            update_step(self, distribution, grads_and_vars, learning_rate)
            return
        pairs = [(extended._select_single_value(gradient), variable) for gradient, variable in grads_and_vars]
        with extended.updates_by_element(type(self) in BY_ELEMENT):
            # Gradients are cut before anything waits for a ps: they travel while another group updates.
            for device, shards in extended.by_server(tensor_fusion.to_servers(pairs)).items():
                with extended.critical_section(device, [gradient for there in shards.values() for gradient, _ in there]):
                    for number, there in shards.items():
                        with shard_scope(number):
                            update_step(self, distribution, there, learning_rate)

    TFOptimizer._distributed_tf_update_step = _distributed_tf_update_step
    for name in (
        "_apply_weight_decay",
        "_overwrite_model_variables_with_average_value",
        "_backend_increment_gradient_accumulators",
    ):
        setattr(TFOptimizer, name, _by_element(getattr(TFOptimizer, name)))
    TFOptimizer._update_model_variables_moving_average = _averages_on_servers(
        TFOptimizer._update_model_variables_moving_average
    )
    _make_additions_atomic()
    _look_up_rows_on_servers()


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


def _averages_on_servers(method: Callable[..., Any]) -> Callable[..., Any]:
    """Computes each moving average on the ps that holds it."""

    @functools.wraps(method)
    def update_averages(self: Any, trainable_variables: Any) -> None:
        extended = getattr(self._distribution_strategy, "extended", None)
        if not isinstance(extended, ServerExtended):
            method(self, trainable_variables)
            return
        begun = tf.cast(self.iterations != 0, tf.float32)
        with extended.updates_by_element(True):
            for variable, average in zip(trainable_variables, self._model_variables_moving_average, strict=True):
                if self.use_ema and average is not None:
                    momentum = tf.cast(begun * self.ema_momentum, variable.dtype)
                    extended.update(average._value, _average, args=(variable._value, momentum), group=False)

    return update_averages


def _average(average: Any, variable: Any, momentum: Any) -> None:
    average.assign(momentum * average + (1 - momentum) * variable)


def _by_element(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def updates(self: Any, *args: Any) -> Any:
        extended = getattr(self._distribution_strategy, "extended", None)
        if not isinstance(extended, ServerExtended):
            return method(self, *args)
        with extended.updates_by_element(True):
            return method(self, *args)

    return updates


def _make_additions_atomic() -> None:
    """Makes `assign_add` and `assign_sub` of a Keras variable on a ps one operation there.

    Keras reads, adds and writes, so that of two workers that do it at once one is lost: `optimizer.iterations` then counts
    too few steps, and learning-rate schedules run late.
    """
    for name in ("assign_add", "assign_sub"):
        original = getattr(KerasVariable, name)

        @functools.wraps(original)
        def add(self: Any, value: Any, _name: str = name, _original: Callable[..., Any] = original) -> Any:
            if in_stateless_scope() or not isinstance(unwrapped(self._value), ServerVariable | ShardedVariable):
                return _original(self, value)
            return getattr(self._value, _name)(tf.cast(value, self._value.dtype))

        setattr(KerasVariable, name, add)


def _look_up_rows_on_servers() -> None:
    """Lets `tf.gather`, and with it Keras' Embedding, look rows up on the ps; Keras would fetch the whole table each step."""

    def sparse_read(self: Any, indices: Any, name: str | None = None) -> Any:
        variable = unwrapped(self._value)
        if in_stateless_scope() or not isinstance(variable, ServerVariable | ShardedVariable):
            raise AttributeError("sparse_read")  # tf.gather then does what it does with any tensor.
        return self._maybe_autocast(variable.sparse_read(indices, name=name))

    KerasVariable.sparse_read = sparse_read
