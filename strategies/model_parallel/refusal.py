"""Refuses `keras.distribution` where it would have no effect: Keras' TensorFlow backend ignores it without a word."""

from collections.abc import Callable
from typing import Any

import keras

from tfdist.strategies.private_api import patches


def install() -> None:
    """Makes `fit`, `evaluate` and their like check the current distribution. Calling it again does nothing."""
    patches.MAKE_FUNCTION.patch(_make_function)


def _make_function(original: Callable[..., Any], model: Any, step_function: Callable[..., Any]) -> Any:
    is_followed = getattr(model.distribute_strategy.extended, "partition", None) is not None
    if keras.distribution.distribution() is not None and not is_followed:
        raise ValueError(
            f"keras.distribution has no effect on {model.name}: TensorFlow's backend of Keras ignores it, and tfdist follows it"
            " for models that are made inside the scope of mirrored or multi_worker_mirrored. Call "
            "keras.distribution.set_distribution before `with strategy.scope():` and make the model inside, or call "
            "keras.distribution.set_distribution(None)"
        )
    return original(model, step_function)
