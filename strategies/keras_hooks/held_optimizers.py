"""The optimizers that a model holds, and their move into the scope of a strategy."""

from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.keras_hooks.interface import hooks_of
from tfdist.strategies.private_api import ResourceVariable


def held_optimizers(model: Any) -> list[Any]:
    """Returns the optimizers of a model: that of `compile`, then those in attributes of the model and its layers, each once.

    Lists, tuples, sets and dicts in these attributes are searched, too. `with_inner` adds the optimizers inside them.
    """
    layers = (model, *model._flatten_layers(include_self=False))
    return _optimizers_in([getattr(model, "optimizer", None), *(value for layer in layers for value in vars(layer).values())])


def _optimizers_in(waiting: list[Any]) -> list[Any]:
    """Returns the optimizers among values, and in lists, tuples, sets and dicts among them, each once."""
    seen: dict[int, Any] = {}
    for value in waiting:  # It grows by the contents of containers.
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, dict | list | tuple | set):  # `+=` would make a list of its own of TensorFlow's ListWrapper.
            waiting.extend(value.values() if isinstance(value, dict) else value)
    return [value for value in seen.values() if isinstance(value, keras.optimizers.Optimizer)]


def with_inner(optimizer: Any) -> list[Any]:
    """Returns an optimizer and the optimizers that it holds, in its attributes too, and those in these; nothing for None."""
    optimizers, waiting = {}, [optimizer]
    for inner in waiting:  # It grows by those inside.
        if inner is not None and id(inner) not in optimizers:
            optimizers[id(inner)] = inner
            waiting += [getattr(inner, "inner_optimizer", None), *getattr(inner, "optimizers", [])]
            waiting += _optimizers_in(list(getattr(inner, "__dict__", {}).values()))
    return list(optimizers.values())


def adopt_optimizer(optimizer: Any, strategy: tf.distribute.Strategy) -> None:
    """Moves an optimizer that was made outside of any scope, and is not built, into the scope of `strategy`."""
    for held in with_inner(optimizer):
        if hooks_of(getattr(held, "_distribution_strategy", strategy)) is None and not held.built:
            held._distribution_strategy = strategy
            begin_anew(held.variables, strategy)


def begin_anew(variables: list[Any], strategy: tf.distribute.Strategy) -> None:
    """Replaces the values of Keras' variables that were made outside of any scope by variables of `strategy`."""
    with tf.init_scope(), strategy.scope():
        for variable in variables:
            if type(variable._value) is ResourceVariable:  # In a scope it is of a subclass or a wrapper.
                variable._initialize(variable._value.numpy())


def ids_of_counters(optimizer: Any) -> set[int]:
    """Returns the ids of variables that every replica counts alike. Keras would broadcast the first replica's value."""
    return {id(each._iterations) for each in with_inner(optimizer) if hasattr(each, "_iterations")}


def variables_of(optimizer: Any, trainable_variables: Any) -> Any:
    """Returns the variables that `optimizer.apply` updates, given those that it got."""
    return trainable_variables or getattr(optimizer, "_trainable_variables", ())
