"""`MelSpectrogram` on replicas: Keras clips at `top_db` below the loudest value of a batch, not below that of a shard."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.attributes import replaced
from tfdist.strategies.keras_hooks.interface import is_data_parallel
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.reduction import of_each_replica
from tfdist.strategies.keras_hooks.replicas.warned import warn_once
from tfdist.strategies.private_api import patches


def install() -> None:
    """Makes the layer clip by the whole batch. Calling it again does nothing."""
    patches.DECIBELS.patch(_decibels)


def _decibels(original: Callable[..., Any], layer: Any, inputs: Any) -> Any:
    replica, context = replica_context.current(), tf.distribute.get_replica_context()
    if replica is None or context is None or context.num_replicas_in_sync == 1:
        return original(layer, inputs)
    if replica.share is None and not is_data_parallel(replica.strategy):
        return original(layer, inputs)  # Of a worker group that predicts.
    if replica.postponed is not None or replica.compiling is not None:
        warn_once("jit_compile=True: %s clips each replica's part of a batch by itself", layer.name)
        return original(layer, inputs)
    with replaced(layer, top_db=math.inf):
        levels = original(layer, inputs)
    if replica.recorded is not None:  # A trial is about everything else.
        return levels
    loudest = tf.reduce_max(of_each_replica([tf.cast(tf.reduce_max(levels), tf.float32)])[0])
    return tf.maximum(levels, tf.cast(loudest, levels.dtype) - layer.top_db)
