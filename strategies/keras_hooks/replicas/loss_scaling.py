"""`tf.nn`'s functions that scale losses for replicas, in a `train_step`: they compute what they do in one process.

TensorFlow divides by the number of replicas, or by the size of the whole batch, because its own loops add up the gradients of
the replicas. Here every replica's loss counts by its share of the examples (losses.py), and would be divided twice.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.private_api import patches


def install() -> None:
    """Makes the functions ask for the current replica. Calling it again does nothing."""
    patches.AVERAGE_LOSS.patch(_average_loss)
    patches.REGULARIZATION_LOSS.patch(_regularization_loss)


def _average_loss(
    original: Callable[..., Any], per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
) -> Any:
    replica = replica_context.with_share()
    if replica is None:
        return original(per_example_loss, sample_weight, global_batch_size)
    if global_batch_size is None or replica.recorded is not None:  # A trial has another batch. It counts right below.
        return original(per_example_loss, sample_weight, tf.shape(per_example_loss)[0])
    loss = original(per_example_loss, sample_weight, global_batch_size)
    return tf.math.divide_no_nan(loss, tf.cast(replica.share, loss.dtype))


def _regularization_loss(original: Callable[..., Any], regularization_loss: Any) -> Any:
    return original(regularization_loss) if replica_context.with_share() is None else tf.reduce_sum(regularization_loss)
