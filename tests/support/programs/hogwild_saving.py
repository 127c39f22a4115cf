"""Saves a training under Hogwild, and continues it from the files.

    hogwild_saving.py save      on two worker groups: trains, saves, continues training
    hogwild_saving.py restore   on two worker groups: continues from each of the files
    hogwild_saving.py one       on one worker group: fits with and without an interruption; loads what two groups have saved

Writes results to PART.json, and states of the training to NAME.npz.
"""

import io
import json
import logging
import os
import shutil
import sys

import keras
import numpy as np
import own_cluster
import tensorflow as tf

import tfdist
from tfdist.strategies.hogwild.replicas.local_replicas import LocalReplicas
from tfdist.strategies.hogwild.timing.measured_delay import COLUMNS

X = np.random.default_rng(5).normal(size=(96, 5)).astype("float32")
Y = (X[:, :1] * X[:, 1:2]).astype("float32")
TASKS = {"save": {"worker": 2, "ps": 2}, "restore": {"worker": 2}, "one": {"worker": 1, "ps": 2}}
OPTIONS = {"outer": "nesterov", "delay": 1, "average_momentum": True}

own_cluster.serve({"strategy": "hogwild", "sync_period": 3, "synchronization": OPTIONS}, **TASKS[sys.argv[1]])
strategy = tfdist.strategy()
strategy.local_replicas.grace.seconds = lambda group: 0.0  # Calls follow one after the other, so no other group comes.


def made(optimizer=keras.optimizers.Adam, dtype="float32"):
    keras.utils.set_random_seed(11)
    keras.config.set_dtype_policy(dtype)
    with strategy.scope():
        layers = [keras.layers.Dense(7, activation="tanh"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((5,)), *layers])
        model.compile(optimizer(0.01), "mse")
        model.optimizer.build(model.trainable_variables)
    return model


def steps(model, order):
    """Lets groups run calls, each (group, number of steps), in this order. The result is the same to the last bit each time."""
    model.make_train_function()
    done = int(model.optimizer.iterations.numpy())
    function = model.train_function
    function._steps.begin()
    for number, (group, count) in enumerate(order):
        offsets = [(number * 7 + step * 3) % 80 for step in range(count)]
        batches = [(tf.constant(X[row : row + 16]), tf.constant(Y[row : row + 16])) for row in offsets]
        strategy.local_replicas.chief.publish()
        call = function._steps._calls.prepare(batches)
        with tf.device(strategy.worker_groups[group].devices[0]):
            rows = call(group, done)
        with tf.device("/job:chief/replica:0/task:0/device:CPU:0"):
            rows = tf.identity(rows).numpy()[:, :-COLUMNS]  # Without the measured times.
        for counter, updates in function._steps._calls.counters.changes(rows):
            counter.count_on_chief(sum(updates))
        done += count


def values(model):
    """Returns all values of the model on the chief."""
    return {v.path + str(n): v.numpy().tolist() for n, v in enumerate([*model.weights, *model.optimizer.variables])}


def note_state(model, name, as_float32=False):
    state = strategy.training_state(model)
    # Each new model has other names.
    state = {key: len(value) if key.endswith("/variables") else value for key, value in state.items()}
    if as_float32:  # numpy's files have no bfloat16.
        state = {key: np.asarray(value, np.float32) for key, value in state.items()}
    np.savez(name, **{key.replace("/", "|"): value for key, value in state.items()})


def wrong(model):
    """Assigns other values to all variables, so that a test sees what is loaded."""
    for variable in [*model.weights, *model.optimizer.variables]:
        variable.assign(tf.ones_like(variable.value) * 2)
    return model


FIRST = [(0, 3), (1, 3), (0, 3), (1, 2), (0, 3), (1, 3), (0, 2)]
SECOND = [(1, 2), (0, 3), (0, 2), (1, 3), (1, 3), (0, 3), (1, 2), (0, 2), (0, 2), (0, 2)]


def save():
    model = made()
    steps(model, FIRST)
    tf.saved_model.save(model, "saved_model")  # Nothing has read the values before.
    model.save_weights("two.weights.h5")
    model.save_weights("parts.weights.json", max_shard_size=300 / 1024**3)
    model.save("two.keras")
    os.makedirs("checkpoints/two-1")  # TensorFlow does not mind a folder of the same name.
    path = tf.train.Checkpoint(model=model).save("checkpoints/two")
    note_state(model, "saved.npz")
    results = {"saved": values(model), "path": path}
    steps(model, SECOND)
    results["straight"] = values(model)
    model.load_weights("two.weights.h5")  # In the middle of a training.
    steps(model, SECOND)
    results["again"] = values(model)
    return results


def restore():
    def from_weights():
        model = wrong(made())
        model.load_weights("two.weights.h5")
        return model

    def from_weights_in_parts():
        model = wrong(made())
        model.load_weights("parts.weights.json")
        return model

    def from_file():
        with strategy.scope():
            return keras.saving.load_model("two.keras")

    def from_checkpoint():
        model = wrong(made())
        tf.train.Checkpoint(model=model).restore(tf.train.latest_checkpoint("checkpoints")).assert_existing_objects_matched()
        return model

    def from_weights_saved_again():
        from_weights().save_weights("again.weights.h5")  # Nothing has been trained in between.
        model = wrong(made())
        model.load_weights("again.weights.h5")
        return model

    results = {}
    for source in (from_weights, from_weights_in_parts, from_file, from_checkpoint, from_weights_saved_again):
        model = source()
        note_state(model, f"{source.__name__}.npz")
        results[source.__name__] = {"restored": values(model)}
        if source is from_file:
            steps(model, SECOND)
            results[source.__name__]["trained"] = values(model)
    return results | {"set": set_in_the_middle()}


def averaging():
    """Switches to outer optimizer average, without a momentum that would move the global parameters further."""
    strategy.synchronization = tfdist.Synchronization(outer="average")
    strategy.local_replicas = LocalReplicas(strategy, strategy.membership)
    strategy.local_replicas.in_flight = strategy.executions.__len__


class At(keras.callbacks.Callback):
    """Calls a function at the end of one of the batches."""

    def __init__(self, batch, function):
        super().__init__()
        self.at, self.function = batch, function

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.at:
            self.function(self.model)


def set_in_the_middle():
    """Returns how far weights are, some steps later, from what a callback sets together with a learning rate of zero."""
    averaging()
    model = made(keras.optimizers.SGD)
    wanted = [weight + 100.0 for weight in model.get_weights()]

    def change(model):
        model.optimizer.learning_rate = 0.0
        model.set_weights(wanted)

    model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=[At(9, change)])
    return [float(abs(got - value).max()) for got, value in zip(model.get_weights(), wanted, strict=True)]


def bfloat16():
    """Saves and loads a model of bfloat16 variables. Returns the states of its training, and whether it trains afterwards."""
    model = made(lambda rate: keras.optimizers.RMSprop(rate, momentum=0.9), "bfloat16")  # Its momentum is averaged.
    model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    model.save_weights("bfloat16.weights.h5")
    path = tf.train.Checkpoint(model=model).save("bfloat16_checkpoints/one")
    dtypes = {str(value.dtype) for name, value in strategy.training_state(model).items() if name.startswith(("own/", "outer/"))}
    note_state(model, "bfloat16.npz", as_float32=True)
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    model.load_weights("bfloat16.weights.h5")
    note_state(model, "bfloat16_weights.npz", as_float32=True)
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    tf.train.Checkpoint(model=model).restore(path)
    note_state(model, "bfloat16_checkpoint.npz", as_float32=True)
    trained = np.isfinite(model.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history["loss"])
    return {"dtypes": sorted(dtypes), "trained": bool(trained.all())}


def float8():
    """Returns by how much `predict` of a trained layer of float8 and of the loaded one differ: the other order of its weights."""
    with strategy.scope():
        layer = keras.layers.Dense(4)
        layer.build((None, 5))
        layer.quantize("float8")
        model = keras.Sequential([layer])
        model.compile("sgd", "mse")
        model.fit(X, np.repeat(Y, 4, axis=1), epochs=2, verbose=0)
        model.save("float8.keras")
        loaded = keras.saving.load_model("float8.keras")
    assert [v.path for v in loaded.variables] != [v.path for v in model.variables]
    return float(abs(loaded.predict(X, verbose=0) - model.predict(X, verbose=0)).max())


class Copy(keras.callbacks.Callback):
    """Keeps the backup after the second epoch."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            shutil.copytree("backup", "interrupted")


def one():
    def fit(model, folder, *callbacks):
        backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
        data = dict(batch_size=8, shuffle=False, verbose=0)
        return model.fit(X[:80], Y[:80], epochs=4, callbacks=[backup, *callbacks], **data).history["loss"]

    straight, model = made(), made()
    losses = fit(straight, "backup", Copy())
    results = {"losses": [losses, losses[:2] + fit(model, "interrupted")], "weights": [values(straight), values(model)]}
    log = io.StringIO()
    logger, handler = logging.getLogger("tfdist"), logging.StreamHandler(log)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    model = wrong(made())
    model.load_weights("two.weights.h5")
    results["two groups"] = values(model)
    note_state(model, "one.npz")
    model.fit(X, Y, verbose=0)
    model.load_weights("plain.weights.h5")
    logger.removeHandler(handler)
    model.fit(X, Y, verbose=0)
    return results | {"log": log.getvalue(), "bfloat16": bfloat16(), "float8": float8()}


with open(f"{sys.argv[1]}.json", "w") as results_file:
    json.dump({"save": save, "restore": restore, "one": one}[sys.argv[1]](), results_file)
