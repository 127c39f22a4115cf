"""Refuses `keras.distribution`, and a partition of the cluster's description, where they would have no effect.

Keras' TensorFlow backend ignores `keras.distribution` without a word.
"""

import logging
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.model_parallel.layouts import LocalMesh, warn_of_no_shards
from tfdist.strategies.private_api import patches

_log = logging.getLogger("tfdist")


_strategies: list[Any] = []  # At most one: this process' strategy.

BOTH = (
    "the description of the cluster partitions the model (--partition), and the program calls "
    "keras.distribution.set_distribution; leave one of them out"
)
_ADVICE = (
    "TensorFlow's backend of Keras ignores it, and tfdist follows it for models that are made inside the scope of mirrored or "
    "multi_worker_mirrored. Call keras.distribution.set_distribution, or enter the scope() of the distribution, before "
    "`with strategy.scope():` and make the model inside, or call keras.distribution.set_distribution(None)"
)


def install(strategy: Any) -> None:
    """Makes new variables, `fit`, `evaluate` and their like check the distribution. Calling it again changes the strategy."""
    _strategies[:] = [strategy]
    patches.MAKE_FUNCTION.patch(_make_function)
    patches.INITIALIZE.patch(_initialize)


def check_model(model: Any, mesh: LocalMesh | None) -> None:
    """Checks a model whose replicas have several devices each.

    Raises:
        ValueError: if it cannot train so. `jit_compile=True` is a warning: the model trains without XLA.
    """
    if mesh is None or mesh.axis is None:
        return
    if model.run_eagerly and len(mesh.replicas) > 1:
        raise ValueError(
            f"run_eagerly=True works with one replica of several devices per task, and {model.name} has "
            f"{len(mesh.replicas)} replicas of {len(mesh.replicas[0])}; leave run_eagerly out, or debug with one replica"
        )
    if model.jit_compile is True:
        _log.warning("jit_compile=True has no effect on %s: XLA compiles for one device; it trains without XLA", model.name)


def _described() -> Any:
    """Returns the `DescribedLayouts` of this process' strategy; None without a partition."""
    return next((getattr(strategy.extended, "described", None) for strategy in _strategies), None)


def _make_function(original: Callable[..., Any], model: Any, step_function: Callable[..., Any]) -> Any:
    extended = model.distribute_strategy.extended
    is_followed = getattr(extended, "mesh", None) is not None
    is_set = keras.distribution.distribution() is not None
    described = _described()
    if is_set and described is not None:
        raise ValueError(BOTH)
    if is_set and not is_followed:
        raise ValueError(f"keras.distribution has no effect on {model.name}: {_ADVICE}")
    if described is not None and getattr(extended, "described", None) is not described:
        raise ValueError(
            f"the partition of the cluster's description has no effect on {model.name}, which is made outside the scope of the "
            "strategy; make it inside `with strategy.scope():`, or leave --partition out"
        )
    if described is not None:
        described.check_matched(model.name, model.trainable_variables)
    elif is_followed:
        warn_of_no_shards(model.name, model.variables, extended.followed, extended.mesh)
    return original(model, step_function)


def _initialize(original: Callable[..., Any], variable: Any, value: Any) -> None:
    """Checks that the strategy in whose scope a variable is made follows the current distribution.

    Keras' `distribution.scope()` may have ended before `fit`, and nothing would show that the variable was to be sharded.
    """
    distribution, strategy = keras.distribution.distribution(), tf.distribute.get_strategy()
    is_followed = distribution is getattr(strategy.extended, "followed", None)
    if distribution is not None and not is_followed and strategy in _strategies:
        raise ValueError(
            BOTH if _described() is not None else f"keras.distribution has no effect on {variable.path}: {_ADVICE}"
        )
    original(variable, value)
