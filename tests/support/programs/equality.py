"""Trains deterministically on any cluster and writes history and predictions to the file named by its argument."""

import json
import sys

import keras
import numpy as np

import tfdist

with tfdist.strategy().scope():
    keras.utils.set_random_seed(11)
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(7, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    )
    model.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 40), clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)],
    )
generator = np.random.default_rng(5)
x = generator.normal(size=(210, 5)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32") + (x[:, 0] > 1)
history = model.fit(
    x[:160], y[:160], batch_size=16, epochs=4, shuffle=False, validation_data=(x[160:], y[160:]), verbose=0
).history
with open(sys.argv[1], "w") as file:
    json.dump(
        {
            "history": {name: [float(v) for v in values] for name, values in history.items()},
            "evaluate": {name: float(v) for name, v in model.evaluate(x, y, verbose=0, return_dict=True).items()},
            "predict": model.predict(x, verbose=0).tolist(),
            "iterations": int(model.optimizer.iterations.numpy()),
        },
        file,
    )
