"""Logs that a step computes from the states of its metrics, under names that are no metric's.

Programs return `{"loss": self.total_loss.result()}` of a metric that is named `total_loss`, or `ops.exp(self.nll.result())`.
Where a step runs, a metric has counted a part of the examples only. So such a log is computed anew, by the same operations,
from the states of the metrics over all replicas, groups and steps. What a step computes from anything else stays its own.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas.function_arguments import operations_behind
from tfdist.strategies.keras_hooks.step_logs import flat, metrics_result, resources

_READ = "ReadVariableOp"

LogFunction = Callable[[Mapping[str, Any], Sequence[Any]], Any]
"""Takes the results of the metrics, by name, and the values of their variables; returns a log."""


def derived_logs(model: Any, logs: Any, variables: Sequence[Any], own: Collection[str]) -> dict[str, LogFunction]:
    """Returns a function for each log that is computed from metrics, and is not that of its name. Call it where the step runs.

    Args:
        model: the Keras model.
        logs: what its step returned.
        variables: the Keras variables of its metrics.
        own: the names of logs that are not the metrics of these names.
    """
    if not isinstance(logs, dict) or tf.executing_eagerly():
        return {}
    results, logs = metrics_result(model), {name: log for name, log in flat(logs).items() if tf.is_symbolic_tensor(log)}
    places = {name: k for k, v in enumerate(variables) for name in resources([v.value])}
    forms = {name: _form(value, places) for name, value in results.items() if tf.is_symbolic_tensor(value)}
    names = {form: name for name, form in forms.items()}
    derived: dict[str, LogFunction] = {}
    for name, log in logs.items():
        form = _form(log, places)
        if form is not None and (name in own or form != forms.get(name)):
            derived[name] = _result_of(names[form]) if form in names else _copies(log, places)
    return derived


def _result_of(name: str) -> LogFunction:
    return lambda results, values: results[name]


def _form(log: Any, places: Mapping[str, int]) -> Any:
    """Returns what a tensor computes from variables, to be compared; None if it depends on anything else."""
    # Not by recursion: a loss may depend on thousands of operations.
    if not all(_may_be_copied(each, places) for each in operations_behind([log], lambda each: each.type != _READ)):
        return None
    known: dict[Any, Any] = {}

    def form_of(tensor: Any) -> Any:
        operation = tensor.op
        if operation not in known and operation.type == _READ:
            known[operation] = places[operation.inputs[0].name]
        if operation not in known:
            attributes = sorted((name, value.SerializeToString()) for name, value in _attributes(operation).items())
            known[operation] = operation.type, tuple(attributes), tuple(map(form_of, operation.inputs))
        return known[operation], tensor.value_index

    return form_of(log)


def _may_be_copied(operation: Any, places: Mapping[str, int]) -> bool:
    if operation.type == _READ:
        return operation.inputs[0].name in places
    has_functions = any(attribute.type == "func" for attribute in operation.op_def.attr)
    return operation.type != "Placeholder" and not operation.op_def.is_stateful and not has_functions


def _attributes(operation: Any) -> dict[str, Any]:
    return {name: value for name, value in operation.node_def.attr.items() if not name.startswith("_")}


def _copies(log: Any, places: Mapping[str, int]) -> LogFunction:
    """Returns a function that computes a log by copies of its operations, in the function that is traced then."""

    def compute(_: Mapping[str, Any], values: Sequence[Any]) -> Any:
        copies: dict[Any, Any] = {}

        def copied(tensor: Any) -> Any:
            operation = tensor.op
            if operation.type == _READ:
                return tf.cast(values[places[operation.inputs[0].name]], tensor.dtype)
            if operation not in copies:
                operands = [copied(value) for value in operation.inputs]
                copies[operation] = tf.compat.v1.get_default_graph().create_op(
                    operation.type, operands, [value.dtype for value in operation.outputs], attrs=_attributes(operation)
                )
            return copies[operation].outputs[tensor.value_index]

        return copied(log)

    return compute
