"""Models of shared_batches.py with metrics that compare the examples of a batch."""

import keras
from keras import layers, ops
from shared_models import case


def centered_error(y_true, y_pred):
    return ops.abs(y_true - y_pred + ops.mean(y_pred) ** 2)[:, 0]


class CenteredError(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(centered_error(y_true, y_pred))


@case
def a_metric_function_that_compares_examples():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1)], name="a_metric_function_that_compares_examples")
    model.compile("sgd", "mse", metrics=[centered_error])
    return model


@case
def a_metric_that_compares_examples():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(1)], name="a_metric_that_compares_examples")
    model.compile("sgd", "mse", metrics=[CenteredError(name="centered_error")])
    return model
