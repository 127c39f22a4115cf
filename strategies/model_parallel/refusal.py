"""Refuses `keras.distribution` where it would have no effect: Keras' TensorFlow backend ignores it without a word."""

import logging
from collections.abc import Callable
from typing import Any

import keras

from tfdist.strategies.model_parallel.layouts import Partition
from tfdist.strategies.private_api import patches

_log = logging.getLogger("tfdist")


def install() -> None:
    """Makes `fit`, `evaluate` and their like check the current distribution. Calling it again does nothing."""
    patches.MAKE_FUNCTION.patch(_make_function)


def check_model(model: Any, partition: Partition | None) -> None:
    """Checks a model whose replicas have several devices each.

    Raises:
        ValueError: if it cannot train so. `jit_compile=True` is a warning: the model trains without XLA.
    """
    if partition is None or partition.axis is None:
        return
    if model.run_eagerly and len(partition.rows) > 1:
        raise ValueError(
            f"run_eagerly=True works with one replica of several devices per task, and keras.distribution gives {model.name} "
            f"{len(partition.rows)} replicas of {len(partition.rows[0])}; leave run_eagerly away, or debug with one replica"
        )
    if model.jit_compile is True:
        _log.warning("jit_compile=True has no effect on %s: XLA compiles for one device; it trains without XLA", model.name)


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
