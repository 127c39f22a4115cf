"""Trains a small model, saves it in every way, loads it and writes what came of it: `every_strategy.py RESULTS`."""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist

generator = np.random.default_rng(3)
X = generator.normal(size=(256, 6)).astype("float32")
Y = (X @ generator.normal(size=(6, 1))).astype("float32") + 1.0

strategy = tfdist.strategy()
with strategy.scope():
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 100, 0.5)
    model.compile(keras.optimizers.Adam(rate), "mse", metrics=["mae"], steps_per_execution=2)
checkpoint = keras.callbacks.ModelCheckpoint("best.keras", monitor="val_loss", save_best_only=True)
history = model.fit(
    X[:192],
    Y[:192],
    batch_size=16,
    epochs=6,
    shuffle=False,
    validation_data=(X[192:], Y[192:]),
    callbacks=[checkpoint],
    verbose=0,
)
model.save("model.keras")
model.save_weights("model.weights.h5")
path = tf.train.Checkpoint(model=model).save("checkpoint/saved")
results = {
    "strategy": type(strategy).__name__,
    "replicas": strategy.num_replicas_in_sync,
    "history": history.history,
    "iterations": int(model.optimizer.iterations.numpy()),
    # The chief writes the files. Tasks that compute together wait here for each other, and so for the files.
    "evaluate": model.evaluate(X, Y, batch_size=32, verbose=0, return_dict=True),
}
with strategy.scope():
    loaded = keras.models.load_model("model.keras")
results["loaded"] = int(loaded.optimizer.iterations.numpy())
results["predict"] = loaded.predict(X, batch_size=32, verbose=0).tolist()
results["loss"] = float(np.square(results["predict"] - Y).mean())
# What a step more changes, the optimizer's slots included, is taken back by each of the files.
expected = [variable.numpy() for variable in model.trainable_variables]
for name, load in (
    ("weights", lambda: model.load_weights("model.weights.h5")),
    ("checkpoint", lambda: tf.train.Checkpoint(model=model).restore(path)),
):
    model.train_on_batch(X[:16], Y[:16])
    changed = [variable.numpy() for variable in model.trainable_variables]
    load()
    restored = [variable.numpy() for variable in model.trainable_variables]
    results[name] = {
        "changed": not all(map(np.array_equal, changed, expected)),
        "restored": all(map(np.array_equal, restored, expected)),
    }
if tfdist.is_chief():
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(results, file)
