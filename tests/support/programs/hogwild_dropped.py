"""Trains models one after the other under hogwild, of which a weight outlives its model, and looks what is collected."""

import gc

import keras
import numpy as np
import own_cluster

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
own_cluster.serve({"strategy": "hogwild", "sync_period": 16}, worker=2, ps=1)
strategy = tfdist.strategy()
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
