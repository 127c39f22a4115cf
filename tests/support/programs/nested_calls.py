"""`nested_calls.py STRATEGY`: calls of evaluate, predict and test_on_batch inside `fit`; prints what callbacks saw as JSON."""

import dataclasses
import json
import sys

import keras
import numpy as np

import tfdist

BATCHES, EPOCHS, INSIDE = 40, 2, (5, 20)
X = np.random.default_rng(0).normal(size=(BATCHES * 8, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Calls(keras.callbacks.Callback):
    def __init__(self, call):
        super().__init__()
        self.call = call
        self.batches = 0
        self.results = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if batch in INSIDE and self.call is not None:
            self.results.append(self.call(self.model))


CALLS = {
    "none": None,
    "predict": lambda model: float(np.square(model.predict(X, verbose=0) - Y).mean()),
    "evaluate": lambda model: model.evaluate(X, Y, verbose=0),
    "test_on_batch": lambda model: float(model.test_on_batch(X, Y)),
}


def main():
    cluster = tfdist.read({"chief": 1, "worker": 2, "ps": 1})
    if sys.argv[1] == "hogwild":
        cluster = dataclasses.replace(cluster, strategy="hogwild", sync_period=4)
    strategy = tfdist.strategy(cluster)
    found = {}
    for name, call in CALLS.items():
        calls = Calls(call)
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
            model.compile(keras.optimizers.SGD(0.01), "mse")
        record = model.fit(X, Y, batch_size=8, epochs=EPOCHS, verbose=0, callbacks=[calls], validation_data=(X, Y)).history
        found[name] = {
            "batches": calls.batches,
            "iterations": int(model.optimizer.iterations.numpy()),
            "inside": calls.results,
            "final": model.evaluate(X, Y, verbose=0),
            **record,
        }
    print("FOUND", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
