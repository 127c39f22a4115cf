"""Trains on every task of a data-parallel cluster and writes the results of some cases to data_parallel-RANK.json.

`data_parallel.py [SLOTS] CASE ...`: with SLOTS the program is the only task of a cluster, with that many replicas. Cases that
compare with one process return `one` (the first task only) and `ours`, each a dict of numbers and lists; those that train
several parts in one model return that of each part.
"""

import contextlib
import json
import random
import sys
import time
import traceback

import fit_options
import keras
import losses
import numpy as np
import own_loops
import own_losses
import own_step_metrics
import own_steps
import own_sums
import sums_and_classes
import tensorflow as tf
import together
import unlisted_metrics
from cases import NamedCases
from fit_options import IDS, N, X, Y, regression

import tfdist
from tfdist.cluster import Cluster, Task
from tfdist.errors import Source
from tfdist.strategies.data_parallel import buckets, multi_worker_mirrored
from tfdist.strategies.private_api import ring_sums

case = CASES = NamedCases()
TOGETHER = {}
optimizers = keras.optimizers


def compared(function):
    """Makes a case that trains twice: without a scope (first task only) and under the strategy's scope."""

    def run(strategy):
        results = {}
        if strategy.first:  # Only this task does: the others wait for it at their first collective.
            keras.utils.set_random_seed(1)
            results["one"] = function(contextlib.nullcontext)
        keras.utils.set_random_seed(1)
        results["ours"] = function(strategy.scope)
        return results

    CASES[function.__name__] = run
    return function


def in_one_model(name, parts, **arguments):
    """Makes a case whose parts are cases for the test, and so is what they give together, under `name`."""
    TOGETHER[name] = (name, *parts)

    def case(scope):
        found = losses.trained_together(scope, parts, **arguments)
        return {name: found.pop("all"), **found}

    case.__name__ = name
    compared(case)


class Seen(keras.metrics.Metric):
    """Sums over all examples: their count, their ids, the squares of their ids."""

    def __init__(self, name="seen", **kwargs):
        super().__init__(name=name, **kwargs)
        self.total = self.add_variable(shape=(3,), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        ids = keras.ops.round(keras.ops.cast(y_true[:, -1], "float32"))
        sums = [keras.ops.sum(keras.ops.ones_like(ids)), keras.ops.sum(ids), keras.ops.sum(ids * ids)]
        self.total.assign(self.total + keras.ops.stack(sums))

    def result(self):
        return {"count": self.total[0], "ids": self.total[1], "squares": self.total[2]}


class Shuffled(keras.utils.PyDataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        rows = slice(index * 25, index * 25 + 25)
        return X[rows], IDS[rows, None]


@case
def each_example_once_with_no_seed_set(strategy):  # the first case: later ones set seeds
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    dataset = tf.data.Dataset.from_tensor_slices((X, IDS[:, None])).shuffle(N)
    sources = {
        "numpy": {"x": X, "y": IDS[:, None], "batch_size": 32},
        "dataset": {"x": dataset.batch(32)},
        "of_unknown_size": {"x": dataset.filter(lambda x, y: True).batch(32)},
        "infinite": {"x": dataset.repeat().batch(25), "steps_per_epoch": 10},
        "py_dataset": {"x": Shuffled(workers=2), "shuffle": True},
        "generator": {"x": ((X[i : i + 50], IDS[i : i + 50, None]) for i in range(0, N, 50)), "epochs": 1},
    }
    results = {"weights": [w.ravel().tolist() for w in model.get_weights()]}
    for steps in (1, 5):
        with strategy.scope():
            model.compile(optimizers.SGD(0.0), "mse", metrics=[Seen()], steps_per_execution=steps)
        for name, source in sources.items():
            if name == "generator" and steps == 5:
                continue
            record = model.fit(**{"epochs": 2, "verbose": 0, **source}).history
            results[f"{name} {steps}"] = [record["count"], record["ids"], record["squares"]]
    results["random"] = [random.random(), float(np.random.rand()), float(tf.random.uniform(()))]
    return results


for _function in (
    *fit_options.CASES,
    *losses.CASES,
    *losses.WHOLE_BATCH_CASES,
    *own_losses.CASES,
    *own_losses.WHOLE_BATCH_CASES,
    *own_steps.CASES,
    *own_step_metrics.CASES,
    *own_sums.CASES,
    *unlisted_metrics.CASES,
    *own_loops.CASES,
    *sums_and_classes.CASES,
):
    if _function.__name__ not in losses.PARTS:
        compared(_function)
compared(losses.alone("a_loss_function_that_returns_a_mean"))
losses.PARTS |= {name: losses.PARTS[name.removesuffix("_of_small_batches")] for name in together.TOGETHER["small_batches"]}
short = {"rows": losses.SHORT, "evaluates": False}
of_group = {"small_batches": {"rate": 0.01, "batch": 2, "rows": 8}, "layers": {"rate": 0.01, **short}}
for _name, _parts in together.TOGETHER.items():
    in_one_model(_name, _parts, **of_group.get(_name, short))


@case
def moving_averages_are_the_same_everywhere(strategy):
    results = {}
    for steps, size in ((1, 32), (4, 83)):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            layer = keras.layers.BatchNormalization()
            model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(1)])
            model.compile("sgd", "mse", steps_per_execution=steps)
        model.fit(X, Y, batch_size=size, epochs=2, verbose=0)
        each = [
            [float(v[1]) for v in strategy.experimental_local_results(w.value)]
            for w in (layer.moving_mean, layer.moving_variance)
        ]
        results[f"of each {steps}"] = each
    return {**results, "evaluate": model.evaluate(X, Y, batch_size=size, verbose=0)}


@case
def a_large_variable_has_the_value_of_the_chief(strategy):
    multi_worker_mirrored.BROADCAST_BYTES = 40  # Real ones exceed 2 GiB.
    try:
        with strategy.scope():
            kernel = keras.layers.Dense(5, kernel_initializer=lambda shape, dtype: tf.fill(shape, tf.random.uniform([])))
            kernel.build((None, 7))
            own = tf.Variable(np.random.default_rng().uniform(size=11))
    finally:
        multi_worker_mirrored.BROADCAST_BYTES = 2**29
    replicas = strategy.experimental_local_results(own)
    return {"kernel": kernel.kernel.numpy().tolist(), "own": [replica.numpy().tolist() for replica in replicas]}


@case
def callbacks_see_the_same_everywhere(strategy):
    seen = []

    class See(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append([batch, logs["loss"]])

    with strategy.scope():
        model = regression(optimizers.SGD(0.5))
    record = model.fit(
        X,
        Y,
        epochs=20,
        verbose=2,
        validation_split=0.2,
        callbacks=[
            See(),
            keras.callbacks.CSVLogger("log.csv", append=True),
            keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.05 * 10.0**-epoch),
        ],
    )
    writers = keras.callbacks.CallbackList([keras.callbacks.TensorBoard("board")], model=model).callbacks
    return {
        "seen": seen,
        "epochs": len(record.epoch),
        "writers": [type(each).__name__ for each in writers],
        "weights": [w.ravel().tolist() for w in model.get_weights()],
    }


@case
def sharding_that_the_user_has_set(strategy):
    results = {}
    for policy in ("OFF", "DATA"):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(optimizers.SGD(0.0), "mse", metrics=[Seen()])
        dataset = tf.data.Dataset.from_tensor_slices((X[:240], IDS[:240, None])).batch(24).with_options(options)
        results[policy] = model.fit(dataset, epochs=1, verbose=0).history["count"]
    distributed = strategy.experimental_distribute_dataset(dataset)
    results["distributed"] = model.fit(distributed, epochs=1, verbose=0).history["count"]
    return results


LOGS = {"largest": 7.0, "share": 0.0}


@case
def random_numbers_of_own_loops(strategy):
    return own_loops.draws(strategy)


@case
def what_cannot_work_says_so(strategy):
    messages = own_loops.refused(strategy)

    class TwoUpdates(own_steps.OwnStep):
        def train_step(self, data):
            super().train_step(data)
            return super().train_step(data)

    class UpdatesIfLarge(own_steps.OwnStep):
        def train_step(self, data):
            return tf.cond(tf.reduce_mean(data[1]) > 0, lambda: super(UpdatesIfLarge, self).train_step(data), lambda: LOGS)

    with strategy.scope():
        lora = regression("adam")
    lora.layers[0].enable_lora(2)
    outside = optimizers.SGD()
    outside.build([keras.Variable(np.zeros(1))])  # Else it would move into the scope.
    with strategy.scope():
        models = {"outside": regression(outside), "two_updates": TwoUpdates(), "lora": lora}
        models["two_updates"].compile("sgd", "mse", jit_compile=True)
        models["condition"] = UpdatesIfLarge()
        models["condition"].build((None, 4))
        models["condition"].compile("sgd", "mse")
        normalization = keras.layers.BatchNormalization(synchronized=True)
        models["synchronized"] = keras.Sequential([keras.Input((4,)), normalization, keras.layers.Dense(1)])
        models["synchronized"].compile("sgd", "mse", jit_compile=True)
        inputs = keras.Input((4,))
        models["two_views"] = keras.Model(inputs, losses.views(keras.ops.concatenate, 0)(inputs))
        models["two_views"].compile("sgd", losses.nt_xent)
    for name, model in models.items():
        try:
            model.fit(X, Y, epochs=1, verbose=0)
        except Exception as error:
            messages[name] = str(error)
    return messages


def main():
    arguments = sys.argv[1:]
    buckets.BUCKET_BYTES = 64  # So that these small models have several.
    ring_sums.CYCLE = 32  # So that keys are used again.
    if arguments and arguments[0].isdigit():
        task = Task("chief", 0, slots=int(arguments.pop(0)))
        strategy = tfdist.strategy(Cluster((task,), source=Source("python", "a test")))
    else:
        strategy = tfdist.strategy()
    rank = strategy.tfdist_hooks.layout.local.start
    strategy.first = rank == 0
    results = {
        "replicas": strategy.num_replicas_in_sync,
        "cases": [name for case in CASES for name in TOGETHER.get(case, [case])],
    }
    for name in arguments:
        try:
            found = CASES[name](strategy)
            if name in TOGETHER:
                parts = {part: {side: each[part] for side, each in found.items()} for part in TOGETHER[name]}
            else:
                parts = {name: found}
        except Exception:
            parts = {part: {"error": traceback.format_exc()} for part in TOGETHER.get(name, [name])}
        results |= parts
        outcome = "error" if any("error" in part for part in parts.values()) else "ok"
        print(f"{name} {outcome}, after {time.process_time():.0f} s of the processor", flush=True)
    with open(f"data_parallel-{rank}.json", "w") as file:
        json.dump(results, file)


main()
