"""What a model has beside its weights and its optimizer in the middle of a training: metrics, and seeds of random layers."""

import contextlib
import logging
from typing import Any

import tensorflow as tf

from tfdist.strategies.keras_hooks import global_seed
from tfdist.strategies.keras_hooks.interface import hooks_of

_log = logging.getLogger("tfdist")


def build(model: Any, example: Any) -> None:
    """Makes the variables of a model and of its metrics, which Keras makes with the first step in one process.

    Args:
        model: the model.
        example: nested `tf.TypeSpec`s of a batch. Without all dimensions but the first only a model that has no variables is
            made, if that is possible.
    """
    leaves = tf.nest.flatten(example)
    has_ranks = all(isinstance(leaf, tf.TensorSpec) and leaf.shape.rank for leaf in leaves)
    if hooks_of(model.distribute_strategy) is not None or not has_ranks:
        return
    if all(None not in leaf.shape[1:] for leaf in leaves):
        model._symbolic_build(data_batch=example)
    elif not model.built:
        with contextlib.suppress(Exception):  # `BackupFile.load` says what to do.
            model._symbolic_build(data_batch=example)


def metrics(model: Any) -> list[Any]:
    """Returns the values of the metrics in the middle of an epoch, as numpy arrays."""
    hooks = hooks_of(model.distribute_strategy)
    return [v.numpy() for v in model.metrics_variables] if hooks is None else hooks.metric_values(model)


def set_metrics(model: Any, values: list[Any]) -> None:
    """Sets what `metrics` returned."""
    hooks = hooks_of(model.distribute_strategy)
    if hooks is not None:
        hooks.set_metric_values(model, values)
        return
    variables = model.metrics_variables
    if len(variables) != len(values):
        _log.warning("the metrics of this epoch of %s count only what follows the restart", model.name)
        return
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def seeds(model: Any) -> list[Any]:
    """Returns the states of the generators of random numbers; nothing if the strategy saves them itself."""
    return [variable.numpy() for variable in _seed_variables(model)]


def set_seeds(model: Any, values: list[Any]) -> None:
    """Sets what `seeds` returned, as far as the model has as many."""
    for variable, value in zip(_seed_variables(model), values, strict=False):
        variable.assign(value)


def _seed_variables(model: Any) -> list[Any]:
    strategy = model.distribute_strategy
    if hasattr(strategy, "training_state"):
        return []
    found = {id(v): v for v in model.variables if v.name == "seed_generator_state"}
    return [*found.values(), *global_seed.state_of(strategy)]
