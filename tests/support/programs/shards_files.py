"""Saves a trained model with sharded variables (argument `save`), or loads the files and writes the differences (`load`)."""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist

generator = np.random.default_rng(3)
X, Y = generator.integers(0, 60013, size=(64, 5)).astype("int32"), generator.integers(0, 3, size=64)
strategy = tfdist.strategy()


def compiled():
    layers = [
        keras.Input((5,), dtype="int32"),
        keras.layers.Embedding(60013, 16),
        keras.layers.Flatten(),
        keras.layers.Dense(3),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)
    return model


with strategy.scope():
    model = compiled()
    if sys.argv[1] == "save":
        model.fit(X, Y, batch_size=16, epochs=2, verbose=0)
        model.save("model.keras")
        model.save_weights("model.weights.h5")
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).save("checkpoint")
        np.save("prediction.npy", model.predict(X, verbose=0))
    else:
        models = {"keras": keras.saving.load_model("model.keras"), "weights": compiled(), "checkpoint": model}
        models["weights"].load_weights("model.weights.h5")
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        checkpoint.restore(tf.train.latest_checkpoint(".")).assert_consumed()
        saved = np.load("prediction.npy")
        found = {name: float(np.abs(m.predict(X, verbose=0) - saved).max()) for name, m in models.items()}
        kernel = models["weights"].layers[-1].kernel
        expected = kernel.numpy()
        expected[1, 2] += 1
        kernel._value.scatter_nd_add([[1, 2]], [1.0])
        found["elements"] = float(np.abs(tf.gather_nd(kernel._value, [[1, 2], [4, 0]]) - expected[[1, 4], [2, 0]]).max())
        shards = len(getattr(model.layers[0].embeddings._value, "shards", [0]))
        steps = [int(m.optimizer.iterations.numpy()) for m in (models["keras"], model)]
        with open("loaded.json", "w") as file:
            json.dump({"shards": shards, "steps": steps, "differences": found}, file)
