"""Calls functions with `@tf.function` inside one another and alone, on the chief and on workers. `STRATEGY`: argument 1."""

import sys

import keras
import numpy as np
import own_cluster
import tensorflow as tf

import tfdist

own_cluster.serve({"strategy": sys.argv[1]}, worker=2, ps=1)
strategy = tfdist.strategy()
keras.utils.set_random_seed(1)


def traced_in_another_one_first():
    dense = keras.layers.Dense(3)
    dense.build((None, 4))
    x = tf.ones((2, 4))
    inner = tf.function(lambda x: dense(x))
    outer = tf.function(lambda x: inner(x) * 2)
    np.testing.assert_allclose(outer(x), 2 * dense(x))
    np.testing.assert_allclose(inner(x), dense(x))
    dense.bias.assign([1.0, 2.0, 3.0])
    np.testing.assert_allclose(outer(x), 2 * dense(x))

    @tf.function
    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(inner(x) ** 2)
        return tape.gradient(loss, dense.trainable_variables)

    for found, expected in zip(gradients(), [4 * tf.ones((4, 1)) * dense(x)[:1], 4 * dense(x)[0]], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def assignments():
    variable = tf.Variable(1.0)
    double = tf.function(lambda: variable * 2.0)
    add = tf.function(lambda: variable.assign_add(1.0))

    @tf.function
    def reads_then_assigns():
        first = double()
        variable.assign(10.0)
        return first, double(), variable + 0.0

    assert [float(value) for value in reads_then_assigns()] == [2.0, 20.0, 10.0] and float(variable) == 10.0
    add()

    @tf.function
    def reads_then_calls_one_that_assigns():
        first = variable + 0.0
        add()
        return first, variable + 0.0

    assert [float(value) for value in reads_then_calls_one_that_assigns()] == [11.0, 12.0] and float(variable) == 12.0

    @tf.function
    def in_a_loop(times):
        for _ in tf.range(times):
            if variable < 100.0:
                add()
        return variable + 0.0

    assert float(in_a_loop(tf.constant(4))) == float(variable) == 16.0
    variable.assign(1.0)
    assert float(in_a_loop(tf.constant(2))) == float(variable) == 3.0
    assert float(double()) == 6.0


class Decorated(keras.layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 1))

    @tf.function
    def product(self, x):
        return x @ self.kernel

    def call(self, x):
        return self.product(x)


class Compiled(Decorated):
    @tf.function(jit_compile=True)
    def product(self, x):
        return x @ self.kernel


def a_layer_with_a_decorated_method(layer):
    x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    model = keras.Sequential([keras.Input((4,)), layer])
    serve = tf.function(lambda x: 2 * model(x))
    serve(tf.constant(x))
    for steps in (4, 1):
        model.compile(keras.optimizers.SGD(0.05), "mse", steps_per_execution=steps)
        model.fit(x, y, epochs=4, verbose=0)
        loss = np.mean((x @ layer.kernel.numpy() - y) ** 2)
        np.testing.assert_allclose(model.evaluate(x, y, verbose=0), loss, rtol=1e-4)
        np.testing.assert_allclose(layer.product(tf.constant(x)), model.predict(x, verbose=0), rtol=1e-4, atol=1e-5)
    assert loss < 0.5
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", serve)
    archive.write_out("exported", verbose=False)
    loaded = tf.saved_model.load("exported")
    np.testing.assert_allclose(loaded.serve(tf.constant(x)), 2 * x @ layer.kernel.numpy(), atol=1e-5)


def a_convolution_that_keras_has_xla_compute(shape, **arguments):
    """Keras does so on a CPU, because TensorFlow's own kernels fail with groups, or compute something else."""
    layer = keras.layers.Conv3D(4, 2, use_bias=False, **arguments)
    model = keras.Sequential([keras.Input(shape), layer])
    x = np.random.default_rng(0).normal(size=(4, *shape)).astype("float32")
    kernel = tf.Variable(layer.kernel.numpy())

    def reference():
        if "groups" not in arguments:
            return tf.transpose(tf.nn.conv3d(tf.transpose(x, [0, 2, 3, 4, 1]), kernel, [1] * 5, "VALID"), [0, 4, 1, 2, 3])
        halves = zip(np.split(x, 2, axis=-1), tf.split(kernel, 2, axis=-1), strict=True)
        return tf.concat([tf.nn.conv3d(part, own, [1] * 5, "VALID") for part, own in halves], axis=-1)

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(reference() ** 2)
    gradient = tape.gradient(loss, kernel)
    model.compile(keras.optimizers.SGD(0.5), "mse")
    expected = reference()
    values = [variable.value for variable in model.trainable_variables]
    stateless = lambda: model.stateless_call(values, [], x)[0]  # noqa: E731
    for found in (model.predict(x, verbose=0), model(x), stateless(), tf.function(stateless)()):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    model.fit(x, tf.zeros_like(expected), batch_size=4, verbose=0)
    if sys.argv[1] == "parameter_server":
        np.testing.assert_allclose(layer.kernel.numpy(), kernel.numpy() - 0.5 * gradient.numpy(), rtol=1e-4, atol=1e-5)


def a_metric_in_functions_that_a_coordinator_schedules():
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    mean = keras.metrics.Mean()

    @tf.function
    def count(value):
        mean.update_state(value)

    @tf.function
    def twice(value):
        count(value)
        count(value)

    @tf.function
    def thrice(value):
        for _ in tf.range(2):
            count(value)
        count(value)

    for function, value in ((twice, 1.0), (thrice, 2.0), (count, 4.0)):
        for _ in range(4):
            coordinator.schedule(function, args=(tf.constant(value),))
        coordinator.join()
    np.testing.assert_allclose(mean.result(), (8 * 1 + 12 * 2 + 4 * 4) / 24, rtol=1e-6)


with strategy.scope():
    traced_in_another_one_first()
    assignments()
    a_layer_with_a_decorated_method(Decorated())
    a_layer_with_a_decorated_method(Compiled())
    a_convolution_that_keras_has_xla_compute((3, 3, 3, 4), groups=2)
    a_convolution_that_keras_has_xla_compute((2, 3, 3, 3), data_format="channels_first")
    a_metric_in_functions_that_a_coordinator_schedules()
print("fine")
