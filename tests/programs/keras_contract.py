"""Runs on every task of a cluster: goes through what Keras promises and writes what it saw to results.json.

Each case returns numbers; test_keras_contract.py knows what they must be.
"""

import contextlib
import json
import sys
import tempfile
import traceback

import keras
import numpy as np
import tensorflow as tf

import tfdist

CASES = {}
N = 250  # not divisible by the batch size
IDS = np.arange(N, dtype="float32")
X = np.stack([IDS / N, np.sin(IDS), np.cos(IDS), np.ones(N)], axis=1).astype("float32")
Y = (2 * X[:, :1] - X[:, 1:2]).astype("float32")
LABELS = (np.sin(IDS) > 0).astype("int32")


def case(function):
    CASES[function.__name__] = function
    return function


@keras.saving.register_keras_serializable()
class Seen(keras.metrics.Metric):
    """Sums over the examples seen: how many, their numbers, the squares of their numbers."""

    def __init__(self, name="seen", **kwargs):
        super().__init__(name=name, **kwargs)
        self.total = self.add_variable(shape=(3,), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        ids = keras.ops.round(keras.ops.cast(y_true[:, -1], "float32"))
        sums = [keras.ops.sum(keras.ops.ones_like(ids)), keras.ops.sum(ids), keras.ops.sum(ids * ids)]
        self.total.assign(self.total + keras.ops.stack(sums))

    def result(self):
        return {"count": self.total[0], "ids": self.total[1], "squares": self.total[2]}


def numbered_targets():
    return np.concatenate([Y, IDS[:, None]], axis=1)


@keras.saving.register_keras_serializable()
def loss_without_number(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true[:, :1] - y_pred), axis=-1)


def regression(optimizer="sgd", loss=loss_without_number, metrics=None, **compile_arguments):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    model.compile(optimizer, loss, metrics=[Seen()] if metrics is None else metrics, **compile_arguments)
    return model


def history(model, *args, **kwargs):
    kwargs.setdefault("verbose", 0)
    record = model.fit(*args, **kwargs).history
    return {name: [float(v) for v in values] for name, values in record.items()} | {
        "iterations": int(model.optimizer.iterations.numpy())
    }


@case
def numpy_arrays_once_per_epoch(strategy):
    return history(regression(), X, numbered_targets(), batch_size=32, epochs=3)


@case
def finite_dataset_once_per_epoch(strategy):
    dataset = tf.data.Dataset.from_tensor_slices((X, numbered_targets())).shuffle(N).batch(32)
    return history(regression(), dataset, epochs=3)


@case
def dataset_of_unknown_size_once_per_epoch(strategy):
    dataset = tf.data.Dataset.from_tensor_slices((X, numbered_targets())).filter(lambda x, y: True).batch(32)
    return history(regression(), dataset, epochs=2)


@case
def generator_once(strategy):
    def batches():
        for begin in range(0, N, 50):
            yield X[begin : begin + 50], numbered_targets()[begin : begin + 50]

    return history(regression(), batches(), epochs=1)


@case
def py_dataset_once_per_epoch(strategy):
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            part = slice(50 * index, 50 * index + 50)
            return X[part], numbered_targets()[part]

    return history(regression(), Batches(), epochs=2)


@case
def infinite_dataset_with_steps_per_epoch(strategy):
    dataset = tf.data.Dataset.from_tensor_slices((X, numbered_targets())).repeat().batch(25)
    return history(regression(), dataset, epochs=3, steps_per_epoch=10)


@case
def steps_per_execution(strategy):
    return history(regression(steps_per_execution=3), X, numbered_targets(), batch_size=32, epochs=2)


@case
def validation_split_and_data(strategy):
    split = history(regression(), X, numbered_targets(), validation_split=0.2, batch_size=25, epochs=2)
    data = history(regression(), X, numbered_targets(), validation_data=(X[:60], numbered_targets()[:60]), epochs=2)
    return {"split": split, "data": data}


@case
def evaluate_and_predict_equal_one_process(strategy):
    model = regression(metrics=["mae"], loss="mse")
    model.fit(X, Y, epochs=2, verbose=0)
    here = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    weights = model.get_weights()
    kernel, bias, kernel2, bias2 = weights
    expected = np.tanh(X @ kernel + bias) @ kernel2 + bias2
    del here
    got = model.evaluate(X, Y, batch_size=32, verbose=0, return_dict=True)
    predicted = model.predict(X, batch_size=32, verbose=0)
    return {
        "mse": [got["loss"], float(np.mean((expected - Y) ** 2))],
        "mae": [got["mae"], float(np.mean(np.abs(expected - Y)))],
        "shape": list(predicted.shape),
        "difference": float(np.abs(predicted - expected).max()),
        "steps": list(model.predict(X, batch_size=32, steps=2, verbose=0).shape),
        "dataset": list(model.predict(tf.data.Dataset.from_tensor_slices(X).batch(100), verbose=0).shape),
        "on_batch": list(model.predict_on_batch(X[:7]).shape),
        "order": float(np.abs(model.predict_on_batch(X[:7]) - expected[:7]).max()),
    }


@case
def on_batch_functions(strategy):
    model = regression(loss="mse", metrics=["mae"])
    before = model.test_on_batch(X, Y, return_dict=True)
    for _ in range(20):
        after = model.train_on_batch(X, Y, return_dict=True)
    return {"before": before["loss"], "after": after["loss"], "iterations": int(model.optimizer.iterations.numpy())}


@case
def weights_of_classes_and_samples(strategy):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.0), loss, weighted_metrics=["accuracy"])
    plain = history(model, X, LABELS, epochs=1)["loss"][0]
    zero = history(model, X, LABELS, epochs=1, class_weight={0: 0.0, 1: 0.0})["loss"][0]
    double = history(model, X, LABELS, epochs=1, sample_weight=np.full(N, 2.0))["loss"][0]
    return {"plain": plain, "zero": zero, "double": double}


@case
def callbacks(strategy):
    folder = tempfile.mkdtemp()
    seen = {"batches": 0, "logs": []}

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen["batches"] += 1
            seen["logs"].append(sorted(logs))

    model = regression(keras.optimizers.SGD(0.0), loss="mse", metrics=["mae"])
    stopped = history(
        model,
        X,
        Y,
        epochs=20,
        validation_data=(X, Y),
        callbacks=[
            Watch(),
            keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, restore_best_weights=True),
            keras.callbacks.ModelCheckpoint(f"{folder}/best.keras", save_best_only=True),
            keras.callbacks.CSVLogger(f"{folder}/log.csv"),
            keras.callbacks.LearningRateScheduler(lambda epoch: 0.5 * 10.0**-epoch),
            keras.callbacks.TerminateOnNaN(),
        ],
    )
    return {
        "epochs": len(stopped["loss"]),
        "rates": stopped["learning_rate"],
        "batches": seen["batches"],
        "names": [list(names) for names in {tuple(names) for names in seen["logs"]}],
        "csv_lines": len(open(f"{folder}/log.csv").readlines()),
        "iterations": stopped["iterations"],
    }


@case
def stop_training_in_the_middle_of_an_epoch(strategy):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                self.model.stop_training = True

    model = regression()
    got = history(model, X, numbered_targets(), batch_size=1, epochs=5, callbacks=[Stop()])
    return {"epochs": len(got["loss"]), "steps": got["iterations"]}


@case
def stock_optimizers(strategy):
    names = ["SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Adafactor", "Nadam", "Ftrl", "Lion", "Lamb"]
    names += ["Muon"]
    done = {}
    for name in names:
        model = regression(getattr(keras.optimizers, name)(1e-3), loss="mse", metrics=[])
        done[name] = history(model, X, Y, epochs=2)["iterations"]
    return done


@case
def clipping_schedule_and_average(strategy):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    model = regression(keras.optimizers.Adam(schedule, global_clipnorm=1.0, use_ema=True), loss="mse", metrics=[])
    got = history(model, X, Y, epochs=5)
    return {"iterations": got["iterations"], "rate": float(model.optimizer.learning_rate), "loss": got["loss"]}


@case
def custom_train_step(strategy):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(1)

        def call(self, x):
            return self.layer(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return {"own": loss}

    keras.utils.set_random_seed(3)
    model = Own()
    model.compile("sgd")
    return history(model, X, Y, epochs=20)


@case
def functional_with_several_inputs_and_outputs(strategy):
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    both = keras.layers.Dense(4)(keras.layers.Concatenate()([a, b]))
    first, second = keras.layers.Dense(1, name="first")(both), keras.layers.Dense(1, name="second")(both)
    model = keras.Model({"a": a, "b": b}, {"first": first, "second": second})
    model.compile("adam", {"first": "mse", "second": "mae"})
    got = history(model, {"a": X, "b": -X}, {"first": Y, "second": -Y}, epochs=2)
    predicted = model.predict({"a": X, "b": -X}, verbose=0)
    return {"names": sorted(got), "shapes": {name: list(value.shape) for name, value in predicted.items()}}


@case
def normalization_dropout_embedding(strategy):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(N, 8),
            keras.layers.Flatten(),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(2),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    ids = np.stack([np.arange(N)] * 3, axis=1)
    got = history(model, ids, LABELS, epochs=30)
    return {"accuracy": got["accuracy"][-1], "moved": float(np.abs(model.layers[2].moving_mean.numpy()).sum())}


@case
def saving(strategy):
    folder = tempfile.mkdtemp()
    model = regression(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse", metrics=["mae"])
    model.fit(X, Y, epochs=2, verbose=0)
    model.save("saved.keras")
    model.save_weights(f"{folder}/w.weights.h5")
    np.save("saved_prediction.npy", model.predict(X, verbose=0))
    loaded = keras.saving.load_model("saved.keras")  # inside the scope
    other = regression(loss="mse", metrics=["mae"])
    other.load_weights(f"{folder}/w.weights.h5")
    same = [float(np.abs(m.predict(X, verbose=0) - model.predict(X, verbose=0)).max()) for m in (loaded, other)]
    return {"same": same, "goes_on": history(loaded, X, Y, epochs=1)["iterations"]}


@case
def an_error_in_a_step_reaches_the_program_and_the_next_fit_works(strategy):
    model = regression(loss="mse", metrics=[])
    bad = (
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(32).map(lambda x, y: (tf.debugging.check_numerics(x / 0.0, "bad"), y))
    )
    try:
        model.fit(bad, epochs=1, verbose=0)
        message = "no error"
    except Exception as error:
        message = f"{type(error).__name__}: {error}"

    class Breaks(keras.layers.Layer):
        def call(self, x):
            return tf.debugging.check_numerics(x / 0.0, "on the worker")

    worker = keras.Sequential([keras.Input((4,)), Breaks(), keras.layers.Dense(1)])
    worker.compile("sgd", "mse")
    try:
        worker.fit(X, Y, epochs=1, verbose=0)
        worker_message = "no error"
    except Exception as error:
        worker_message = f"{type(error).__name__}: {error}"
    return {"data": message, "worker": worker_message, "then": history(regression(), X, numbered_targets(), epochs=1)}


@case
def what_cannot_work_says_so(strategy):
    messages = {}
    for name in ("run_eagerly", "jit_compile"):
        model = regression(loss="mse", metrics=[], **{name: True})
        try:
            model.fit(X, Y, epochs=1, verbose=0)
        except ValueError as error:
            messages[name] = str(error)
    return messages


@case
def evaluation_while_steps_are_under_way(strategy):
    model, targets = regression(keras.optimizers.SGD(0.0)), numbered_targets()
    alone = model.evaluate(X, targets, batch_size=50, verbose=0, return_dict=True)
    inside = []

    class Evaluate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                inside.append(self.model.evaluate(X, targets, batch_size=50, verbose=0, return_dict=True))

    model.fit(X, targets, batch_size=5, epochs=1, verbose=0, callbacks=[Evaluate()])
    return {"alone": alone, "inside": inside[0]}


@case
def after_an_interrupted_fit(strategy):
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5:
                raise KeyboardInterrupt

    first = regression(metrics=["mae"], loss="mse")
    try:
        first.fit(X, Y, batch_size=2, epochs=1, verbose=0, callbacks=[Interrupt()])
    except KeyboardInterrupt:
        pass
    names = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            names.append(sorted(logs))

    second = regression(metrics=["mape"], loss="mse")
    second.fit(X, Y, batch_size=25, epochs=1, verbose=0, callbacks=[Watch()])
    return {"names": names, "evaluate": history(regression(), X, numbered_targets(), epochs=1)}


@case
def batches_with_none(strategy):
    def batches():
        for begin in range(0, N, 50):
            yield X[begin : begin + 50], numbered_targets()[begin : begin + 50], None

    return history(regression(), batches(), epochs=1)


@case
def a_metric_with_several_values(strategy):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])
    model.compile("sgd", "categorical_crossentropy", metrics=[keras.metrics.F1Score(average=None)])
    labels = keras.utils.to_categorical(LABELS, 2)
    record = model.fit(X, labels, epochs=2, verbose=0).history
    model.evaluate(X, labels, verbose=0)
    return {"shape": list(np.shape(record["f1_score"]))}


@case
def what_was_made_outside_the_scope(strategy):  # main() does not enter the scope for this case
    messages = {}
    alone = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    alone.compile("sgd", "mse")
    alone.fit(X, Y, epochs=1, verbose=0)
    messages["alone"] = int(alone.optimizer.iterations.numpy())
    optimizer = keras.optimizers.SGD()
    with strategy.scope():
        model = regression(optimizer, loss="mse", metrics=[])
        other = regression()
    try:
        model.fit(X, Y, epochs=1, verbose=0)
    except (ValueError, RuntimeError) as error:
        messages["optimizer"] = str(error)
    try:
        other.fit(tf.data.Dataset.from_tensor_slices((X[:0], numbered_targets()[:0])).batch(32), epochs=1, verbose=0)
    except ValueError as error:
        messages["empty"] = str(error)
    return messages


@case
def mixed_precision(strategy):
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        got = history(regression("adam", loss="mse", metrics=[]), X, Y, epochs=3)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return got


def main():
    strategy = tfdist.strategy()
    results = {}
    only = sys.argv[1:]
    for name, function in CASES.items():
        if only and name not in only:
            continue
        try:
            with contextlib.nullcontext() if "outside" in name else strategy.scope():
                results[name] = function(strategy)
        except Exception:
            results[name] = {"error": traceback.format_exc()}
        print(name, "error" if "error" in results[name] else "ok", flush=True)
    with open("results.json", "w") as file:
        json.dump(results, file)


main()
