"""Keras' trainer with the logs of a strategy."""

import keras
import tensorflow as tf

from tfdist.strategies.keras_hooks import trainer


def test_logs_are_numbers_where_they_can_be(monkeypatch):
    class Hooks:
        def end_epoch(self, model, logs):
            return logs

    class Model:
        distribute_strategy = None

    monkeypatch.setattr(trainer, "hooks_of", lambda strategy: Hooks())
    rows, text = tf.constant([1.0, 2.0]), tf.constant("text")
    total = keras.Variable(2.0)
    logs = {"loss": tf.constant(0.5), "count": tf.constant(3), "mean": 0.25, "rows": rows, "text": text, "total": total}
    result = trainer._metrics_result_or_logs(lambda model, logs: {}, Model(), logs)
    assert result["rows"] is rows and result["text"] is text
    total.assign(7.0)  # As a validation does.
    numbers = {"loss": 0.5, "count": 3.0, "mean": 0.25, "total": 2.0}
    assert {name: result[name] for name in numbers} == numbers
    assert all(type(result[name]) is float for name in numbers)
