"""The generator of a strategy, from which Keras draws seeds in its steps."""

import gc
import weakref

import tensorflow as tf

from tfdist.strategies.keras_hooks import global_seed


def test_a_strategy_is_freed_with_its_generator():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    global_seed.prepare(strategy)
    assert len(global_seed.state_of(strategy)) == 1
    freed = weakref.ref(strategy)
    del strategy
    gc.collect()
    assert freed() is None
