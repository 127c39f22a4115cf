"""Losses whose class overrides `__call__` take the arguments that they take without tfdist."""

import keras

from tfdist.strategies.keras_hooks.losses import adopt_own_calls
from tfdist.strategies.keras_hooks.replicas import replica_context
from tfdist.strategies.keras_hooks.replicas.replica_context import Replica


class OfTwo(keras.losses.Loss):
    def __call__(self, y_true, y_pred):
        return keras.ops.mean(y_true - y_pred)


class Scaled(keras.losses.Loss):
    def __call__(self, y_true, y_pred, sample_weight=None, scale=2.0):
        return scale * keras.ops.mean(y_true - y_pred)


def test_an_adopted_call_takes_the_arguments_of_its_class():
    losses = {"one": OfTwo(), "other": [Scaled(), "mse"]}
    for _ in range(2):  # A class is adopted once.
        adopt_own_calls(losses)
    one, scaled = losses["one"], losses["other"][0]
    a, b = keras.ops.ones([3]), keras.ops.zeros([3])
    for replica in (None, Replica(None, 0, 1.0, recorded=[])):
        with replica_context.entered(replica):
            assert float(scaled(a, b, None, 3.0)) == float(scaled(a, b, scale=3.0)) == 3.0
            # A trial takes 0 for what may be anything.
            expected = 0.0 if replica else 1.0
            assert float(one(a, b)) == expected and float(scaled(a, b, sample_weight=None)) == 2 * expected
