"""The compiled updates of Adam are Keras' to rounding, on variables of this process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server import fused_adam
from tfdist.strategies.parameter_server.variables import ServerVariable

pytestmark = pytest.mark.cluster

ORIGINAL = keras.optimizers.Adam.update_step
SHAPE = (300, 301)


def trained(optimizer, gradients, update, shape=SHAPE):
    """Returns the variable and its moments after an update by each gradient, and the types of the operations of an update."""
    variable = keras.Variable(np.linspace(-1, 1, np.prod(shape)).reshape(shape), dtype="float32")
    optimizer.build([variable])
    for each in (variable, *optimizer._momentums, *optimizer._velocities):
        each._value = ServerVariable(each._value)
    step = tf.function(lambda gradient: update(ORIGINAL, optimizer, gradient, variable, 0.01))
    for gradient in gradients:
        step(gradient)
        optimizer.iterations.assign_add(1)
    kernels = {each.type for each in step.get_concrete_function(gradients[0]).graph.get_operations()}
    return [each.numpy() for each in (variable, *optimizer._momentums, *optimizer._velocities)], kernels


def by_keras(original, *arguments):
    original(*arguments)


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, keras.optimizers.AdamW])
def test_the_compiled_update_computes_what_keras_computes(optimizer):
    scales = np.random.default_rng(1).lognormal(0, 3, size=(12, 1, 1))  # A small one after a large one shows beta_2.
    gradients = [tf.constant(s * np.random.default_rng(2).normal(size=SHAPE), tf.float32) for s in scales]
    expected, _ = trained(optimizer(0.01, beta_2=0.999), gradients, by_keras)
    found, kernels = trained(optimizer(0.01, beta_2=0.999), gradients, fused_adam._adam)
    assert "StatefulPartitionedCall" in kernels and "AssignAddVariableOp" not in kernels
    for ours, theirs in zip(found, expected, strict=True):
        # TensorFlow's own kernel is off by 1.3e-5 here.
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-7 * float(np.abs(theirs).max()))


class Own(keras.optimizers.Adam):
    """A user's optimizer may change what an update is made of."""


@pytest.mark.parametrize(
    ("optimizer", "shape", "is_sparse"),
    [
        (Own(0.1), SHAPE, False),
        (keras.optimizers.Adam(0.1, amsgrad=True), SHAPE, False),
        (keras.optimizers.Adam(0.1), (6, 5), False),
        (keras.optimizers.Adam(0.1), SHAPE, True),
    ],
    ids=["a subclass", "amsgrad", "a small variable", "rows of a table"],
)
def test_keras_computes_any_other_update(optimizer, shape, is_sparse):
    gradient = tf.ones(shape)
    if is_sparse:
        gradient = tf.IndexedSlices(gradient[:2], tf.constant([0, 3]), tf.constant(shape))
    _, kernels = trained(optimizer, [gradient], fused_adam._adam, shape)
    assert "StatefulPartitionedCall" not in kernels
