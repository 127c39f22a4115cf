"""Errors in a step, and training after them."""

import keras
import tensorflow as tf

from contract.common import NUMBERED, X, Y, case, check_seen, compiled, counting, error_of, fit, plain


@case("error_in_a_step")
def error_in_a_step(strategy):
    bad = tf.data.Dataset.from_tensor_slices((X, Y)).batch(32)
    bad = bad.map(lambda x, y: (tf.debugging.check_numerics(x / 0.0, "in the data"), y))
    data = error_of(lambda: fit(plain(strategy), bad, epochs=1))

    class Breaks(keras.layers.Layer):
        def call(self, x):
            return tf.debugging.check_numerics(x / 0.0, "in the step")

    model = compiled(strategy, lambda: keras.Sequential([keras.Input((4,)), Breaks(), keras.layers.Dense(1)]), "sgd", "mse")
    step = error_of(lambda: fit(model, X, Y, epochs=1))
    model = counting(strategy)
    check_seen(fit(model, X, NUMBERED, epochs=1), 1)
    return {"exact": {"data": "in the data : Tensor had" in data, "step": "in the step : Tensor had" in step}}
