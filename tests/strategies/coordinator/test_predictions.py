"""Predictions are computed ahead of Keras, but not where a callback acts between those of a single worker group."""

from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from tfdist.strategies.coordinator.hooks import CoordinatorHooks
from tfdist.strategies.coordinator.prediction_loop import PredictionLoop
from tfdist.strategies.inputs.input_feed import FedDataset


class Acts(keras.callbacks.Callback):
    def on_predict_batch_end(self, batch, logs=None):
        """May reset a state, or assign a weight."""


class Executions:
    """Executions that note their order."""

    limit = 2

    def __init__(self, is_exact):
        self.is_exact, self.order = is_exact, []

    def wait_until_idle(self):
        """Nothing is in flight."""

    def schedule(self, batch):
        self.order.append(f"begin {int(batch)}")
        return batch

    def result_of(self, batch):
        self.order.append(f"result {int(batch)}")
        return batch


@pytest.mark.parametrize(
    ("is_exact", "callbacks", "ahead"),
    [(True, [Acts()], 0), (True, [keras.callbacks.Callback()], 2), (True, [], 2), (False, [Acts()], 2)],
)
def test_a_prediction_begins_after_the_callbacks_of_the_one_before(is_exact, callbacks, ahead):
    executions = Executions(is_exact)
    hooks = SimpleNamespace()
    assert CoordinatorHooks.callbacks(hooks, callbacks) is callbacks
    model = SimpleNamespace(_flatten_layers=list, predict_step=None)
    predict = PredictionLoop(
        model,
        executions,
        prepare=lambda batches, spec: batches[0],
        check=lambda: None,  # As with one replica.
        has_batch_callbacks=lambda: hooks._has_batch_callbacks,
    )
    for batch in FedDataset(tf.data.Dataset.range(5)):
        hooks._has_batch_callbacks &= bool(len(executions.order) < 4)  # A callback may call `predict` itself.
        predict([batch])
    results = [executions.order.index(f"result {number}") for number in range(5)]
    begins = [executions.order.index(f"begin {number}") for number in range(5)]
    for number in range(5):
        assert sum(begin < results[number] for begin in begins) == min(5, number + 1 + ahead)
