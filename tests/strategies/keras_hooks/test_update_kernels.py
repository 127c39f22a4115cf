"""TensorFlow's kernels update as Keras does. Strategies on real clusters: test_data_parallel.py, test_worker_groups.py."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.keras_hooks import update_kernels

ORIGINAL = keras.optimizers.SGD.update_step
SHAPE = (6, 5)


def trained(optimizer, dtype, gradients, update):
    """Returns the variable and its slots after one update by each gradient, and the types of the operations of an update."""
    variable = keras.Variable(np.linspace(-1, 1, np.prod(SHAPE)).reshape(SHAPE), dtype=dtype)
    optimizer.build([variable])
    step = tf.function(lambda gradient: update(ORIGINAL, optimizer, gradient, variable.value, 0.1))
    for gradient in gradients:
        step(gradient)
    kernels = {each.type for each in step.get_concrete_function(gradients[0]).graph.get_operations()}
    return [np.asarray(each.numpy(), "float64") for each in (variable, *getattr(optimizer, "momentums", []))], kernels


def by_keras(original, *arguments):
    original(*arguments)


@pytest.fixture(autouse=True)
def in_a_strategy(monkeypatch):
    monkeypatch.setattr(update_kernels, "hooks_of", lambda strategy: object())


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    ("options", "kernel"),
    [
        ({}, "ResourceApplyGradientDescent"),
        ({"momentum": 0.9}, "ResourceApplyKerasMomentum"),
        ({"momentum": 0.9, "nesterov": True}, "ResourceApplyKerasMomentum"),
    ],
    ids=["plain", "momentum", "nesterov"],
)
def test_the_kernel_computes_what_keras_computes(options, kernel, dtype):
    gradients = [tf.constant(value, dtype) for value in np.random.default_rng(1).normal(size=(20, *SHAPE))]
    expected, _ = trained(keras.optimizers.SGD(0.1, **options), dtype, gradients, by_keras)
    found, kernels = trained(keras.optimizers.SGD(0.1, **options), dtype, gradients, update_kernels._sgd)
    assert kernel in kernels
    tolerance = 20 * float(np.finfo(dtype).eps)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


class Own(keras.optimizers.SGD):
    """A user's optimizer may change what an update is made of."""


@pytest.mark.parametrize("optimizer", [Own(0.1), keras.optimizers.SGD(0.1)], ids=["a subclass", "rows of a table"])
def test_keras_computes_any_other_update(optimizer):
    gradient = tf.constant(np.ones(SHAPE, "float32"))
    if type(optimizer) is keras.optimizers.SGD:
        gradient = tf.IndexedSlices(gradient[:2], tf.constant([0, 3]), tf.constant(SHAPE))
    _, kernels = trained(optimizer, "float32", [gradient], update_kernels._sgd)
    assert not {each for each in kernels if each.startswith("ResourceApply")}


def test_the_variable_may_be_one_of_keras():
    optimizer, variable = keras.optimizers.SGD(0.5), keras.Variable([1.0, 2.0])
    optimizer.build([variable])
    tf.function(lambda gradient: update_kernels._sgd(ORIGINAL, optimizer, gradient, variable, 0.5))(tf.constant([2.0, 2.0]))
    assert variable.numpy().tolist() == [0.0, 1.0]
