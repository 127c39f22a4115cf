"""A sharded weight that a step assigns by the batch, and an optimizer updates, is the same on all replicas."""

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(100)]

PROGRAM = """
import contextlib

import keras
import numpy as np
from keras import ops

import tfdist
from tfdist.cluster import Cluster, Task

X = np.random.default_rng(3).normal(size=(24, 4)).astype("float32")


class BeginsByTheBatch(keras.layers.Layer):
    def build(self, shape):
        self.shift = self.add_weight(shape=(4,), initializer="zeros", name="shift")
        self.has_begun = self.add_weight(shape=(), initializer="zeros", trainable=False, name="has_begun")

    def call(self, x):
        shifted = x - self.shift
        self.shift.assign(self.shift + ops.cast(ops.equal(self.has_begun, 0), x.dtype) * ops.mean(x, axis=0))
        self.has_begun.assign(1.0)
        return shifted


def trained(scope):
    with scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), BeginsByTheBatch(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.02), "mse")
    losses = model.fit(X, X[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    return np.concatenate([losses, *(weight.ravel() for weight in model.get_weights())])


scope = tfdist.strategy(Cluster((Task("chief", 0, slots=4),))).scope
one = trained(contextlib.nullcontext)
mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"], [f"cpu:{number}" for number in range(4)])
layouts = keras.distribution.LayoutMap(mesh)
layouts[".*shift"] = ("model",)
keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch"))
np.testing.assert_allclose(trained(scope), one, 1e-5, 1e-5)
"""


def test_a_sharded_weight_that_begins_by_the_batch_equals_one_process(tmp_path, run_python):
    (tmp_path / "program.py").write_text(PROGRAM)
    assert run_python(tmp_path, "program.py", timeout=90) == 0, (tmp_path / "output.txt").read_text()[-3000:]
