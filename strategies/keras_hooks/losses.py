"""Keras' losses if the replicas of a step update together.

Keras takes the mean of the replicas' means, which is not the mean over the examples if the replicas' shards differ in size.
Inside a step function of tfdist each replica's loss is multiplied by its share of the examples instead.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks import replica_context
from tfdist.strategies.private_api import patches


def install() -> None:
    """Makes Keras scale losses by the current replica's share. Calling it again does nothing."""
    patches.SCALE_LOSS.patch(_scale)
    patches.UNSCALE_LOSS.patch(_unscale)


def _scale(original: Callable[..., Any], value: Any) -> Any:
    share = _share_for(value)
    return original(value) if share is None else tf.multiply(value, share)


def _unscale(original: Callable[..., Any], value: Any) -> Any:
    share = _share_for(value)
    return original(value) if share is None else tf.math.divide_no_nan(value, share)


def _share_for(value: Any) -> Any:
    """Returns the current replica's share of the examples in the dtype of `value`; None outside of tfdist's step functions."""
    replica = replica_context.current()
    return None if replica is None or replica.share is None else tf.cast(replica.share, value.dtype)
