"""Variables that Keras overwrites by their gradients, as float8 training does with its scales and histories of maxima.

What such a variable gets as its gradient is its next value: the largest magnitude in a batch, or what follows from those of
earlier batches. So the replicas of a step take the largest of their values, as Keras does with accumulated gradients.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas.reduction import of_each_replica

_HISTORY = "_amax_history"
"""How the names of Keras' histories of maxima end. Only their first number is of this batch."""


def is_overwritten(variable: Any) -> bool:
    """Returns whether Keras overwrites a variable by its gradient."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def with_largest(sums: Sequence[Any], grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Returns the sums of gradients over the replicas, and for variables that are overwritten the largest of their values.

    Every replica has to call it.

    Args:
        sums: the sum of each gradient over the replicas; what it has for overwritten variables does not count.
        grads: the gradients of this replica, with the next values of overwritten variables.
        variables: the variables, in the same order.
    """
    result = list(sums)
    pairs = zip(grads, variables, strict=False)
    places = [k for k, (value, variable) in enumerate(pairs) if value is not None and is_overwritten(variable)]
    if not places or tf.distribute.get_replica_context().num_replicas_in_sync == 1:
        return result
    own = [tf.stop_gradient(_news(grads[k], variables[k])) for k in places]
    for k, value in zip(places, of_each_replica(own), strict=True):
        largest, whole = tf.reduce_max(value, axis=0), tf.reshape(grads[k], [-1])
        result[k] = tf.reshape(tf.concat([largest, whole[tf.size(largest) :]], axis=0), tf.shape(grads[k]))
    return result


def _news(value: Any, variable: Any) -> Any:
    """Returns the numbers, [n], in which the next value of a variable may differ between replicas: the first ones."""
    flat = tf.reshape(value, [-1])
    return flat[:1] if variable.name.endswith(_HISTORY) else flat
