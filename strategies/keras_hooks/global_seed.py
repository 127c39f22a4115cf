"""The random numbers of replicas: each draws its own, with a seed and without.

All replicas have equal states of Keras' generators, and all tasks one global seed of TensorFlow: after a synchronous step the
states are those of one process. Without an offset of the replica each would draw the same numbers for its part of a batch. The
first replica draws those of one process.

Keras draws the seeds of operations without one, such as `keras.random.normal(shape)` in a layer's `call`, from one generator,
which it makes when it first needs one, and keeps for each thread. Replicas trace a step in threads of their own: each would
make another one in the middle of a step, which TensorFlow refuses.
"""

import random
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.strategies.keras_hooks import build_scope
from tfdist.strategies.keras_hooks.interface import hooks_of, is_data_parallel
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.strategy_parts import group_count
from tfdist.strategies.private_api import GLOBAL_SEED_GENERATOR, patches

REPLICA_STRIDE = 15_485_863
"""Distance between the seeds of two replicas. Multiples of it are not those of the distance between two groups of hogwild."""

_UPDATE_SEED = random.SystemRandom().getrandbits(31)
"""TensorFlow's seed for updates, if the program has set none. Replicas of several tasks always have one."""

_GENERATOR = "_tfdist_seed_generator"
"""The attribute of a strategy with its generator, whose state holds the strategy: they are freed together."""

_prepared: weakref.WeakSet[Any] = weakref.WeakSet()  # Strategies that have a generator.
_cleared: weakref.WeakSet[Any] = weakref.WeakSet()  # Those whose next step gets another one.


def install() -> None:
    """Gives replicas their own numbers, and steps the generator of their strategy. Calling it again does nothing."""
    patches.GLOBAL_SEED_GENERATOR.patch(_global_seed_generator)
    patches.NEXT_SEED.patch(_next_seed)
    patches.OPERATION_SEEDS.patch(_operation_seeds)
    patches.RESET_GRAPH.patch(_reset_graph)
    patches.SET_GLOBAL_ATTRIBUTE.patch(_set_global_attribute)


def prepare(strategy: tf.distribute.Strategy) -> None:
    """Makes the generator of a strategy, once, and another one after `clear_session` and `set_random_seed`, as Keras does.

    Call it before a step is traced, in the main thread.

    The state of `random`, from which Keras draws the seed, stays as it is: other random numbers are those of one process.
    """
    if strategy in _prepared and strategy not in _cleared:
        return
    _cleared.discard(strategy)
    state = random.getstate()
    with tf.init_scope(), strategy.scope():
        setattr(strategy, _GENERATOR, keras.random.SeedGenerator())
    _prepared.add(strategy)
    random.setstate(state)


def state_of(strategy: tf.distribute.Strategy) -> list[Any]:
    """Returns the Keras variable with the state of a strategy's generator, in a list; an empty one before `prepare`."""
    generator = getattr(strategy, _GENERATOR, None)
    return [] if generator is None else [generator.state]


def of_replica(seed: Any) -> Any:
    """Returns what the current replica draws with, given what one process draws with: a seed and a counter, `[2]`."""
    context, replica = tf.distribute.get_replica_context(), replica_context.current()
    if context is None or hooks_of(context.strategy) is None:
        return seed
    if replica is not None and replica.recorded is not None:
        return seed if replica.draw is None else moved(seed, replica.draw)
    if replica is not None and replica.reduced:  # All make the same update, also with random numbers in it.
        return seed
    number = tf.get_static_value(context.replica_id_in_sync_group)
    return seed if number == 0 else moved(seed, context.replica_id_in_sync_group)


def moved(seed: Any, number: Any, stride: int = REPLICA_STRIDE) -> Any:
    """Returns a seed and a counter, `[2]`, with `number` times `stride` added to the seed."""
    return seed + tf.stack([tf.cast(number, seed.dtype) * stride, tf.zeros((), seed.dtype)])


def _next_seed(original: Callable[..., Any], generator: Any, ordered: bool = True) -> Any:
    return of_replica(original(generator, ordered))


def _operation_seeds(original: Callable[..., Any], op_seed: Any) -> Any:
    """Returns the two seeds of an operation of `tf.random`. They follow from the global seed, which is that of all tasks.

    Workers of several groups run one function, so an operation has the same seeds on all of them. Without seeds each draws
    its own.
    """
    seeds = original(op_seed)
    context, replica = tf.distribute.get_replica_context(), replica_context.with_share()
    if replica is not None and replica.reduced and is_data_parallel(replica.strategy):  # All make the same update.
        return _seeds_of_update(replica, seeds[0], op_seed)
    if None in seeds or context is None or hooks_of(context.strategy) is None or replica_context.is_trial():
        return seeds
    if group_count(context.strategy) > 1:
        return None, None
    number = tf.get_static_value(context.replica_id_in_sync_group)
    return seeds[0], (seeds[1] + int(number) * REPLICA_STRIDE) % (2**31 - 1) if number else seeds[1]


def _seeds_of_update(replica: Any, seed: int | None, op_seed: int | None) -> tuple[int, int]:
    """Returns the seeds of an operation in the update of a replica: by its number, which is the same on all replicas.

    TensorFlow would take the number of operations before it, in the graph or of all that have run eagerly, in which one replica
    comes after the other.
    """
    replica.drawn += 1
    number = 2 * replica.drawn + replica.may_be_empty  # Small batches have a function of their own.
    return _UPDATE_SEED if seed is None else seed, number if op_seed is None else op_seed


def _reset_graph(original: Callable[..., Any]) -> None:
    """Is called by `clear_session`. A step that is traced before the next call of `fit` keeps the generator."""
    original()
    _cleared.update(_prepared)


def _set_global_attribute(original: Callable[..., Any], name: str, value: Any) -> None:
    """Is called by `set_random_seed`, with None for Keras' own generator."""
    original(name, value)
    if name == GLOBAL_SEED_GENERATOR and value is None:
        _cleared.update(_prepared)


def _global_seed_generator(original: Callable[..., Any]) -> Any:
    if tf.executing_eagerly() and replica_context.current() is None:
        return original()
    if (strategy := build_scope.strategy_in_own_loop()) is not None and strategy not in _prepared:
        build_scope.outside_of_steps(strategy, lambda: prepare(strategy))
    generator = getattr(tf.distribute.get_strategy(), _GENERATOR, None)
    return original() if generator is None else generator
