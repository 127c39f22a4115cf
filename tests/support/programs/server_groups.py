"""Trains several models deterministically and writes the results to a file.

    server_groups.py RESULTS CASES

CASES are names of cases, separated by commas.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist

EXAMPLES = 300  # The last batch of 32 has 12. The validation data has 5, an odd number for two workers.
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


def recurrent_on_one_ps():
    return [keras.Input((5, 4)), keras.layers.LSTM(150)], VECTORS.reshape(360, 5, 4)


CASES = {  # name -> layers, optimizer, steps per execution, epochs
    "momentum": (small, lambda: keras.optimizers.SGD(0.1, momentum=0.9), 1, 8),
    "adam": (small, lambda: keras.optimizers.Adam(0.01), 1, 8),
    "shards": (large, lambda: keras.optimizers.SGD(0.1, momentum=0.9), 1, 2),
    "shards_averaged": (large, lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=3), 2, 2),
    "shards_as_a_whole": (large, lambda: keras.optimizers.Lamb(0.01), 1, 2),
    "rows_looked_up": (table, lambda: keras.optimizers.Adam(0.01), 1, 2),
    "shards_read_in_a_loop": (recurrent, lambda: keras.optimizers.Adam(0.01), 1, 2),
    "large_read_in_a_loop": (recurrent_on_one_ps, lambda: keras.optimizers.Adam(0.01), 2, 2),
}


class Seen(keras.metrics.Metric):
    """Counts the examples."""

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
    """Returns what callbacks see while steps are in flight, and changes the learning rate in one."""
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
    """Returns the losses with EarlyStopping, and the loss after it has restored the best weights."""
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


class OwnVariable(Seen):
    def __init__(self):
        super().__init__()
        self.count = keras.Variable(0.0)


def what_cannot_work_says_so(strategy):
    messages = {}
    for name in ("metric", "lora"):
        with strategy.scope():
            layers, inputs = small()
            model = compiled(layers, keras.optimizers.SGD(0.1), metrics=[OwnVariable()] if name == "metric" else ())
        if name == "lora":
            model.layers[0].enable_lora(2)
        try:
            model.fit(inputs, LABELS, epochs=1, verbose=0)
        except ValueError as error:
            messages[name] = str(error)
    return messages


strategy = tfdist.strategy()
results = {}
for name in sys.argv[2].split(","):
    if name == "large_read_in_a_loop":  # The only one with a large variable that is on one ps.
        results["bytes"] = list(getattr(strategy.extended, "_tfdist_bytes", []))
    results[name] = globals()[name](strategy) if name not in CASES else train(strategy, *CASES[name])
    print(name, "done", flush=True)
with open(sys.argv[1], "w") as file:
    json.dump(results, file)
