"""Trains under hogwild with batches that are too large for one call of a period, and with ones that are not."""

import keras
import numpy as np
import own_cluster
import tensorflow as tf

import tfdist
from tfdist.strategies.coordinator.calls import call_size
from tfdist.strategies.hogwild.group_calls import GroupCalls

own_cluster.serve({"strategy": "hogwild", "sync_period": 16}, worker=1, ps=1)
strategy = tfdist.strategy()
x = np.random.default_rng(0).normal(size=(1280, 4)).astype("float32")
prepare, made = GroupCalls.prepare, []


def note_and_prepare(self, batches, *args, **kwargs):
    made.append(len(batches))
    return prepare(self, batches, *args, **kwargs)


GroupCalls.prepare = note_and_prepare


def trained(data):
    made.clear()
    keras.utils.set_random_seed(11)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    losses = model.fit(data, epochs=3, verbose=0).history["loss"]
    return [losses, *model.get_weights()], set(made)


# Batches of 160 bytes, and of 168 that do not travel as one message, because some values are of tf.bool.
plain = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(8)
masked = plain.map(lambda x, y: (x, y, tf.ones([8, 1], tf.bool)))
call_size.MOST_CALL_BYTES = 2**29
at_once, calls = trained(plain)
assert 16 in calls, calls
call_size.MOST_CALL_BYTES = 1000
for data in (plain, masked):
    by_parts, calls = trained(data)
    assert max(calls) <= 6, calls
    for got, expected in zip(by_parts, at_once, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
print("fine")
