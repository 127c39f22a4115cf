"""How a number grows with the number of examples is read off its operations, where a trial gives 0."""

import pytest
import tensorflow as tf
from keras import ops

from tfdist.strategies.keras_hooks.checks.growth import growth_of

FACTOR = tf.Variable(0.0)
GROWTHS = {
    "a mean": (lambda x: ops.mean(ops.cast(x > 9, "float32")), 1.0),
    "a sum divided by the number of examples": (lambda x: ops.sum(x) / ops.cast(ops.shape(x)[0], "float32"), 1.0),
    "a sum divided by the number of values": (lambda x: ops.sum(x) / ops.cast(ops.size(x), "float32"), 1.0),
    "a sum over a sum": (lambda x: ops.sum(x[:, 0]) / ops.sum(x[:, 1]), 1.0),
    "added to a variable": (lambda x: FACTOR + ops.mean(x), 1.0),
    "a mean of sums over the classes": (lambda x: ops.sum(ops.mean(x, axis=0)), 1.0),
    "a sum": (lambda x: FACTOR * ops.sum(ops.square(x)), 2.0),
    "a sum over the examples by class": (lambda x: 0.5 * ops.sum(x, axis=0), 2.0),
    "hits": (lambda x: ops.cast(tf.math.count_nonzero(x > 9), "float32"), 2.0),
    "added to a variable, a sum": (lambda x: FACTOR + ops.sum(x), 2.0),
    "a sum and a mean": (lambda x: ops.sum(x) + ops.mean(x), None),
    "a sum and a constant": (lambda x: ops.sum(x) + 1.0, None),
    "a maximum": (ops.max, None),
    "a number for each example": (lambda x: ops.mean(x, axis=1), None),
    "a square root of a sum": (lambda x: ops.sqrt(ops.sum(x)), None),
    "a product of sums": (lambda x: ops.sum(x) * ops.sum(x), 4.0),
    "a sum times 0, as for what may be anything": (lambda x: 0.0 * ops.sum(x), None),
    "a constant, as for what is not known": (lambda x: tf.constant(0.0), None),
}


@pytest.mark.parametrize("name", GROWTHS)
def test_operations_tell_how_a_number_grows(name):
    number, expected = GROWTHS[name]
    found = []

    @tf.function(input_signature=[tf.TensorSpec([None, 4])], autograph=False)
    def step(x):
        found.append(growth_of(number(x)))

    step.get_concrete_function()
    assert found == [expected]
