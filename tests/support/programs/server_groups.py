"""Trains several models deterministically, each on a cluster and in this process, and writes the results to results.json.

    server_groups.py CLUSTER CASE ...

CASE is the name of a model, `watched`, or `load:FOLDER` for the files that another run has saved in a folder.
"""

import contextlib
import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist

EXAMPLES = 300  # The last batch of 32 has 12. The validation data has 5, an odd number for two workers.
generator = np.random.default_rng(3)
VECTORS = generator.normal(size=(360, 20)).astype("float32")
IDS = generator.integers(0, 40009, size=(360, 5)).astype("int32")
LABELS = generator.integers(0, 3, size=360)

PARTS = {  # name -> inputs, layers. A model has some of them side by side.
    "small": (VECTORS, lambda: [keras.layers.Dense(33, "relu")]),
    "large": (VECTORS, lambda: [keras.layers.Dense(9001, "relu"), keras.layers.Dense(40, "tanh")]),
    "table": (IDS, lambda: [keras.layers.Embedding(40009, 16), keras.layers.Flatten()]),
    "loop": (VECTORS.reshape(360, 5, 4), lambda: [keras.layers.LSTM(150)]),  # Its kernel is large, and on one ps.
    "loop in shards": (VECTORS.reshape(360, 5, 4), lambda: [keras.layers.LSTM(300)]),
}
MODELS = {  # name -> parts, optimizer, steps per execution
    "momentum": (("small", "large", "table"), lambda: keras.optimizers.SGD(0.1, momentum=0.9), 1),
    "as_a_whole": (("large",), lambda: keras.optimizers.Lamb(0.01), 1),
    "averaged": (
        ("large", "table", "loop"),
        lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_overwrite_frequency=3),
        2,
    ),
    "adam": (("small", "loop in shards"), lambda: keras.optimizers.Adam(0.01), 1),
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


def compiled(parts, optimizer, steps=1, metrics=("accuracy",)):
    """Returns a model, and the layers of each of its parts."""
    inputs, outputs, layers = [], [], {}
    for name in parts:
        data, made = PARTS[name]
        inputs.append(keras.Input(data.shape[1:], dtype=data.dtype))
        layers[name], hidden = made(), inputs[-1]
        for layer in layers[name]:
            hidden = layer(hidden)
        outputs.append(hidden)
    joined = keras.layers.Concatenate()(outputs) if len(outputs) > 1 else outputs[0]
    model = keras.Model(inputs, keras.layers.Dense(3, name="classes")(joined))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=list(metrics), steps_per_execution=steps)
    return model, layers


def data(parts, begin=0, end=None):
    return [PARTS[name][0][begin:end] for name in parts], LABELS[begin:end]


def train(scope, name):
    parts, optimizer_of, steps = MODELS[name]
    with scope():
        keras.utils.set_random_seed(7)
        model, layers = compiled(parts, optimizer_of(), steps)
    start = {part: [weight for layer in layers[part] for weight in layer.get_weights()] for part in parts}
    held = {} if name == "as_a_whole" else {"validation_data": data(parts, EXAMPLES, EXAMPLES + 5)}
    x, y = data(parts, 0, EXAMPLES)
    history = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0, **held).history
    weights = {part: [weight for layer in layers[part] for weight in layer.get_weights()] for part in parts}
    if name == "momentum" and scope is not contextlib.nullcontext:
        save(model)
    kinds = {part: {kind_of(weight) for layer in layers[part] for weight in layer.weights} for part in parts}
    return {
        "history": history,
        "weights": {part: [float(np.abs(weight).sum()) for weight in weights[part]] for part in parts},
        "changes": {
            part: [float(np.abs(new - old).sum()) for new, old in zip(weights[part], start[part], strict=True)]
            for part in parts
        },
        "iterations": int(model.optimizer.iterations.numpy()),
        "prediction": model.predict(data(parts)[0], verbose=0).tolist() if held else [],
        "kinds": {part: sorted(found) for part, found in kinds.items()},
    }


def kind_of(weight):
    return type(getattr(weight._value, "_v", weight._value)).__name__


def watched(strategy):
    """Returns what callbacks see while steps are in flight, and what follows from a learning rate, and early stopping.

    The weights stay in the third epoch, and are too large after the fourth one.
    """
    parts = ("small", "table")
    with strategy.scope():
        model, layers = compiled(parts, keras.optimizers.Adam(0.01), metrics=[Seen()])
    seen, done, weights = [], [], []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(logs["seen"])
            done.append(int(model.optimizer.iterations.numpy()))

        def on_epoch_begin(self, epoch, logs=None):
            weights.append([float(np.abs(layers[part][0].get_weights()[0]).sum()) for part in parts])
            model.optimizer.learning_rate = (0.01, 0.01, 0.0, 50.0)[min(epoch, 3)]

    stop = keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True)
    held = data(parts, EXAMPLES)
    x, y = data(parts, 0, EXAMPLES)
    history = model.fit(x, y, batch_size=10, epochs=9, verbose=0, validation_data=held, callbacks=[Watch(), stop]).history
    after = model.evaluate(*held, verbose=0, return_dict=True)["loss"]
    return {
        "seen": seen,
        "done": done,
        "weights": weights,
        "loss": history["loss"],
        "held": history["val_loss"],
        "after": after,
    }


def values_of(model):
    return [*model.get_weights(), *(np.asarray(variable) for variable in model.optimizer.variables)]


def save(model):
    model.save("model.keras")
    model.save_weights("model.weights.h5")
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).save("checkpoint")
    np.savez("values.npz", *values_of(model))


def load(scope, folder):
    """Returns how far what the files of a folder give is from what was saved, and in how many shards it is."""
    parts, optimizer_of, _ = MODELS["momentum"]
    with scope():
        models = {name: compiled(parts, optimizer_of())[0] for name in ("weights", "checkpoint")}
        models["keras"] = keras.saving.load_model(folder / "model.keras")
        models["checkpoint"].optimizer.build(models["checkpoint"].trainable_variables)
    models["weights"].load_weights(folder / "model.weights.h5")
    checkpoint = tf.train.Checkpoint(model=models["checkpoint"], optimizer=models["checkpoint"].optimizer)
    checkpoint.restore(tf.train.latest_checkpoint(str(folder))).assert_consumed()
    saved = list(np.load(folder / "values.npz").values())
    found = {name: values_of(model) for name, model in models.items() if name != "weights"}
    found["weights"] = models["weights"].get_weights()
    assert all(len(found[name]) == len(saved) for name in ("keras", "checkpoint"))
    differences = {
        name: max(float(np.abs(got - value).max()) for got, value in zip(values, saved, strict=False))
        for name, values in found.items()
    }
    kernel = models["weights"].get_layer("classes").kernel
    expected = kernel.numpy()
    expected[1, 2] += 1
    expected[3] = expected[0]
    kernel._value.scatter_nd_add([[1, 2]], [1.0])
    kernel._value.batch_scatter_update(tf.IndexedSlices(expected[:1], [3]))
    elements = tf.gather_nd(kernel._value, [[1, 2], [4, 0], [3, 0]])
    differences["elements"] = float(np.abs(elements - expected[[1, 4, 3], [2, 0, 0]]).max())
    table = next(layer for layer in models["checkpoint"].layers if isinstance(layer, keras.layers.Embedding))
    return {
        "shards": len(getattr(getattr(table.embeddings._value, "_v", table.embeddings._value), "shards", [0])),
        "steps": [int(models[name].optimizer.iterations.numpy()) for name in ("keras", "checkpoint")],
        "differences": differences,
    }


def main():
    strategy, results = tfdist.strategy(sys.argv[1]), {}
    for case in sys.argv[2:]:
        if case == "averaged":  # The first one with a large variable that is on one ps.
            results["bytes"] = list(strategy.extended._tfdist_bytes)
        if case in MODELS:
            results[case] = {
                "group": train(strategy.scope, case),
                "alone": train(contextlib.nullcontext, case),
            }
        elif case == "watched":
            results[case] = watched(strategy)
        else:
            results["loaded"] = load(strategy.scope, Path(case.removeprefix("load:")))
        print(case, "done", flush=True)
    with open("results.json", "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
