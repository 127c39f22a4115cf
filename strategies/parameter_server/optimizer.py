"""Keras' optimizers on variables that ps tasks hold: fused gradients, shards updated in place, rows looked up on the ps.

Each replacement of a method of Keras calls Keras' own method under any other strategy.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.calls.tensor_fusion import flatten, is_small, unflatten
from tfdist.strategies.coordinator.extended import unwrapped
from tfdist.strategies.keras_hooks.optimizer import is_elementwise
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.parameter_server import fused_adam, fused_reads
from tfdist.strategies.parameter_server.placement import ServerExtended, extended_of
from tfdist.strategies.parameter_server.relative_assigns import Change
from tfdist.strategies.parameter_server.variables import ServerVariable, is_on_ps
from tfdist.strategies.private_api import KerasVariable, patches
from tfdist.strategies.variable_base import shard_scope, take_rows


def install() -> None:
    """Replaces the methods. Calling it again does nothing."""
    patches.UPDATE_STEP.patch(_update_step)
    for method in patches.ELEMENTWISE.values():
        method.patch(_elementwise)
    for method in patches.OWN_WEIGHT_DECAY.values():
        method.patch(_decay_of_muon)
    patches.UPDATE_AVERAGES.patch(_update_averages)
    for name, method in patches.ASSIGN_IN_PLACE.items():
        method.patch(_IN_PLACE[name])
    patches.SPARSE_READ.add(_sparse_read)
    patches.TAKE.patch(_take)
    fused_adam.install()


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
        if _is_fused(gradient, wrapper):
            fused[unwrapped(wrapper).device, gradient.dtype].append(position)
    for (device, _), positions in fused.items():
        vector = _arrived(device, flatten([pairs[position][0] for position in positions]))
        with tf.device(device):
            pieces = unflatten(vector, [pairs[position][1].shape for position in positions])
        for position, piece in zip(positions, pieces, strict=True):
            pairs[position] = (piece, pairs[position][1])
    return pairs


def _is_fused(gradient: Any, wrapper: Any) -> bool:
    variable = unwrapped(wrapper)
    is_dense = tf.is_tensor(gradient) and not isinstance(gradient, tf.IndexedSlices)
    return is_dense and isinstance(variable, ServerVariable) and is_small(variable.shape, gradient.dtype)


def _arrived(device: str, gradient: Any) -> Any:
    """Returns a gradient (tensor, IndexedSlices, other) on the ps `device`. float32 travels as bfloat16 if the step rounds."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_arrived(device, gradient.values), gradient.indices, gradient.dense_shape)
    if not isinstance(gradient, tf.Tensor):
        return gradient
    rounded = fused_reads.current().rounded and gradient.dtype == tf.float32
    sent = tf.cast(gradient, tf.bfloat16) if rounded else gradient
    with tf.device(device):
        return tf.cast(tf.identity(sent), gradient.dtype)


# Replacements. The first parameter is the method that they replace.


def _update_step(
    original: Callable[..., Any], optimizer: Any, distribution: Any, grads_and_vars: Any, learning_rate: Any
) -> None:
    extended = distribution.extended
    if not isinstance(extended, ServerExtended):
        original(optimizer, distribution, grads_and_vars, learning_rate)
        return
    pairs = [(extended._select_single_value(gradient), variable) for gradient, variable in grads_and_vars]
    with extended.elementwise_updates(is_elementwise(optimizer)):
        # Gradients are split before anything waits for a ps: they travel while another group updates.
        for device, pieces in extended.by_ps(_sent_to_ps(pairs)).items():
            shards = {
                number: [
                    (gradient if _is_fused(gradient, variable) else _arrived(device, gradient), variable)
                    for gradient, variable in there
                ]
                for number, there in pieces.items()
            }
            with extended.critical_section(device, [gradient for there in shards.values() for gradient, _ in there]):
                for number, there in shards.items():
                    with shard_scope(number):
                        original(optimizer, distribution, there, learning_rate)


def _update_averages(original: Callable[..., Any], optimizer: Any, trainable_variables: Any) -> None:
    """Computes each moving average on the ps that holds it."""
    if (extended := extended_of(optimizer)) is None:
        original(optimizer, trainable_variables)
        return
    # Keras begins with the weights in the step with the number 0. Of several groups another step may be first.
    has_begun = extended.has_several_groups and not tf.executing_eagerly()
    begun = 1.0 if has_begun else tf.cast(optimizer.iterations != 0, tf.float32)
    with extended.elementwise_updates(True):
        for variable, average in zip(trainable_variables, optimizer._model_variables_moving_average, strict=True):
            if optimizer.use_ema and average is not None:
                if has_begun and is_on_ps(average):
                    update, momentum = _average_of_groups, float(optimizer.ema_momentum)
                else:
                    update, momentum = _average, tf.cast(begun * optimizer.ema_momentum, variable.dtype)
                extended.update(average._value, update, args=(variable._value, momentum), group=False)


def _average(average: Any, variable: Any, momentum: Any) -> None:
    average.assign(momentum * average + (1 - momentum) * variable)


def _average_of_groups(average: Any, variable: Any, momentum: float) -> None:
    Change(momentum, tf.cast((1 - momentum) * variable, average.dtype)).apply(average)


def _elementwise(original: Callable[..., Any], optimizer: Any, *args: Any) -> Any:
    """Updates each shard by itself."""
    if (extended := extended_of(optimizer)) is None:
        return original(optimizer, *args)
    with extended.elementwise_updates(True):
        return original(optimizer, *args)


def _decay_of_muon(original: Callable[..., Any], optimizer: Any, variables: Any) -> Any:
    """Subtracts on the ps, as for other optimizers. Keras assigns what a worker computes: updates of other groups are lost."""
    if (extended := extended_of(optimizer)) is None:
        return original(optimizer, variables)

    def subtract(variable: Any, decay: Any) -> None:
        factor, rate = (tf.cast(each, variable.dtype) for each in (decay, optimizer.learning_rate))
        variable.assign_sub(variable * factor * rate)

    with extended.elementwise_updates(True):
        for variable in filter(optimizer._use_weight_decay, variables):
            own = optimizer.adam_weight_decay if optimizer._should_use_adamw(variable) else optimizer.weight_decay
            if own is not None:
                extended.update(variable._value, subtract, args=(own,), group=False)
    return None


# An addition to a variable on a ps is one operation. Keras reads, adds and writes: if two workers do so at the same time, one
# addition is lost, `optimizer.iterations` counts too few steps, and learning-rate schedules run late.


def _in_place(method: str) -> Callable[..., Any]:
    def assign(original: Callable[..., Any], variable: Any, value: Any) -> Any:
        if not is_on_ps(variable) or replica_context.is_trial():
            return original(variable, value)
        _note(variable)
        value, replica = _broadcast(value, variable._value), replica_context.current()
        if replica is not None and replica.share is not None and variable.aggregation == "sum":
            value = tf.where(replica.share > 0, value, tf.zeros_like(value))  # A repeated example does not count.
        return getattr(variable._value, method)(value)

    return assign


_IN_PLACE = {name: _in_place(name) for name in patches.ASSIGN_IN_PLACE}


def _broadcast(value: Any, variable: Any) -> Any:
    """Returns what is added to a variable with its dtype and shape, as the sum of both has that Keras assigns."""
    value = tf.cast(value, variable.dtype)
    is_like = isinstance(value, tf.IndexedSlices) or value.shape == variable.shape
    return value if is_like else tf.broadcast_to(value, variable.shape)


def _note(variable: Any) -> None:
    """Notes an assignment of one of several replicas, of which the mean counts. What groups of one replica add is right."""
    replica = replica_context.current()
    if replica is not None and replica.share is not None:
        replica.assigned[id(variable)] = variable


def _sparse_read(variable: Any, indices: Any, name: str | None = None) -> Any:
    """Makes `tf.gather`, and with it Keras' Embedding, look up rows on the ps. Keras would read the whole table each step."""
    if not is_on_ps(variable):
        raise AttributeError("sparse_read")  # Makes tf.gather treat the variable as any tensor.
    return variable._maybe_autocast(unwrapped(variable._value).sparse_read(indices, name=name))


def _take(original: Callable[..., Any], x: Any, indices: Any, axis: int | None = None) -> Any:
    """Looks up rows of a table on the ps as Keras does. Keras would read the table whole to learn how many rows it has."""
    if not (isinstance(x, KerasVariable) and is_on_ps(x) and len(x.shape) == 2 and axis == 0):
        return original(x, indices, axis)

    def look_up(numbers: Any) -> Any:
        return tf.gather(x, tf.where(numbers < 0, numbers + tf.cast(x.shape[0], numbers.dtype), numbers), axis=0)

    return take_rows(look_up, indices)
