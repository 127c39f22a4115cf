"""Random operations without a seed, such as `keras.random.normal(shape)` in a layer's `call`, in the steps of replicas.

Keras draws their seeds from one generator, which it makes when it first needs one, and keeps for each thread. Replicas trace a
step in threads of their own: each would make another one in the middle of a step, which TensorFlow refuses.
"""

import random
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.private_api import patches

_generators: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def install() -> None:
    """Makes steps draw from the generator of their strategy. Calling it again does nothing."""
    patches.GLOBAL_SEED_GENERATOR.patch(_global_seed_generator)


def prepare(strategy: tf.distribute.Strategy) -> None:
    """Makes the generator of a strategy, once. Call it before a step is traced, in the main thread.

    The state of `random`, from which Keras draws the seed, stays as it is: other random numbers are those of one process.
    """
    if strategy in _generators:
        return
    state = random.getstate()
    with tf.init_scope(), strategy.scope():
        _generators[strategy] = keras.random.SeedGenerator()
    random.setstate(state)


def state_of(strategy: tf.distribute.Strategy) -> list[Any]:
    """Returns the Keras variable with the state of a strategy's generator, in a list; an empty one before `prepare`."""
    generator = _generators.get(strategy)
    return [] if generator is None else [generator.state]


def _global_seed_generator(original: Callable[..., Any]) -> Any:
    generator = None if tf.executing_eagerly() else _generators.get(tf.distribute.get_strategy())
    return original() if generator is None else generator
