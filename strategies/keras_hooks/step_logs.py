"""The logs of a step: which of them are results of the model's metrics, and which are values of the step's own.

Metrics count the examples of all replicas and all steps, so their results replace the logs that a step returns for them. But a
user's own `train_step` may return a loss under the name of a metric that it does not update: `compile` gives every model a
metric `loss`. Such a log stays what the step returned.
"""

from collections.abc import Collection, Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.interface import Logs
from tfdist.strategies.keras_hooks.replicas.batch_sums import is_for_each_example
from tfdist.strategies.keras_hooks.replicas.function_arguments import operations_behind
from tfdist.strategies.keras_hooks.replicas.reduction import all_reduce_sum, is_number
from tfdist.strategies.private_api import KerasVariable


def with_metrics(logs: Logs, metrics: dict[str, Any], own: Collection[str] = ()) -> Logs:
    """Returns the logs of a step, flattened, with the value in `metrics` for each name that `metrics` has.

    Args:
        logs: what the step returned.
        metrics: the results of the model's metrics, also nested: Keras puts those of a metric with several under its name.
        own: the names of logs that stay what the step returned.
    """
    if not isinstance(logs, dict):
        return logs
    results = flat(metrics)
    return {name: value if name in own else results.get(name, value) for name, value in flat(logs).items()}


def of_known_shape(value: Any) -> tf.Tensor:
    """Returns a log as a tensor whose shape is known while the step is traced.

    Of a log with a number for each example, such as a loss that is not reduced, it is the mean over them: replicas have
    different numbers of examples, and so have batches. Keras' progress bar shows the mean, too.
    """
    value = tf.convert_to_tensor(value)
    unknown = None if value.shape.rank is None else [axis for axis, size in enumerate(value.shape) if size is None]
    return value if unknown == [] or not is_number(value) else _mean(value, unknown)


def means_over_examples(logs: Any, rows: int | None) -> Any:
    """Returns the logs of a replica, with the mean in place of those that have a number for each of its examples.

    Eagerly, a log with as many numbers as each replica has examples is taken for one. Every replica calls it.

    Args:
        logs: what its step returned.
        rows: the number of its examples; None if it is not known, and `of_known_shape` finds such logs.
    """
    values = tf.nest.flatten(logs)
    arrays = [n for n, v in enumerate(values) if isinstance(v, tf.Tensor) and v.shape.rank and is_number(v)] if rows else []
    are_of_examples = [is_for_each_example(values[n], rows) for n in arrays]
    if arrays and tf.executing_eagerly():
        counts, replicas = all_reduce_sum([tf.constant(are_of_examples, tf.float32), tf.constant(1.0)])
        are_of_examples = list((counts == replicas).numpy())
    for n, is_of_examples in zip(arrays, are_of_examples, strict=True):
        values[n] = _mean(values[n], 0) if is_of_examples else values[n]
    return tf.nest.pack_sequence_as(logs, values)


def _mean(value: tf.Tensor, axis: Any) -> tf.Tensor:
    return tf.reduce_mean(value if value.dtype.is_floating else tf.cast(value, tf.float32), axis=axis)


def metrics_result(model: Any) -> Any:
    """Returns the results of the model's metrics, as tensors also where a metric's `result` returns one of its variables.

    The variable itself would be read later, outside of a scope that gives it another value.
    """
    return tf.nest.map_structure(
        lambda value: tf.convert_to_tensor(value) if isinstance(value, KerasVariable) else value, model.get_metrics_result()
    )


def own_names(model: Any, logs: Logs, assigned: Collection[int] = ()) -> set[str]:
    """Returns the names of logs that are not computed from the metrics of these names. To be called where the step runs.

    Args:
        model: the Keras model.
        logs: what its step returned.
        assigned: the ids of the variables that the step assigned. They decide if the step is not traced.
    """
    if not isinstance(logs, dict):
        return set()
    variables: dict[str, list[Any]] = {}  # Of the metrics that have a name.
    for metric in model.metrics:
        result = metric.result()
        for name in flat(result) if isinstance(result, dict) else [metric.name]:
            variables.setdefault(name, []).extend(metric.variables)
    return {name for name, value in flat(logs).items() if variables.get(name) and not _reads(value, variables[name], assigned)}


def flat(logs: dict[str, Any]) -> dict[str, Any]:
    """Returns logs with those in inner dicts beside the others, as Keras does."""
    flat_logs: dict[str, Any] = {}
    for name, value in logs.items():
        flat_logs.update(flat(value) if isinstance(value, dict) else {name: value})
    return flat_logs


def _reads(log: Any, variables: list[Any], assigned: Collection[int]) -> bool:
    """Returns whether a log is computed from one of these Keras variables."""
    if tf.executing_eagerly():
        return any(id(variable) in assigned for variable in variables)
    found = {name for variable in variables for name in resources([variable.value])}
    return any(name in found for name in resources(tf.nest.flatten(log)))


def resources(values: Collection[Any]) -> Iterator[str]:
    """Yields the names of the resources, such as handles of variables, from which a function computes values."""
    for operation in operations_behind([tf.convert_to_tensor(value) for value in values if value is not None]):
        for operand in operation.inputs:
            if operand.dtype == tf.resource:
                yield operand.name
