"""Updates of Keras' metrics by numbers of a whole batch, which the replicas together have to count once.

* **A metric function** that returns one number for a batch, or one for each class, such as a Dice coefficient, may be anything,
  and one may compare the examples. Every replica computes it on the whole batch, and counts it by its share.
* **`keras.metrics.Mean`** counts a number, such as a loss, by the replica's share, and once for the batch, unless a weight
  comes from the batch. A sum over the replica's examples, which a trial finds, counts in full.
* **`keras.metrics.Sum`** counts a number that is no result of the batch, such as 1 for each batch, by the replica's share. A
  sum over the replica's examples counts in full.
"""

import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.strategies.attributes import replaced
from tfdist.strategies.keras_hooks.checks import metric_trial
from tfdist.strategies.keras_hooks.checks.own_code import is_known
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.batch_sums import is_fixed
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica
from tfdist.strategies.keras_hooks.replicas.warned import is_first_warning
from tfdist.strategies.keras_hooks.replicas.whole_batch import (
    can_be_gathered,
    check_order,
    compares_examples,
    first_dimensions,
    gathered,
    has_number_for_each_class,
    is_of_batch,
    is_over_batch,
    reads_others,
)
from tfdist.strategies.private_api import patches

_SAME_WEIGHTS = (float, type(None))
"""Types of weights that all replicas have. An integer may be the number of a replica's examples."""

_of_rows: weakref.WeakSet[Any] = weakref.WeakSet()  # Metrics that add up numbers of examples.
_log = logging.getLogger("tfdist")


def install() -> None:
    """Makes the metrics count for the current replica. Calling it again does nothing."""
    patches.UPDATE_MEAN.patch(_update_mean)
    patches.UPDATE_SUM.patch(_update_sum)
    patches.UPDATE_METRIC_FUNCTION.patch(_update_function)


def _update_function(original: Callable[..., Any], metric: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    """Updates a metric that is made of a function; on the whole batch if it compares the examples."""
    replica = replica_context.that_counts()
    if replica is None:
        return original(metric, y_true, y_pred, sample_weight)
    numbers: list[Any] = []
    replica.rows_of_function = first_dimensions(y_true, y_pred)
    replica.is_over_batch = is_over_batch(metric, y_pred) or _is_by_class(metric, y_true, y_pred)
    arguments = () if is_known(metric._fn) else (y_true, y_pred)
    with replaced(replica, metric_numbers=numbers, arguments=arguments):
        result = original(metric, y_true, y_pred, sample_weight)
        if numbers and reads_others(numbers[-1], (y_true, y_pred, sample_weight), replica):
            replica.metric_numbers = None  # It counts as a number with which a step updates a mean, and a trial tells which.
            return original(metric, y_true, y_pred, sample_weight)
        if not numbers or replica.recorded is not None:  # In a trial: the metric counts right below.
            return result
        if replica.postponed is not None or not can_be_gathered(y_true, y_pred):
            _warn_once(metric)
            replica.metric_numbers = None
            return original(metric, y_true, y_pred, sample_weight)
        if replica.looping:
            raise replica_context.NotInLoopError
        return _update_with_whole_batch(original, metric, y_true, y_pred, sample_weight, replica)


def _is_by_class(metric: Any, y_true: Any, y_pred: Any) -> bool:
    """Returns whether a metric function of the user's has as many numbers for classes as the replica has rows."""
    function = functools.partial(metric._fn, **metric._fn_kwargs)
    return not is_known(metric._fn) and has_number_for_each_class(function, y_true, y_pred)


def _update_with_whole_batch(
    original: Callable[..., Any], metric: Any, y_true: Any, y_pred: Any, sample_weight: Any, replica: Replica
) -> Any:
    local, whole = (y_true, y_pred), gathered((y_true, y_pred), replica)
    if sample_weight is not None and tf.convert_to_tensor(sample_weight).shape.rank:
        sample_weight = gathered(tf.convert_to_tensor(sample_weight), replica)
    with replaced(replica, has_whole_batch=True):
        result = original(metric, *whole, sample_weight)
        assert replica.metric_numbers is not None
        number = tf.convert_to_tensor(replica.metric_numbers[-1])
        check_order(
            number, lambda *nested: metric._fn(*nested, **metric._fn_kwargs), local, whole, replica, f"the metric {metric.name}"
        )
        return result


def _update_mean(original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None) -> Any:
    """Counts a number for a whole batch by the replica's share, so that the replicas together count it once."""
    replica = replica_context.that_counts()
    if replica is None or not _is_number_of_batch(values, replica):
        return original(metric, values, sample_weight)
    has_same_weight = isinstance(sample_weight, _SAME_WEIGHTS)
    if replica.recorded is not None and replica.metric_numbers is None:
        if has_same_weight:
            metric_trial.settle(replica, metric)
        return original(metric, values, sample_weight)
    if replica.metric_numbers is not None:
        replica.metric_numbers.append(values)
        if not replica.has_whole_batch:
            return None  # `_update_function` will update with the number of the whole batch.
    if metric_trial.gets_sums(metric):
        values = tf.math.divide_no_nan(tf.cast(values, metric.dtype), tf.cast(replica.share, metric.dtype))
    if has_same_weight:
        sample_weight = replica.share * tf.ones(tf.shape(values)) * tf.cast(_weight(sample_weight), replica.share.dtype)
    elif replica.has_whole_batch:
        sample_weight = tf.convert_to_tensor(sample_weight)
        sample_weight *= tf.cast(replica.share, sample_weight.dtype)
    return original(metric, values, sample_weight)


def _is_number_of_batch(values: Any, replica: Replica) -> bool:
    """Returns whether a mean is updated with a number of a batch, or by a metric function that needs the whole batch."""
    if not tf.convert_to_tensor(values).shape.rank:
        return True
    if replica.metric_numbers is None:
        return False
    is_whole = replica.is_over_batch or replica.has_whole_batch or is_of_batch(values, replica.rows_of_function)
    return is_whole or compares_examples(values, replica.arguments)


def _update_sum(original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None) -> Any:
    """Counts a number that is the same on every replica by the replica's share; an integer on the first one."""
    replica = replica_context.that_counts()
    if replica is not None and isinstance(sample_weight, _SAME_WEIGHTS) and _is_same_everywhere(metric, values, replica.rows):
        if replica.recorded is not None:
            metric_trial.settle(replica, metric)
        is_first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
        is_float = tf.as_dtype(metric.dtype).is_floating
        share = replica.share if is_float else tf.cast(is_first, metric.dtype)
        sample_weight = share * tf.cast(_weight(sample_weight), share.dtype)
    return original(metric, values, sample_weight)


def _weight(sample_weight: Any) -> Any:
    return 1 if sample_weight is None else sample_weight


def _is_same_everywhere(metric: Any, value: Any, rows: int | None) -> bool:
    """Returns whether a value is one number that all replicas have, surely.

    Args:
        metric: the metric that it updates. If a replica has one example, 1 is the number of its examples if larger ones were.
        value: a tensor, or a number of Python.
        rows: the number of a replica's examples; None if it is not known. If it is, steps have it as a number.
    """
    number = tf.convert_to_tensor(value)
    if number.shape.rank:
        return False
    if rows and tf.get_static_value(number) == rows:
        if rows > 1:
            _of_rows.add(metric)
        if metric in _of_rows:
            return False
    return not isinstance(value, tf.Tensor) or (tf.is_symbolic_tensor(value) and is_fixed(value))


def _warn_once(metric: Any) -> None:
    if is_first_warning(metric, "one number"):
        _log.warning(
            "the metric %s returns one number for a batch, or one for each class, or compares the examples, which the replicas "
            "cannot compute together here; the mean of their numbers counts. Return one number per example instead",
            metric.name,
        )
