"""BatchNormalization on replicas: each normalizes its own shard, as under Keras, and a warning says so.

With `synchronized=True` it normalizes the whole batch. Keras adds up over the replicas as if all had as many examples, and with
a mask not at all. Here an example counts as in one process, whatever the shards.
"""

import logging
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.reduction import all_reduce_sum
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica
from tfdist.strategies.keras_hooks.replicas.warned import is_first_warning
from tfdist.strategies.private_api import patches
from tfdist.strategies.private_api.own_gradients import register, with_gradient

_log = logging.getLogger("tfdist")


def warn_of_normalization(model: Any, replica: Replica, replicas: int) -> None:
    """Logs a warning, once for each model, that names the layers that have normalized the shard of a replica in its step."""
    layers = list(replica.normalizing)
    if layers and is_first_warning(model, "normalizes"):
        shown = ", ".join(layers[:3]) + (f" and {len(layers) - 3} more layers" if len(layers) > 3 else "")
        _log.warning(
            "the training of %s differs from that in one process, because %d replicas share each batch: BatchNormalization "
            "(%s) normalizes each replica's part. BatchNormalization(synchronized=True) normalizes the whole batch",
            *(model.name, replicas, shown),
        )


def install() -> None:
    """Makes synchronized layers count each example once. Calling it again does nothing."""
    patches.SYNCHRONIZED_MOMENTS.patch(_of_batch)
    patches.MOMENTS.patch(_with_mask)


def _of_batch(original: Callable[..., Any], x: Any, axes: Any, keepdims: bool) -> Any:
    """Returns the mean and the variance over the examples of all replicas."""
    replica = _that_adds_up()
    if replica is None:
        return original(x, axes, keepdims)
    sums = [tf.reduce_sum(value, axes, keepdims=True) for value in (x, tf.square(x))]
    own_count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(x), axes)), x.dtype)
    total, squares, count = _over_replicas([*sums, own_count], replica)
    mean = tf.math.divide_no_nan(total, count)
    variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
    return (mean, variance) if keepdims else (tf.squeeze(mean, axes), tf.squeeze(variance, axes))


def _with_mask(original: Callable[..., Any], layer: Any, inputs: Any, mask: Any) -> Any:
    """Returns the mean and the variance over what a mask leaves of the examples of all replicas, as Keras computes them."""
    replica = replica_context.with_share()
    if replica is not None and replica.recorded is not None:  # A trial is about everything else.
        return tuple(tf.cast(value, inputs.dtype) for value in (layer.moving_mean.value, layer.moving_variance.value))
    if replica is not None and not layer.synchronized:
        replica.normalizing[layer.name] = None
    replica = _that_adds_up()
    if mask is None or not layer.synchronized or replica is None:
        return original(layer, inputs, mask)
    axes, epsilon = layer._reduction_axes, keras.backend.epsilon()
    left = tf.broadcast_to(tf.cast(mask, tf.bool)[..., None], tf.shape(inputs))
    sums = [tf.reduce_sum(value, axes, keepdims=True) for value in (tf.where(left, inputs, 0.0), tf.cast(left, inputs.dtype))]
    total, count = _over_replicas(sums, replica)
    mean = total / (count + epsilon)
    distances = tf.reduce_sum(tf.where(left, tf.square(inputs - mean), 0.0), axes, keepdims=True)
    variance = _over_replicas([distances], replica)[0] / (count + epsilon)
    return tf.squeeze(mean), tf.squeeze(variance)


def _that_adds_up() -> Replica | None:
    """Returns the current replica; None if it is alone, only tried out, compiled by XLA, or one of several tasks or devices."""
    replica = replica_context.with_share()
    if replica is None or replica.recorded is not None or replica.postponed is not None:
        return None
    extended = replica.strategy.extended
    return replica if getattr(extended, "mesh", None) is None and getattr(extended, "groups", None) is None else None


def _over_replicas(values: list[tf.Tensor], replica: Replica) -> list[tf.Tensor]:
    """Returns the sums of tensors of one dtype over all replicas. A replica without examples, which has zeros, adds nothing."""
    flat = tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)
    sums = _sum(tf.where(replica.share > 0, flat, tf.zeros_like(flat)))
    parts = tf.split(sums, [tf.size(value) for value in values])
    return [tf.reshape(part, tf.shape(value)) for part, value in zip(parts, values, strict=True)]


def _sum(value: tf.Tensor) -> tf.Tensor:
    return with_gradient(_NAME, lambda each: all_reduce_sum([each])[0], _gradient, value)


def _gradient(of_sum: tf.Tensor) -> tf.Tensor:
    """Returns the gradient of what a replica has added, given that of the sum.

    A replica has the gradient of its mean over its examples, which counts by its share later. What it gets from the others has
    to count by theirs. After a loss was scaled all gradients count in full already.
    """
    replica = replica_context.with_share()
    if replica is None or replica.weighted:
        return _sum(of_sum)
    share = tf.cast(replica.share, of_sum.dtype)
    return tf.math.divide_no_nan(_sum(of_sum * share), share)


_NAME = "TfdistSumOverReplicas"
register(_NAME, _gradient)
