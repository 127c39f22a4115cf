"""Keras' optimizers on variables that ps tasks hold: fused gradients, shards updated in place, rows looked up on the ps.

`install()` replaces methods of Keras at run time. Each replacement goes on to Keras' method under any other strategy.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.coordinator.extended import unwrapped
from tfdist.strategies.coordinator.tensor_fusion import flatten, is_small, unflatten
from tfdist.strategies.parameter_server.placement import ServerExtended
from tfdist.strategies.parameter_server.variables import ServerVariable, ShardedVariable, shard_scope
from tfdist.strategies.private_api import KerasVariable, TFOptimizer, in_stateless_scope

ELEMENTWISE = frozenset(
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
"""Optimizers that update each element by itself. Lamb, Muon, Adafactor and unknown optimizers need the whole variable."""


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
        with extended.elementwise_updates(type(self) in ELEMENTWISE):
            # Gradients are split before anything waits for a ps: they travel while another group updates.
            for device, shards in extended.by_ps(_sent_to_ps(pairs)).items():
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
        setattr(TFOptimizer, name, _elementwise(getattr(TFOptimizer, name)))
    TFOptimizer._update_model_variables_moving_average = _averages_on_ps(TFOptimizer._update_model_variables_moving_average)
    _make_additions_atomic()
    _look_up_rows_on_ps()


def begin_averages(optimizer: Any) -> None:
    """Sets the moving averages of weights (`use_ema`) to the weights, before the first step.

    Keras does so in the first step, in which `iterations` is 0. Of several groups none may see that value.
    """
    owner: Any
    for owner in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        if getattr(owner, "use_ema", False) and owner.built and int(owner.iterations.numpy()) == 0:
            for variable, average in zip(owner._trainable_variables, owner._model_variables_moving_average, strict=True):
                if average is not None:
                    average.assign(variable)


def _sent_to_ps(gradients_and_variables: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Sends small dense gradients to the ps of their variables, fused. Any other gradient goes when it is used.

    Args:
        gradients_and_variables: pairs of a gradient (tensor, IndexedSlices or None) and its variable.

    Returns:
        The pairs, in order.
    """
    pairs = list(gradients_and_variables)
    fused: dict[tuple[str, Any], list[int]] = defaultdict(list)
    for position, (gradient, wrapper) in enumerate(pairs):
        variable = unwrapped(wrapper)
        is_dense = tf.is_tensor(gradient) and not isinstance(gradient, tf.IndexedSlices)
        if is_dense and isinstance(variable, ServerVariable) and is_small(variable.shape, gradient.dtype):
            fused[variable.device, gradient.dtype].append(position)
    for (device, _), positions in fused.items():
        vector = flatten([pairs[position][0] for position in positions])
        with tf.device(device):
            pieces = unflatten(tf.identity(vector), [pairs[position][1].shape for position in positions])
        for position, piece in zip(positions, pieces, strict=True):
            pairs[position] = (piece, pairs[position][1])
    return pairs


def _averages_on_ps(method: Callable[..., Any]) -> Callable[..., Any]:
    """Computes each moving average on the ps that holds it."""

    @functools.wraps(method)
    def update_averages(self: Any, trainable_variables: Any) -> None:
        extended = getattr(self._distribution_strategy, "extended", None)
        if not isinstance(extended, ServerExtended):
            method(self, trainable_variables)
            return
        begun = tf.cast(self.iterations != 0, tf.float32)
        with extended.elementwise_updates(True):
            for variable, average in zip(trainable_variables, self._model_variables_moving_average, strict=True):
                if self.use_ema and average is not None:
                    momentum = tf.cast(begun * self.ema_momentum, variable.dtype)
                    extended.update(average._value, _average, args=(variable._value, momentum), group=False)

    return update_averages


def _average(average: Any, variable: Any, momentum: Any) -> None:
    average.assign(momentum * average + (1 - momentum) * variable)


def _elementwise(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method of the optimizer update each shard by itself."""

    @functools.wraps(method)
    def updates(self: Any, *args: Any) -> Any:
        extended = getattr(self._distribution_strategy, "extended", None)
        if not isinstance(extended, ServerExtended):
            return method(self, *args)
        with extended.elementwise_updates(True):
            return method(self, *args)

    return updates


def _make_additions_atomic() -> None:
    """Makes `assign_add` and `assign_sub` of a Keras variable on a ps one operation.

    Keras reads, adds and writes. If two workers do so at the same time, one addition is lost: `optimizer.iterations` counts too
    few steps, and learning-rate schedules run late.
    """
    for name in ("assign_add", "assign_sub"):
        original = getattr(KerasVariable, name)

        @functools.wraps(original)
        def add(self: Any, value: Any, _name: str = name, _original: Callable[..., Any] = original) -> Any:
            if in_stateless_scope() or not isinstance(unwrapped(self._value), ServerVariable | ShardedVariable):
                return _original(self, value)
            return getattr(self._value, _name)(tf.cast(value, self._value.dtype))

        setattr(KerasVariable, name, add)


def _look_up_rows_on_ps() -> None:
    """Makes `tf.gather`, and with it Keras' Embedding, look up rows on the ps. Keras would read the whole table each step."""

    def sparse_read(self: Any, indices: Any, name: str | None = None) -> Any:
        variable = unwrapped(self._value)
        if in_stateless_scope() or not isinstance(variable, ServerVariable | ShardedVariable):
            raise AttributeError("sparse_read")  # Makes tf.gather treat the variable as any tensor.
        return self._maybe_autocast(variable.sparse_read(indices, name=name))

    KerasVariable.sparse_read = sparse_read
