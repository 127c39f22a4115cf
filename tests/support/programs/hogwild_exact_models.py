"""Lets the groups of a cluster train Keras models, one call at a time and in a given order.

`hogwild_exact_models.py CASES RESULTS SERVERS`: see `hogwild_events.main`.
"""

import concurrent.futures
import itertools
import sys
import threading
import time
import unittest.mock

import keras
import numpy as np
import tensorflow as tf
from held_parameters import LIMIT, called_beside
from hogwild_events import FOR_A_RELEASE, Sum, Trained, begin, main, upwards

import tfdist
import tfdist.strategies.hogwild.training_loop
from tfdist.strategies.hogwild.synchronization.local_variable import Kind
from tfdist.strategies.hogwild.synchronization.push_weights import PushWeights
from tfdist.strategies.hogwild.synchronization.synchronization_functions import Task


def fragments_in_turn(strategy):
    """One group whose every step starts the synchronization of the next third; then also another one, in a random order."""
    batch = np.zeros((2, 1), "float32"), np.zeros((2, 1), "float32")
    membership = begin(strategy, 1, period=3, fragments=3, shard_bytes=16)
    trained = Trained(strategy, upwards, batch)
    history = []
    for _ in range(7):
        trained.steps(0, batch)
        history.append(trained.parameters())
    alone = trained.collect()
    membership.join(1)
    for group in np.random.default_rng(2).integers(0, 2, size=30).tolist():
        trained.steps(group, batch)
    return {"parameters": history, "alone": alone, "together": trained.collect()}


def fewer_blocks_than_fragments(strategy):
    """One group with three blocks and four fragments: in one of four turns nothing is synchronized."""
    batch = np.zeros((2, 1), "float32"), np.zeros((2, 1), "float32")
    histories = []
    for options in ({}, {"outer": "nesterov", "outer_learning_rate": 1.0, "outer_momentum": 0.0}):
        begin(strategy, 1, period=4, fragments=4, shard_bytes=16, **options)
        trained = Trained(strategy, lambda: upwards(parts=2), batch)
        history = []
        for _ in range(7):
            trained.steps(0, batch)
            history.append(trained.parameters())
        histories.append(history)
    return histories


def examples(strategy):
    """Two groups with batches of 2 and of 6, whose pushes weigh by their examples."""
    batches = [(np.zeros((size, 1), "float32"), np.zeros((size, 1), "float32")) for size in (2, 6)]
    begin(strategy, 2, period=2, weights="examples", shard_bytes=16)
    trained = Trained(strategy, upwards, batches[0])
    for group in (0, 1, 0, 1, 0):
        trained.steps(group, batches[group], batches[group])
    return trained.collect()


def several_periods(strategy):
    """Calls of several periods, and of one period each, of two groups that share the parameters of three weights.

    Returns for each way to synchronize, and for both ways to call, the parameters after each turn of a group, and at the end.
    """
    batch = np.zeros((2, 1), "float32"), np.zeros((2, 1), "float32")
    turns = [(0, 3), (1, 2), (1, 3), (0, 2), (1, 3)]  # Groups, and how many periods they make.

    def parameters(trained, at_once):
        history = []
        for group, periods in turns:
            for count in [2 * periods] if at_once else [2] * periods:
                trained.steps(group, *[batch] * count)
            history.append(trained.parameters())
        return [*history, trained.collect()]

    def both(options):
        begin(strategy, 2, period=2, shard_bytes=16, **options)
        trained = Trained(strategy, upwards, batch)
        at_once = parameters(trained, True)
        trained.begin_anew()
        return at_once, parameters(trained, False)

    ways = [{"outer": "delayed_nesterov"}, {"compression": "int8", "delay": 2}, {"outer": "nesterov", "delay": 0}]
    return [both(options) for options in (ways if FOR_A_RELEASE else ways[:1])]


def averaged_momentum(strategy):
    """Linear regression of two groups in rounds of 4 steps, whose momentum buffers are averaged with the weights.

    Returns the batches, and for each delay and number of fragments the weights and momentum buffers after 5 rounds.
    """
    generator = np.random.default_rng(6)
    batches = generator.normal(size=(5, 2, 4, 8, 6)).astype("float32")  # By round, group, step.
    targets = batches @ np.float32([[1.0], [-2.0], [0.5], [3.0], [0.0], [1.0]])

    def make():
        layers = [keras.layers.Dense(3, use_bias=False), keras.layers.Dense(1, use_bias=False)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
        return model

    def trained(delay, fragments):
        options = {"outer": "nesterov", "outer_learning_rate": 1.0, "outer_momentum": 0.0, "average_momentum": True}
        begin(strategy, 2, period=4, delay=delay, fragments=fragments, grace=LIMIT, shard_bytes=64, **options)
        trained = Trained(strategy, make, (batches[0, 0, 0], targets[0, 0, 0]))
        found = {"before": trained.weights()}
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for inputs, wanted in zip(batches, targets, strict=True):
                for part in range(fragments):
                    each = slice(4 * part // fragments, 4 * (part + 1) // fragments)
                    data = [zip(inputs[group, each], wanted[group, each], strict=True) for group in range(2)]
                    runs = [trained.prepare(*of_group) for of_group in data]

                    def run(group, runs=runs):
                        with tf.device(strategy.worker_groups[group].devices[0]):
                            runs[group](group, 0)

                    for each_call in [pool.submit(called_beside, run, group) for group in range(2)]:
                        each_call.result(LIMIT)
        buffers = [variable._value for variable in trained.model.optimizer.variables if variable.name.endswith("_momentum")]
        found["after"] = trained.collect()
        found["momentum"] = [buffer.numpy().tolist() for buffer in buffers]
        found["kinds"] = [buffer.kind.value for buffer in buffers]
        return found

    pairs = ((2, 1), (1, 2), (0, 1)) if FOR_A_RELEASE else ((2, 1), (1, 2))
    ways = {f"{delay} {fragments}": trained(delay, fragments) for delay, fragments in pairs}
    return {"inputs": batches.tolist(), "targets": targets.tolist(), **ways}


def momentum_follows_schedule(strategy):
    """Rounds of three groups whose every step adds a learning rate that falls to zero, times the number of the group and one.

    Returns the learning rates, the outer momentum on the chief and the global parameters after each of 8 rounds.
    """
    begin(strategy, 3, period=4, delay=0, outer="nesterov", grace=LIMIT, shard_bytes=16)
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 96, 0.0)

    class Scaled(Sum):
        def call(self, inputs):
            return keras.ops.mean(inputs) * keras.ops.sum(keras.ops.concatenate(self.parts)) + 0 * inputs

    def make():
        model = keras.Sequential([keras.Input((1,)), Scaled(3)])
        model.compile(keras.optimizers.SGD(schedule), lambda _, outputs: -outputs)
        return model

    batches = [(np.full((2, 1), group + 1, "float32"), np.zeros((2, 1), "float32")) for group in range(3)]
    with unittest.mock.patch.object(tfdist.Synchronization, "farthest", lambda *_: 3.5):
        trained = Trained(strategy, make, batches[0])
    runs = [trained.prepare(*[batches[group]] * 4) for group in range(3)]
    (block,) = [block for block in strategy.local_replicas.blocks if block.kind is Kind.SYNCHRONIZED]
    history = []
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for round_ in range(8):

            def run(group, step=12 * round_):
                with tf.device(strategy.worker_groups[group].devices[0]):
                    runs[group](group, step)

            for call in [pool.submit(called_beside, run, group) for group in range(3)]:
                call.result(LIMIT)
            history.append([block.rates[1], block.fetch()[0].item()])
    return {"learning rates": [float(schedule(step)) for step in range(96)], "history": history}


def rows_looked_up(strategy):
    """An embedding, with sparse gradients, and a weight without a gradient: one group, two groups, plain Keras."""

    class WithUnused(keras.layers.Dense):
        def build(self, shape):
            super().build(shape)
            self.unused = self.add_weight((3,), "ones", name="unused")

    def model_with(optimizer, runs_eagerly=False):
        layers = [keras.Input((3,), dtype="int32"), keras.layers.Embedding(30, 4), keras.layers.Flatten(), WithUnused(1)]
        model = keras.Sequential(layers)
        model.compile(optimizer(), "mse", run_eagerly=runs_eagerly)
        return model

    generator = np.random.default_rng(8)
    targets = generator.normal(size=(2, 6, 8, 1)).astype("float32")
    # The first group looks up rows 0 to 19, the second 10 to 24, neither 25 to 29.
    ids = np.stack([generator.integers(0, 20, size=(6, 8, 3)), generator.integers(10, 25, size=(6, 8, 3))]).astype("int32")
    batches = [[(ids[group, n], targets[group, n]) for n in range(6)] for group in range(2)]

    def by_keras(optimizer, group):
        keras.utils.set_random_seed(11)
        model = model_with(optimizer, runs_eagerly=True)
        for inputs, wanted in batches[group]:
            model.train_on_batch(inputs, wanted)
        return [weight.tolist() for weight in model.get_weights()]

    def sgd():
        return keras.optimizers.SGD(0.1)

    def adam():
        return keras.optimizers.Adam(0.01)

    results = {"ids": ids.tolist(), "sgd keras": [by_keras(sgd, group) for group in range(2)], "adam keras": by_keras(adam, 0)}
    begin(strategy, 1, period=2)
    trained = Trained(strategy, lambda: model_with(adam), batches[0][0])
    for number in range(0, 6, 2):
        trained.steps(0, *batches[0][number : number + 2])
    results["adam alone"] = trained.collect()
    begin(strategy, 2, period=6)
    trained = Trained(strategy, lambda: model_with(sgd), batches[0][0])
    results["sgd before"] = trained.weights()
    for group in range(2):
        trained.steps(group, *batches[group])
    results["sgd two groups"] = trained.collect()
    return results


def short_epochs(strategy):
    """Epochs of 12 batches for three groups with a sync period of 16: examples in each call, and the weights at the end.

    Then two epochs of as many batches whose number nobody knows.
    """
    begin(strategy, 3, period=16, shard_bytes=16)
    with strategy.scope():
        model = upwards()
    called = []
    weights = strategy.local_replicas.weights

    def note(group, examples):
        called.append(examples)
        PushWeights.count_examples(weights, group, examples)

    weights.count_examples = note
    strategy.local_replicas.in_flight = strategy.executions.__len__
    ones = np.ones((24, 1), "float32")
    model.fit(ones, ones, batch_size=2, epochs=2, verbose=0)
    schedule = strategy.executions.schedule
    with unittest.mock.patch.object(strategy.executions, "schedule", side_effect=schedule) as scheduled:
        model.evaluate(ones, ones, batch_size=2, verbose=0)
    known = {"examples": called[:], "weights": [weight.tolist() for weight in model.get_weights()]}
    called.clear()
    unknown = tf.data.Dataset.from_tensor_slices((ones, ones)).filter(lambda x, y: True).batch(2)
    model.fit(unknown, epochs=2, verbose=0)
    return {**known, "evaluations": scheduled.call_count, "unknown length": called}


def late_group(strategy):
    """Three groups that train epochs of 12 steps. Before each, two of them make a round that the third does not know.

    Returns, with its first push of an epoch in time and with a late one, the groups for which nobody waits any more at the end,
    because others have waited for the grace time, and the weights.
    """
    begin(strategy, 3, shard_bytes=64, outer="nesterov", outer_learning_rate=1.0, outer_momentum=0.0)
    replicas = strategy.local_replicas
    replicas.in_flight = strategy.executions.__len__
    with strategy.scope():
        model = upwards()
    initial, ones = model.get_weights(), np.ones((24, 1), "float32")

    class Behind(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            for block in self.model.train_function._steps._calls.blocks._parameters if epoch else []:
                with concurrent.futures.ThreadPoolExecutor(2) as pool:
                    for group in (0, 1):
                        numbers = replicas.control(group, block.rates, in_round=2)
                        pool.submit(replicas.functions.call, Task.SYNCHRONIZE, block, group, numbers)

        def on_train_batch_end(self, batch, logs=None):
            pass  # Calls are short if someone sees each step.

    def trained(grace):
        replicas.grace.seconds = lambda group: grace
        model.set_weights(initial)
        model.fit(ones, ones, batch_size=2, epochs=5, verbose=0, callbacks=[Behind()])
        shards = [s for block in replicas.blocks if block.kind is Kind.SYNCHRONIZED for s in itertools.chain(*block.shards)]
        absent = np.max([shard.state["absent"].read().numpy() for shard in shards], axis=0)
        return {"absent": absent.tolist(), "weights": [weight.tolist() for weight in model.get_weights()]}

    results = {"in time": trained(5.0)}  # The first waits for nobody if no machine is slower.
    replicas.pushes_left.all_begin = lambda group, fragments: False
    return results | {"late": trained(1.0)}


def alone_and_late(strategy):
    """`train_on_batch` with three groups: the group that trains is always late, then is gone.

    Returns the losses of plain Keras, of a group that is late, and then of a group that is gone after the third step.
    """
    generator = np.random.default_rng(4)
    batch = generator.normal(size=(8, 3)).astype("float32"), generator.normal(size=(8, 1)).astype("float32")

    def compiled(runs_eagerly=False):
        keras.utils.set_random_seed(11)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=runs_eagerly)
        return model

    def losses(model, steps, comes_back=lambda: None):
        model.train_on_batch(*batch)
        reader = strategy._cluster_coordinator._cluster.workers[0]

        def process(closure):
            type(reader)._process_closure(reader, closure)
            comes_back()

        reader._process_closure = process
        try:
            return [float(model.train_on_batch(*batch)) for _ in range(steps)]
        finally:
            del reader._process_closure

    results = {"keras": losses(compiled(runs_eagerly=True), 15)}
    begin(strategy, 3, period=2)
    with strategy.scope():
        model = compiled()
    results["late"] = losses(model, 7, lambda: time.sleep(0.1))
    calls, is_over = itertools.count(1), threading.Event()
    limit, tfdist.strategies.hogwild.training_loop.TURN_SECONDS = tfdist.strategies.hogwild.training_loop.TURN_SECONDS, 0.5
    try:
        results["gone"] = losses(model, 7, lambda: is_over.wait(LIMIT) if next(calls) == 2 else None)
    finally:
        is_over.set()
        tfdist.strategies.hogwild.training_loop.TURN_SECONDS = limit
    return results


def alone_in_full(strategy):
    """`train_on_batch` with other outer optimizers and outer rates, beside plain Keras. The forward pass is computed twice.

    Returns for each the greatest difference of the weights.
    """

    class Recomputed(keras.layers.Dense):
        def call(self, x):
            return tf.recompute_grad(super().call)(x)

    generator = np.random.default_rng(4)
    batch = generator.normal(size=(8, 3)).astype("float32"), generator.normal(size=(8, 1)).astype("float32")

    def trained(runs_eagerly=False):
        keras.utils.set_random_seed(11)
        model = keras.Sequential([keras.Input((3,)), Recomputed(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=runs_eagerly)
        for _ in range(7):
            model.train_on_batch(*batch)
        return model

    plain, found = trained(runs_eagerly=True).get_weights(), {}
    ways = (
        {"topology": "ring", "servers": ((0,), (1,))},
        {"outer": "delayed_nesterov"},
        {"outer": "average", "outer_learning_rate": 0.5},  # As delayed_nesterov without momentum.
        {"outer": "elastic"},
        {"outer": "nesterov"},
    )
    for options in ways if FOR_A_RELEASE else ways[:2]:
        begin(strategy, 3, period=2, **options)
        with strategy.scope():
            model = trained()
        differences = [float(np.abs(a - b).max()) for a, b in zip(model.get_weights(), plain, strict=True)]
        found[options.get("outer", options.get("topology"))] = max(differences)
    return found


def frozen_weights_that_a_step_assigns(strategy):
    """A frozen model that is a moving average of the trained one, as in MoCo. Returns weight and average after 3 steps."""

    class Averaged(keras.Model):
        def __init__(self):
            super().__init__()
            trained, average = (keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2))
            self.trained, self.average = (
                keras.Sequential([keras.Input((1,)), trained]),
                keras.Sequential([keras.Input((1,)), average]),
            )
            self.average.trainable = False

        def call(self, x):
            return self.trained(x)

        def train_step(self, data):
            logs = super().train_step(data)
            self.average.weights[0].assign(0.5 * self.average.weights[0] + 0.5 * self.trained.weights[0])
            return logs

    begin(strategy, 1, period=2)
    with strategy.scope():
        model = Averaged()
        model.compile(keras.optimizers.SGD(0.25), "mse")  # Each step halves the weight.
    for _ in range(3):
        model.train_on_batch(np.ones([1, 1]), np.zeros([1, 1]))
    return [float(each.get_weights()[0].item()) for each in (model.trained, model.average)]


main(globals(), *sys.argv[1:])
