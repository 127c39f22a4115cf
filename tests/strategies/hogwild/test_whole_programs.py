"""Programs that train under hogwild: several models one after the other, and batches of many bytes."""

import pytest

pytestmark = pytest.mark.cluster

DROPPED = """
import dataclasses, gc

import keras
import numpy as np

import tfdist
from tfdist.strategies.hogwild.replicas.chief_values import ChiefValues
from tfdist.strategies.hogwild.replicas.collector import Collector

release, collect, releasing, collected = ChiefValues.release, Collector.collect, [], []


def note_release(self, block):
    releasing.append(block)
    release(self, block)
    releasing.pop()


def note_collect(self, *args, **kwargs):
    collected.extend(releasing)
    return collect(self, *args, **kwargs)


ChiefValues.release, Collector.collect = note_release, note_collect
cluster = dataclasses.replace(tfdist.read({"chief": 1, "worker": 2, "ps": 1}), strategy="hogwild", sync_period=16)
strategy = tfdist.strategy(cluster)
x = np.random.default_rng(0).normal(size=(1280, 4)).astype("float32")


def trained_kernel():
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    model.fit(x, x.sum(1, keepdims=True), batch_size=8, epochs=4, verbose=0)
    return model.layers[-1].kernel


kept = trained_kernel()
gc.collect()
trained_kernel()
assert len(collected) == 1, collected  # The kernel of the first model, not its optimizer.
assert abs(kept.numpy() - 1).max() < 0.05, kept.numpy()
gc.collect()
trained_kernel()
assert len(collected) == 1, collected
print("fine")
"""


def test_a_weight_that_outlives_its_model_keeps_its_value_and_nothing_is_collected_for_others(start, script):
    job = start(script(DROPPED))
    assert job.wait(280) == 0 and "fine" in job.output, job.output[-3000:]


LARGE = """
import dataclasses

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.strategies.coordinator.calls import call_size
from tfdist.strategies.hogwild.group_calls import GroupCalls

cluster = dataclasses.replace(tfdist.read({"chief": 1, "worker": 1, "ps": 1}), strategy="hogwild", sync_period=16)
strategy = tfdist.strategy(cluster)
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
for data in (plain, masked):
    call_size.MOST_CALL_BYTES = 2**29
    at_once, calls = trained(data)
    assert 16 in calls, calls
    call_size.MOST_CALL_BYTES = 1000
    by_parts, calls = trained(data)
    assert max(calls) <= 6, calls
    for got, expected in zip(by_parts, at_once, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
print("fine")
"""


def test_a_period_that_takes_several_calls_because_of_its_bytes_trains_as_with_one_call(start, script):
    job = start(script(LARGE))
    assert job.wait(280) == 0 and "fine" in job.output, job.output[-3000:]
