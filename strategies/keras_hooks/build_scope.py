"""Models that are built outside of their strategy's scope: `model(x)`, `model.build(shape)` or `summary` after the scope.

A subclassed model creates its variables when it is built, which programs often do after `with strategy.scope():`. Its variables
then belong to the strategy under which the model was made, as if it had been built inside.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.keras_hooks.interface import hooks_of
from tfdist.strategies.private_api import patches


def install() -> None:
    """Makes models enter the scope of their strategy while they are built. Calling it again does nothing."""
    patches.OPEN_NAME_SCOPE.patch(_open_name_scope)


def _open_name_scope(original: Callable[..., Any], layer: Any) -> Any:
    if not isinstance(layer, keras.Model) or layer.built or tf.distribute.has_strategy():
        return original(layer)
    strategy = getattr(layer, "_distribute_strategy", None)  # A model has none while it is made.
    return original(layer) if hooks_of(strategy) is None else _within(strategy, original(layer))


@contextlib.contextmanager
def _within(strategy: Any, name_scope: Any) -> Iterator[None]:
    with strategy.scope(), name_scope:
        yield


def strategy_of(value: Any) -> Any:
    """Returns the strategy in whose scope a variable of TensorFlow was created; None if it was in none."""
    return getattr(value, "tfdist_strategy", None) or getattr(value, "distribute_strategy", None)


def check_weights(model: Any, strategy: Any) -> None:
    """Raises ValueError if a trainable weight of `model` was created outside of the scope of `strategy`."""
    for weight in model.trainable_weights:
        if strategy_of(weight._value) is not strategy:
            raise ValueError(
                f"the weight {weight.path} of {model.name} was created outside the strategy's scope, so it would not train "
                "on all replicas; make and build its layer, and call enable_lora, inside `with strategy.scope():`"
            )
