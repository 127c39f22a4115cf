"""Lets the groups of a cluster run steps and synchronizations in a given order, instead of whenever they are free.

    hogwild_exact.py CASES RESULTS

CASES is a JSON file. It maps names to cases: initial `values` of each variable, `options` of `Synchronization`, the number of
`groups`, and `events`, each a method of `Case` with its arguments. A case that is null runs the function of its name in this
program. RESULTS is the file for what comes out, by name.
"""

import concurrent.futures
import itertools
import json
import os
import sys
import threading
import time
import unittest.mock

import keras
import numpy as np
import tensorflow as tf
from gate import LIMIT, Gate, HeldParameters, called_beside, wait_for

import tfdist
import tfdist.strategies.hogwild.global_parameters
import tfdist.strategies.hogwild.training_loop
from tfdist.strategies.coordinator.membership import Membership
from tfdist.strategies.hogwild.control import Control
from tfdist.strategies.hogwild.local_replicas import LocalReplicas
from tfdist.strategies.hogwild.local_variable import Kind
from tfdist.strategies.hogwild.synchronization_functions import Task

FOR_A_RELEASE = os.environ.get("TFDIST_TESTS") == "all"
"""Whether to run cases also with options that others run with."""


def job_of_servers(strategy):
    """Returns the job that holds the global parameters: `/job:ps`, or in a cluster without ps `/job:worker`."""
    return strategy.server_devices[0][0].partition("/replica")[0]


def begin(strategy, groups, period=1, servers=((0, 1),), grace=0.0, shard_bytes=4, **options):
    """Gives `strategy` new options and new local replicas, on its first `groups` groups, with these ps in server groups (without
    ps, these workers).

    Groups wait `grace` seconds for a round. By default none waits, because events follow one after the other. Each ps has
    several shards of at least `shard_bytes`, as it has of models of megabytes.

    Returns the membership of the groups.
    """
    job = job_of_servers(strategy)
    strategy.server_devices = [[f"{job}/replica:0/task:{index}/device:CPU:0" for index in indices] for indices in servers]
    strategy.synchronization = tfdist.Synchronization(**({"outer": "average"} | options))
    strategy.steps_per_synchronization = period // strategy.synchronization.fragments
    membership = strategy.membership = strategy.executions._membership = Membership(strategy.worker_groups)
    strategy.local_replicas = LocalReplicas(strategy, membership)
    tfdist.strategies.hogwild.global_parameters.SHARD_BYTES = shard_bytes
    strategy.local_replicas.in_flight = lambda: 0
    strategy.local_replicas.grace.seconds = lambda group: grace
    for group in range(groups, len(strategy.worker_groups)):
        membership.lose(group)
    return membership


class Case:
    """Variables with local replicas, and events on them.

    An inner step is w += decay * w + row: with decay 0 a known change, otherwise SGD on a quadratic loss. `rows` has a row for
    each step, with one value for each value of all variables, or one for all.
    """

    def __init__(self, strategy, values, groups, options, events):
        self.membership = begin(strategy, groups, **options)
        self.strategy, self.replicas, self.groups = strategy, strategy.local_replicas, groups
        with strategy.scope():
            self.variables = [tf.Variable(np.float32(value)) for value in values]
        self.replicas.register(self.variables, Kind.SYNCHRONIZED, options.get("fragments", 1))
        self.blocks = list(self.replicas.blocks)
        self.rates = strategy.synchronization.outer_rates("SGD", len(strategy.worker_groups))
        for block in self.blocks:
            block.rates = self.rates
        self.functions = {}
        self.in_flight = {}
        self.reads = []
        self.pool = concurrent.futures.ThreadPoolExecutor(max_workers=len(strategy.worker_groups))
        for group in range(groups):
            self.replicas.refresh(group, self.blocks)
        for what, *arguments in events:
            getattr(self, what)(*arguments)
        assert not self.in_flight
        self.pool.shutdown()

    # Events.

    def steps(self, group, rows, decay=0.0):
        """Runs inner steps."""
        self._call(group, (), rows, decay)

    def synchronize(self, group, rows=(), decay=0.0, blocks=None):
        """Synchronizes some blocks, or all, and runs inner steps in the meantime."""
        self._call(group, self._chosen(blocks), rows, decay)

    def push(self, group, rows=(), decay=0.0, blocks=None):
        """Starts `synchronize` and returns when the ps have replied. The group waits for `pull` before its inner steps."""
        call = self.pool.submit(self._call, group, self._chosen(blocks), rows, decay, True)
        self.in_flight[group] = call
        wait_for(lambda: call.done() or self._queue("replied", group, tf.raw_ops.QueueSizeV2) > 0)
        if call.done():
            raise RuntimeError(f"group {group} did not wait") from call.exception()
        self._queue("replied", group, tf.raw_ops.QueueDequeueV2, component_types=[tf.int32])

    def pull(self, group):
        """Lets the group run its inner steps and pull the reply."""
        self._queue("go", group, tf.raw_ops.QueueEnqueueV2, components=[tf.constant(1)])
        self.in_flight.pop(group).result(LIMIT)

    def flush(self, groups):
        """Flushes these groups, one after the other."""
        for group in groups:
            for block in self.blocks:
                self.replicas.flush(block, group)

    def collect(self):
        """Collects all groups, as before an evaluation."""
        self.replicas.collect(self.blocks)

    def lost(self, group):
        """Marks a group as lost."""
        self.membership.lose(group)

    def read(self):
        """Records the global parameters and the local replicas."""
        parameters = np.concatenate([block.fetch() for block in self.blocks])
        self.reads.append({"parameters": parameters.tolist(), "replicas": [self._replica_of(g) for g in range(self.groups)]})

    def _chosen(self, numbers):
        return tuple(range(len(self.blocks))) if numbers is None else tuple(numbers)

    def _replica_of(self, group):
        return self._call(group, (), (), 0.0)

    def _call(self, group, blocks, rows, decay, waits=False):
        """Calls the group's function once, and returns its replica afterwards."""
        rows = np.float32(rows).reshape([len(rows), -1] if len(rows) else [0, 1])
        like = group if waits or len(self.strategy.server_devices) > 1 else 0  # Groups that look alike share a function.
        function = self._function(like, blocks, waits)
        self.replicas.refresh(group, self.blocks)
        if len(rows):
            for block in self.blocks:
                block.dirty.add(group)
        control = self.replicas.control(group, self.rates)
        with tf.device(self.strategy.worker_groups[group].devices[0]):
            replica = function(control, tf.constant(rows), tf.constant(decay, tf.float32))
        with tf.device("/job:chief/replica:0/task:0/device:CPU:0"):
            return tf.identity(replica).numpy().tolist()

    def _function(self, group, blocks, waits):
        key = (group, blocks, waits)
        if key not in self.functions:
            strategy, home = self.strategy, self.strategy.home_of(group)

            def run(numbers, rows, decay):
                control = Control.of(numbers)
                synchronizations = [
                    self.replicas.push_pull(self.blocks[n], strategy.servers_of(group), control) for n in blocks
                ]
                for synchronization in synchronizations:
                    synchronization.push()
                ready = []
                if waits:
                    with tf.control_dependencies(
                        [reply for synchronization in synchronizations for reply in synchronization.replies]
                    ):
                        replied = self._queue("replied", group, tf.raw_ops.QueueEnqueueV2, components=[tf.constant(1)])
                    with tf.control_dependencies([replied]):
                        ready = self._queue("go", group, tf.raw_ops.QueueDequeueV2, component_types=[tf.int32])
                with tf.control_dependencies(ready):
                    count = tf.shape(rows)[0]

                def step(number):
                    lengths = [variable.shape.num_elements() for variable in self.variables]
                    row = tf.broadcast_to(rows[number], [sum(lengths)])
                    for variable, change in zip(self.variables, tf.split(row, lengths), strict=True):
                        variable.assign_add(decay * variable.value() + tf.reshape(change, variable.shape))
                    return (number + 1,)

                tf.while_loop(lambda number: number < count, step, (tf.constant(0),), parallel_iterations=1)
                for synchronization in synchronizations:
                    synchronization.pull()
                return tf.concat([block.read_replica() for block in self.blocks], axis=0)

            device = strategy.worker_groups[group].devices[0]
            with tf.device(device), strategy.extended.tracing([home]), strategy.extended.home(home):
                signature = [Control.SPEC, tf.TensorSpec([None, None]), tf.TensorSpec([])]
                self.functions[key] = tf.function(run, autograph=False).get_concrete_function(*signature)
        return self.functions[key]

    def _queue(self, what, group, operation, **arguments):
        """Runs an operation on a queue on a ps, with which the chief and a group wait for each other."""
        with tf.device(self.strategy.server_devices[0][0]):
            name = f"hogwild_exact/{what}/{group}"
            handle = tf.raw_ops.FIFOQueueV2(component_types=[tf.int32], shapes=[[]], shared_name=name)
            return operation(handle=handle, **arguments)


class Trained:
    """A Keras model whose training steps the groups run one call at a time, as the chief says.

    Args:
        make: makes the compiled model.
        batch: a batch like those of the training.
    """

    def __init__(self, strategy, make, batch):
        self.strategy = strategy
        with strategy.scope():
            keras.utils.set_random_seed(11)
            self.model = make()
            self.model._symbolic_build(data_batch=batch)
        self.model.make_train_function()
        self.number = 0

    def steps(self, group, *batches):
        """Lets the group make a step with each batch."""
        data = [tf.nest.map_structure(tf.constant, batch) for batch in batches]
        call = self.model.train_function._steps._calls.prepare(data)
        with tf.device(self.strategy.worker_groups[group].devices[0]):
            call(group, self.number)
        self.number += len(batches)

    def parameters(self):
        """Returns the global parameters."""
        blocks = [block for block in self.strategy.local_replicas.blocks if block.kind is Kind.SYNCHRONIZED]
        return [value for block in blocks for value in block.fetch().tolist()]

    def collect(self):
        """Collects all groups."""
        self.strategy.local_replicas.synchronize_groups()
        return self.weights()

    def weights(self):
        """Returns the model's weights as callbacks and files get them."""
        return [weight.tolist() for weight in self.model.get_weights()]


def data_parallel(strategy):
    """Linear regression with one batch per group and step. All groups synchronize after each step."""
    generator = np.random.default_rng(5)
    batches = [[generator.normal(size=(8, 4)).astype("float32") for _ in range(3)] for _ in range(10)]
    targets = [[batch @ [[1.0], [-2.0], [0.5], [3.0]] for batch in step] for step in batches]
    results = {
        "inputs": [[b.tolist() for b in step] for step in batches],
        "targets": [[t.tolist() for t in s] for s in targets],
    }

    for delay, momentum in ((1, 0.0), (0, 0.9)):
        begin(strategy, 3, delay=delay)

        def make(momentum=momentum):
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
            model.compile(keras.optimizers.SGD(0.05, momentum=momentum), "mse")
            return model

        trained = Trained(strategy, make, (batches[0][0], targets[0][0]))
        results[f"{delay} {momentum}"] = history = []
        for step, wanted in zip(batches, targets, strict=True):
            for group in range(3):
                trained.steps(group, (step[group], wanted[group]))
            history.append(trained.collect())
    return results


class Sum(keras.layers.Layer):
    """The sum of three weights, each with the gradient 1, and a fourth that has none."""

    def build(self, shape):
        self.parts = [self.add_weight((4,), "zeros", name=f"part{number}") for number in range(3)]
        self.unused = self.add_weight((2,), "ones", name="unused")

    def call(self, inputs):
        return inputs + keras.ops.sum(keras.ops.concatenate(self.parts))


def upwards():
    """Makes a model whose every step adds 1 to each weight that is used."""
    model = keras.Sequential([keras.Input((1,)), Sum()])
    model.compile(keras.optimizers.SGD(1.0), lambda _, outputs: -outputs)
    return model


def fragments_in_turn(strategy):
    """One group whose every step starts the synchronization of the next third; then three groups in a random order."""
    batch = np.zeros((2, 1), "float32"), np.zeros((2, 1), "float32")
    begin(strategy, 1, period=3, fragments=3)
    trained = Trained(strategy, upwards, batch)
    history = []
    for _ in range(7):
        trained.steps(0, batch)
        history.append(trained.parameters())
    alone = trained.collect()
    begin(strategy, 3, period=3, fragments=3)
    trained = Trained(strategy, upwards, batch)
    order = np.random.default_rng(2).integers(0, 3, size=30).tolist()
    for group in order:
        trained.steps(group, batch)
    return {"parameters": history, "alone": alone, "order": order, "together": trained.collect()}


def fewer_blocks_than_fragments(strategy):
    """One group with four blocks and six fragments: in two of six turns nothing is synchronized."""
    batch = np.zeros((2, 1), "float32"), np.zeros((2, 1), "float32")
    histories = []
    for options in ({}, {"outer": "nesterov", "outer_learning_rate": 1.0, "outer_momentum": 0.0}):
        begin(strategy, 1, period=6, fragments=6, **options)
        trained = Trained(strategy, upwards, batch)
        history = []
        for _ in range(9):
            trained.steps(0, batch)
            history.append(trained.parameters())
        histories.append(history)
    return histories


def examples(strategy):
    """Two groups with batches of 2 and of 6, whose pushes weigh by their examples."""
    batches = [(np.zeros((size, 1), "float32"), np.zeros((size, 1), "float32")) for size in (2, 6)]
    begin(strategy, 2, period=2, weights="examples")
    trained = Trained(strategy, upwards, batches[0])
    for group in (0, 1, 0, 1, 0):
        trained.steps(group, batches[group], batches[group])
    return trained.collect()


def several_periods(strategy):
    """Calls of several periods, and of one period each, of three groups that share the parameters of three weights.

    Returns for each way to synchronize, and for both ways to call, the parameters after each turn of a group, and at the end.
    """
    batch = np.zeros((2, 1), "float32"), np.zeros((2, 1), "float32")
    turns = [(0, 3), (1, 2), (2, 3), (0, 2), (1, 3)]  # Groups, and how many periods they make.

    def parameters(options, at_once):
        begin(strategy, 3, period=2, shard_bytes=16, **options)
        trained = Trained(strategy, upwards, batch)
        history = []
        for group, periods in turns:
            for count in [2 * periods] if at_once else [2] * periods:
                trained.steps(group, *[batch] * count)
            history.append(trained.parameters())
        return [*history, trained.collect()]

    ways = [{"outer": "delayed_nesterov"}, {"compression": "int8", "delay": 2}, {"outer": "nesterov", "delay": 0}]
    return [[parameters(options, at_once) for at_once in (True, False)] for options in (ways if FOR_A_RELEASE else ways[:1])]


def replies_between_steps(strategy):
    """Two groups. Each step subtracts a tenth of the first group's replica, which pulls after some of its steps.

    Returns for each delay the replica of the first group at the end of that period, and whether it waited for a late reply.
    """
    gate = Gate(strategy)

    class Gated(keras.layers.Dense):
        def call(self, inputs):
            return super().call(gate.pass_through(inputs))

    def make():
        model = keras.Sequential([keras.Input((1,)), Gated(1, use_bias=False, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.1), lambda _, outputs: outputs**2 / 2)
        return model

    batch, other = ((np.full((1, 1), value, "float32"), np.ones((1, 1), "float32")) for value in (1, 2))

    def with_delay(delay):
        begin(strategy, 2, period=4, delay=delay, outer="delayed_nesterov", outer_learning_rate=1.0, outer_momentum=0.0)
        trained = Trained(strategy, make, batch)
        for group, data in ((0, batch), (1, other), (1, other)):
            gate.let(group, 4)
            trained.steps(group, *[data] * 4)
        (block,) = [block for block in strategy.local_replicas.blocks if block.kind is Kind.SYNCHRONIZED]
        leader = strategy.worker_groups[0].devices[0]

        def weight():
            return block.variables[0].replica.read(leader).numpy().item()

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            gate.let(0, 4)
            with HeldParameters(block):
                wanted = weight() * 0.9**delay
                call = pool.submit(called_beside, trained.steps, 0, *[batch] * 4)
                wait_for(lambda: abs(weight() - wanted) < 1e-6)
                time.sleep(0.1)  # Without a wait it would make the other steps.
                waited = abs(weight() - wanted) < 1e-6
            call.result(LIMIT)
        late = weight()
        gate.let(0, 4)
        trained.steps(0, *[batch] * 4)  # The reply arrives before the delay is over, and the group still pulls after the delay.
        return late, waited, weight()

    return [with_delay(delay) for delay in range(5)]


def rounds_in_threads(strategy):
    """Three groups, whose every step adds 1, in rounds with a delay of 2 of 4 steps. One group is late, then missing.

    Returns what the test of the same name compares.
    """
    options = {"outer": "nesterov", "outer_learning_rate": 1.0, "outer_momentum": 0.0}
    begin(strategy, 3, period=4, delay=2, grace=LIMIT, shard_bytes=16, **options)
    batch = np.zeros((2, 1), "float32"), np.zeros((2, 1), "float32")
    trained = Trained(strategy, upwards, batch)
    call = trained.model.train_function._steps._calls.prepare([tf.nest.map_structure(tf.constant, batch)] * 4)
    (block,) = [block for block in strategy.local_replicas.blocks if block.kind is Kind.SYNCHRONIZED]

    def run(group):
        begun = time.monotonic()
        with tf.device(strategy.worker_groups[group].devices[0]):
            call(group, 0)
            weight(group)
        return time.monotonic() - begun

    def weight(group):
        leader = strategy.worker_groups[group].devices[0]
        return block.variables[0].replica.read(leader).numpy()[0].item()

    results = {}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:

        def start(*groups):
            return [pool.submit(called_beside, run, group) for group in groups]

        def seconds(calls):
            return [each.result(LIMIT) for each in calls]

        seconds(start(0, 1, 2))
        calls = start(0, 1)
        wait_for(lambda: weight(0) == weight(1) == 6)
        time.sleep(0.3)
        results["at the pull"] = [weight(0), weight(1)]
        seconds(calls + start(2))
        results["after a round"] = [weight(group) for group in range(3)]
        results["global"] = block.fetch()[0].item()
        strategy.local_replicas.grace.seconds = lambda group: 1.0
        results["with a missing group"] = seconds(start(0, 1))
        strategy.local_replicas.grace.seconds = lambda group: LIMIT
        results["with an absent group"] = seconds(start(0, 1))
        results["late"] = seconds(start(2))
        results["replies"] = [block.last_rounds.read(group.devices[0]).numpy().tolist() for group in strategy.worker_groups]
    results["collected"] = trained.collect()
    return results


def averaged_momentum(strategy):
    """Linear regression of three groups in rounds of 4 steps, whose momentum buffers are averaged with the weights.

    Returns the batches, and for each delay and number of fragments the weights and momentum buffers after 5 rounds.
    """
    generator = np.random.default_rng(6)
    batches = generator.normal(size=(5, 3, 4, 8, 6)).astype("float32")  # By round, group, step.
    targets = batches @ np.float32([[1.0], [-2.0], [0.5], [3.0], [0.0], [1.0]])

    def make():
        layers = [keras.layers.Dense(3, use_bias=False), keras.layers.Dense(1, use_bias=False)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
        return model

    def trained(delay, fragments):
        options = {"outer": "nesterov", "outer_learning_rate": 1.0, "outer_momentum": 0.0, "average_momentum": True}
        begin(strategy, 3, period=4, delay=delay, fragments=fragments, grace=LIMIT, shard_bytes=16, **options)
        trained = Trained(strategy, make, (batches[0, 0, 0], targets[0, 0, 0]))
        found = {"before": trained.weights()}
        calls = trained.model.train_function._steps._calls
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            for inputs, wanted in zip(batches, targets, strict=True):
                for part in range(fragments):
                    each = slice(4 * part // fragments, 4 * (part + 1) // fragments)
                    data = [list(map(list, zip(inputs[group, each], wanted[group, each], strict=True))) for group in range(3)]
                    runs = [calls.prepare([tuple(map(tf.constant, batch)) for batch in batches_]) for batches_ in data]

                    def run(group, runs=runs):
                        with tf.device(strategy.worker_groups[group].devices[0]):
                            runs[group](group, 0)

                    for each_call in [pool.submit(called_beside, run, group) for group in range(3)]:
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
        model = keras.Sequential([keras.Input((1,)), Scaled()])
        model.compile(keras.optimizers.SGD(schedule), lambda _, outputs: -outputs)
        return model

    batches = [(np.full((2, 1), group + 1, "float32"), np.zeros((2, 1), "float32")) for group in range(3)]
    with unittest.mock.patch.object(tfdist.Synchronization, "farthest", lambda *_: 3.5):
        trained = Trained(strategy, make, batches[0])
    calls = trained.model.train_function._steps._calls
    runs = [calls.prepare([tuple(map(tf.constant, batches[group]))] * 4) for group in range(3)]
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


def what_steps_wait_for(strategy):
    """For each outer optimizer: how many operations of a period's function run on ps, and for which of them its inner steps wait."""
    batch = np.ones((2, 3), "float32"), np.ones((2, 1), "float32")

    def make():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activation="relu"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        return model

    servers = job_of_servers(strategy)

    def counted(options):
        begin(strategy, 3, period=4, shard_bytes=16, **options)
        trained = Trained(strategy, make, batch)
        trained.steps(0, *[batch] * 4)
        graphs = [call.args[0][0].graph for call in trained.model.train_function._steps._calls._function._traced.values()]
        (graph,) = [graph for graph in graphs if any("While" in op.type for op in graph.get_operations())]
        (loop,) = [op for op in graph.get_operations() if "While" in op.type and servers not in op.device]
        waited_for, new = set(), [loop]
        while new:
            op = new.pop()
            before = {*(tensor.op for tensor in op.inputs), *op.control_inputs} - waited_for
            waited_for |= before
            new += before
        on_ps = {op for op in graph.get_operations() if servers in op.device}
        inside = {function.signature.name: len(function.node_def) for function in graph.as_graph_def().library.function}
        called = [op.get_attr("f").name for op in on_ps if "Call" in op.type]
        return len(on_ps) + sum(inside[name] for name in called), sorted(op.name for op in on_ps & waited_for)

    ways = [
        {"compression": "int8"},
        *({"outer": outer} for outer in ("delayed_nesterov", "average", "nesterov", "elastic", "sum")),
    ]
    return [counted(options) for options in (ways if FOR_A_RELEASE else ways[:2])]


def rows_looked_up(strategy):
    """An embedding, with sparse gradients, and a weight without a gradient: one group, two groups, plain Keras."""

    class WithUnused(keras.layers.Dense):
        def build(self, shape):
            super().build(shape)
            self.unused = self.add_weight((3,), "ones", name="unused")

    def model_with(optimizer):
        layers = [keras.Input((3,), dtype="int32"), keras.layers.Embedding(30, 4), keras.layers.Flatten(), WithUnused(1)]
        model = keras.Sequential(layers)
        model.compile(optimizer(), "mse")
        return model

    generator = np.random.default_rng(8)
    targets = generator.normal(size=(2, 6, 8, 1)).astype("float32")
    # The first group looks up rows 0 to 19, the second 10 to 24, neither 25 to 29.
    ids = np.stack([generator.integers(0, 20, size=(6, 8, 3)), generator.integers(10, 25, size=(6, 8, 3))]).astype("int32")
    batches = [[(ids[group, n], targets[group, n]) for n in range(6)] for group in range(2)]

    def by_keras(optimizer, group):
        keras.utils.set_random_seed(11)
        model = model_with(optimizer)
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
    """Epochs of 12 batches for three groups with a sync period of 16: examples in each call, and the weights at the end."""
    begin(strategy, 3, period=16)
    with strategy.scope():
        model = upwards()
    called = []

    def note(group, examples):
        called.append(examples)
        LocalReplicas.count_examples(strategy.local_replicas, group, examples)

    strategy.local_replicas.count_examples = note
    strategy.local_replicas.in_flight = strategy.executions.__len__
    ones = np.ones((24, 1), "float32")
    model.fit(ones, ones, batch_size=2, epochs=2, verbose=0)
    schedule = strategy.executions.schedule
    with unittest.mock.patch.object(strategy.executions, "schedule", side_effect=schedule) as scheduled:
        model.evaluate(ones, ones, batch_size=2, verbose=0)
    return {
        "examples": called,
        "evaluations": scheduled.call_count,
        "weights": [weight.tolist() for weight in model.get_weights()],
    }


def late_group(strategy):
    """Three groups that train epochs of 12 steps. Before each, two of them make a round that the third does not know.

    Returns, with its first push of an epoch in time and with a late one, the groups for which nobody waits any more at the end,
    because others have waited for the grace time, and the weights.
    """
    results = {}
    for name in ("in time", "late"):
        grace = 5.0 if name == "in time" else 1.0  # The first waits for nobody if no machine is slower.
        begin(strategy, 3, period=1, grace=grace, outer="nesterov", outer_learning_rate=1.0, outer_momentum=0.0)
        replicas = strategy.local_replicas
        replicas.in_flight = strategy.executions.__len__
        if name == "late":
            replicas.pushes_left.all_begin = lambda group, fragments: False

        class Behind(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None, replicas=replicas):
                for block in self.model.train_function._steps._calls._parameters if epoch else []:
                    with concurrent.futures.ThreadPoolExecutor(2) as pool:
                        for group in (0, 1):
                            numbers = replicas.control(group, block.rates, in_round=2)
                            pool.submit(replicas._functions.call, Task.SYNCHRONIZE, block, group, numbers)

            def on_train_batch_end(self, batch, logs=None):
                pass  # Calls are short if someone sees each step.

        with strategy.scope():
            model = upwards()
        ones = np.ones((24, 1), "float32")
        model.fit(ones, ones, batch_size=2, epochs=5, verbose=0, callbacks=[Behind()])
        shards = [s for block in replicas.blocks if block.kind is Kind.SYNCHRONIZED for s in itertools.chain(*block.shards)]
        absent = np.max([shard.state["absent"].read().numpy() for shard in shards], axis=0)
        results[name] = {"absent": absent.tolist(), "weights": [weight.tolist() for weight in model.get_weights()]}
    return results


def alone_and_late(strategy):
    """`train_on_batch` with three groups: the group that trains is always late, then is gone.

    Returns the losses of plain Keras, of a group that is late, and of a group that is gone after the third step.
    """
    generator = np.random.default_rng(4)
    batch = generator.normal(size=(8, 3)).astype("float32"), generator.normal(size=(8, 1)).astype("float32")

    def losses(comes_back=lambda: None):
        keras.utils.set_random_seed(11)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.train_on_batch(*batch)
        reader = strategy._cluster_coordinator._cluster.workers[0]

        def process(closure):
            type(reader)._process_closure(reader, closure)
            comes_back()

        reader._process_closure = process
        try:
            return [float(model.train_on_batch(*batch)) for _ in range(7)]
        finally:
            del reader._process_closure

    keras_losses = losses()
    begin(strategy, 3, period=2)
    with strategy.scope():
        late = losses(lambda: time.sleep(0.1))
    begin(strategy, 3, period=2)
    calls, is_over = itertools.count(1), threading.Event()
    limit, tfdist.strategies.hogwild.training_loop.TURN_SECONDS = tfdist.strategies.hogwild.training_loop.TURN_SECONDS, 0.5
    try:
        with strategy.scope():
            gone = losses(lambda: is_over.wait(LIMIT) if next(calls) == 2 else None)
    finally:
        is_over.set()
        tfdist.strategies.hogwild.training_loop.TURN_SECONDS = limit
    return {"keras": keras_losses, "late": late, "gone": gone}


def alone_in_full(strategy):
    """`train_on_batch` with other outer optimizers and outer rates, beside plain Keras.

    Returns for each the greatest difference of the weights.
    """
    generator = np.random.default_rng(4)
    batch = generator.normal(size=(8, 3)).astype("float32"), generator.normal(size=(8, 1)).astype("float32")

    def trained():
        keras.utils.set_random_seed(11)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        for _ in range(7):
            model.train_on_batch(*batch)
        return model

    plain, found = trained().get_weights(), {}
    ways = (
        {"outer": "average", "outer_learning_rate": 0.5},
        {"outer": "delayed_nesterov"},
        {"outer": "elastic"},
        {"outer": "nesterov"},
    )
    for options in ways if FOR_A_RELEASE else ways[:2]:
        begin(strategy, 3, period=2, **options)
        with strategy.scope():
            model = trained()
        differences = [float(np.abs(a - b).max()) for a, b in zip(model.get_weights(), plain, strict=True)]
        found[options["outer"]] = max(differences)
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


def main(cases_file, results_file):
    """Runs all cases, with several shards on each ps, as models of megabytes have them."""
    with open(cases_file) as file:
        cases = json.load(file)
    strategy = tfdist.strategy()
    results = {}
    for name, case in cases.items():
        begin = time.monotonic()
        results[name] = Case(strategy, **case).reads if case else globals()[name](strategy)
        print(f"{time.monotonic() - begin:5.1f} s {name}", flush=True)
    with open(results_file, "w") as file:
        json.dump(results, file)


main(*sys.argv[1:])
