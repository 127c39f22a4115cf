"""A wait on a task of the cluster ends, whatever happens to the clock of its machine."""

import itertools

import pytest
import tensorflow as tf

from tfdist.strategies.hogwild.synchronization import waiting


@pytest.mark.parametrize("ahead", [0.0, 3600.0, -3600.0])
def test_a_wait_ends_in_time_although_the_clock_is_set_meanwhile(monkeypatch, ahead):
    real, asked, looked = tf.timestamp, tf.Variable(0), itertools.count()

    def set_meanwhile():
        return real() + tf.where(tf.equal(asked.assign_add(1), 1), tf.constant(0.0, tf.float64), ahead)

    def condition():
        return tf.numpy_function(lambda: next(looked) < 2000, [], tf.bool)  # At least 20 s, if nothing else ends it.

    monkeypatch.setattr(tf, "timestamp", set_meanwhile)
    tf.function(lambda: waiting.wait_while(condition, 0.2, []))()
    assert (2 if ahead <= 0 else 1) <= next(looked) < 1000
