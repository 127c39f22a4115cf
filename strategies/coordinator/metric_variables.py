"""The variables of a model's metrics, of which each replica of a worker group has its own value."""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies.coordinator.calls.tensor_fusion import unflatten_array
from tfdist.strategies.coordinator.sync_on_read_variable import SyncOnReadVariable
from tfdist.strategies.keras_hooks.checks.metric_trial import leaves, variables_of
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.warned import is_first_warning
from tfdist.strategies.keras_hooks.strategy_parts import group_count

MAX_METRIC_VALUES = 65536
"""If the metrics hold more numbers (a confusion matrix of many classes), steps do not return them."""

_log = logging.getLogger("tfdist")


def to_send(model: Any) -> tuple[list[Any], list[Any]]:
    """Returns the Keras variables of metrics that steps return: those of metrics that the model lists, then of others.

    The others are those of a model inside it, those that an own `metrics` leaves out, and those that the step updates.
    """
    listed = {id(v): v for metric in model.metrics for v in metric.variables}
    if not all(isinstance(variable._value, SyncOnReadVariable) for variable in listed.values()):
        return [], []
    replica = replica_context.current()
    found = [*variables_of(model), *(replica.assigned.values() if replica else ())]
    others = {id(v): v for v in found if isinstance(v._value, SyncOnReadVariable) and id(v) not in listed}
    if size_of([*listed.values(), *others.values()]) <= MAX_METRIC_VALUES:
        return [*listed.values()], [*others.values()]
    has_groups = group_count(model.distribute_strategy) > 1
    if others and (has_groups or (replica and replica.share is not None)) and is_first_warning(model, "large unlisted metrics"):
        _log.warning(
            "the metrics of %s, with those that its `metrics` lacks (%s, ...), hold more than %d numbers, so steps do not send "
            "the latter: a log that a step computes from them is a mean over the workers",
            *(model.name, next(iter(others.values())).path, MAX_METRIC_VALUES),
        )
    if size_of([*listed.values()]) <= MAX_METRIC_VALUES:
        return [*listed.values()], []
    if has_groups and is_first_warning(model, "large metrics"):
        _log.warning(
            "the metrics of %s hold more than %d numbers, so steps do not send them: the logs of a batch count the steps "
            "of one worker group, and those of an epoch lack what a worker that is lost has counted",
            *(model.name, MAX_METRIC_VALUES),
        )
    return [], []


def size_of(variables: list[Any]) -> int:
    """Returns how many numbers Keras variables hold."""
    return sum(math.prod(variable.shape) for variable in variables)


def values_of(variables: list[Any]) -> Any:
    """Returns the values of Keras variables, at least one, as a float64 vector."""
    return np.concatenate([np.ravel(variable._value.numpy()).astype(np.float64) for variable in variables])


def assign(variables: list[Any], total: Any) -> bool:
    """Gives variables their parts of a vector, to which workers add; returns whether it has as many numbers as they have."""
    if size_of(variables) != len(total):
        return False
    for variable, value in zip(variables, unflatten_array(total, [tuple(v.shape) for v in variables]), strict=True):
        variable._value.forget_sum()  # This is no assignment of the program's.
        variable._value.assign(tf.cast(value, variable._value.dtype))
    return True


@contextlib.contextmanager
def noting_means(model: Any) -> Iterator[dict[int, Any]]:
    """Notes the results of those metrics of `model` that are `keras.metrics.Mean`s: the id of a result -> its metric."""
    means = [leaf for leaf in leaves(model) if type(leaf).result is keras.metrics.Mean.result]
    noted: dict[int, Any] = {}
    results = []  # Keeps them alive: another object could get the id of a result.

    def noting(metric: Any) -> Callable[[], Any]:
        def result() -> Any:
            value = type(metric).result(metric)
            noted[id(value)] = metric
            results.append(value)
            return value

        return result

    for metric in means:
        metric.__dict__["result"] = noting(metric)
    try:
        yield noted
    finally:
        for metric in means:
            del metric.__dict__["result"]
