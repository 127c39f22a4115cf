"""Sums over replicas leave nothing behind."""

import gc
import weakref

import tensorflow as tf

from tfdist.strategies.keras_hooks.replicas.reduction import all_reduce_sum


def test_a_function_that_adds_up_gradients_is_freed_and_differentiates_around_the_sum():
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * all_reduce_sum([2.0 * x, None, x])[0]
        return tape.gradient(y, x), all_reduce_sum([x])[0]

    def graph_of_a_traced_function():
        function = tf.function(lambda x: strategy.run(step, args=(x,))).get_concrete_function(tf.TensorSpec([]))
        gradient, total = function(tf.constant(3.0))
        assert (float(gradient), float(total)) == (6.0, 3.0)
        return weakref.ref(function.graph)

    graph = graph_of_a_traced_function()
    gc.collect()
    assert graph() is None, "TensorFlow keeps the function"


def test_one_replica_adds_nothing_up_also_in_a_branch():
    """Steps that accumulate gradients apply them in a `tf.cond`."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])

    def on_replica(x):
        return tf.cond(x > 0, lambda: all_reduce_sum([x])[0], lambda: -x)

    assert float(tf.function(lambda: strategy.run(on_replica, args=(tf.constant(2.0),)))()) == 2.0
