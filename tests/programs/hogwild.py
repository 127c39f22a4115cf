"""Trains deterministically, in whatever cluster it runs, and writes what came out to the file it is given."""

import json
import sys

import keras
import numpy as np

import tfdist

with tfdist.strategy().scope():
    keras.utils.set_random_seed(11)
    layers = [
        keras.layers.Dense(16, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(3),
    ]
    model = keras.Sequential([keras.Input((5,)), *layers])
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 10, 0.8)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), loss, metrics=["accuracy"])

generator = np.random.default_rng(5)
x = generator.normal(size=(250, 5)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32") + (x[:, 0] > 1)
held = (x[200:], y[200:])
# 13 batches, the last smaller than the others: three exchanges and one batch more in each epoch.
history = model.fit(x[:200], y[:200], batch_size=16, epochs=3, shuffle=False, validation_data=held, verbose=0).history
batches = [model.train_on_batch(x[:50], y[:50]) for _ in range(6)]
results = {
    "history": {name: [float(value) for value in values] for name, values in history.items()},
    "batches": [[float(value) for value in values] for values in batches],
    "weights": {weight.path: weight.numpy().tolist() for weight in model.weights if "seed" not in weight.path},
    "slots": [variable.numpy().tolist() for variable in model.optimizer.variables],
    "predictions": model.predict(x, verbose=0).tolist(),
}
with open(sys.argv[1], "w") as file:
    json.dump(results, file)
