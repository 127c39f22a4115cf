"""Trains several models deterministically, on whatever cluster it runs, and writes what came out to the file it is given.

With a second argument, names separated by commas, it runs these cases only.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist

EXAMPLES = 300  # Batches of 32: the last has 12, which two workers share out; with 5 one worker has them alone.
generator = np.random.default_rng(3)
VECTORS = generator.normal(size=(360, 20)).astype("float32")
IDS = generator.integers(0, 40009, size=(360, 5)).astype("int32")
LABELS = generator.integers(0, 3, size=360)


def small():
    return [keras.Input((20,)), keras.layers.Dense(33, activation="relu")], VECTORS


def large():
    layers = [keras.layers.Dense(9001, activation="relu"), keras.layers.Dense(40, activation="tanh")]
    return [keras.Input((20,)), *layers], VECTORS


def table():
    return [keras.Input((5,), dtype="int32"), keras.layers.Embedding(40009, 16), keras.layers.Flatten()], IDS


def recurrent():
    return [keras.Input((5, 4)), keras.layers.LSTM(300)], VECTORS.reshape(360, 5, 4)


CASES = {  # name -> layers, optimizer, steps per execution, epochs
    "momentum": (small, lambda: keras.optimizers.SGD(0.1, momentum=0.9), 1, 8),
    "adam": (small, lambda: keras.optimizers.Adam(0.01), 1, 8),
    "shards": (large, lambda: keras.optimizers.SGD(0.1, momentum=0.9), 1, 2),
    "shards_averaged": (large, lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=3), 2, 2),
    "shards_as_a_whole": (large, lambda: keras.optimizers.Lamb(0.01), 1, 2),
    "rows_looked_up": (table, lambda: keras.optimizers.Adam(0.01), 1, 2),
    "shards_read_in_a_loop": (recurrent, lambda: keras.optimizers.Adam(0.01), 1, 2),
}


class Seen(keras.metrics.Metric):
    """How many examples there were."""

    def __init__(self):
        super().__init__(name="seen")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(tf.cast(tf.shape(y_true)[0], tf.float32))

    def result(self):
        return self.count.value


def compiled(layers, optimizer, steps=1, metrics=("accuracy",)):
    model = keras.Sequential([*layers, keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=list(metrics), steps_per_execution=steps)
    return model


def train(strategy, layers_of, optimizer_of, steps, epochs):
    with strategy.scope():
        keras.utils.set_random_seed(7)
        layers, inputs = layers_of()
        model = compiled(layers, optimizer_of(), steps)
    history = model.fit(
        inputs[:EXAMPLES],
        LABELS[:EXAMPLES],
        batch_size=32,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        validation_data=(inputs[EXAMPLES : EXAMPLES + 5], LABELS[EXAMPLES : EXAMPLES + 5]),
    ).history
    kinds = {type(getattr(v._value, "_v", v._value)).__name__ for v in model.trainable_variables}
    return {
        "history": history,
        "weights": [float(np.abs(weight).sum()) for weight in model.get_weights()],
        "iterations": int(model.optimizer.iterations.numpy()),
        "prediction": model.predict(inputs, verbose=0).tolist(),
        "kinds": sorted(kinds),
    }


def callbacks(strategy):
    """What callbacks see and do while steps are under way."""
    with strategy.scope():
        layers, inputs = small()
        model = compiled(layers, keras.optimizers.SGD(0.1), metrics=[Seen()])
    seen, done, weights = [], [], []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(logs["seen"])
            done.append(int(model.optimizer.iterations.numpy()))

        def on_epoch_begin(self, epoch, logs=None):
            weights.append(float(np.abs(model.get_weights()[0]).sum()))
            model.optimizer.learning_rate = 0.1 if epoch == 0 else 0.0

    model.fit(inputs[:EXAMPLES], LABELS[:EXAMPLES], batch_size=10, epochs=3, verbose=0, callbacks=[Watch()])
    return {"seen": seen, "done": done, "weights": weights}


def best_weights(strategy):
    """EarlyStopping brings back the weights of the best epoch."""
    with strategy.scope():
        layers, inputs = small()
        model = compiled(layers, keras.optimizers.SGD(0.1))
    stop = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    rise = keras.callbacks.LearningRateScheduler(lambda epoch: 0.05 if epoch < 2 else 50.0)
    held = inputs[EXAMPLES:], LABELS[EXAMPLES:]
    losses = model.fit(
        inputs[:EXAMPLES], LABELS[:EXAMPLES], epochs=9, verbose=0, validation_data=held, callbacks=[rise, stop]
    ).history["val_loss"]
    return {"losses": losses, "after": model.evaluate(*held, verbose=0, return_dict=True)["loss"]}


strategy = tfdist.strategy()
only = sys.argv[2].split(",") if len(sys.argv) > 2 else [*CASES, "callbacks", "best_weights"]
results = {}
for name in only:
    results[name] = globals()[name](strategy) if name not in CASES else train(strategy, *CASES[name])
    print(name, "done", flush=True)
results["bytes"] = getattr(strategy.extended, "_tfdist_bytes", [])
with open(sys.argv[1], "w") as file:
    json.dump(results, file)
