"""Lets the groups of a started cluster do, in the order that it is told, what they otherwise do as they are free.

    hogwild_exact.py CASES RESULTS

The file of cases maps names to cases: `values` (of each variable), `options` (of `Synchronization`), `groups` (how many of the
"""

import concurrent.futures
import itertools
import json
import sys
import threading
import time
import unittest.mock

import keras
import numpy as np
import tensorflow as tf
from gate import LIMIT, PS, Gate, HeldCentre, called_beside, wait_for

import tfdist
import tfdist.strategies.hogwild.global_parameters
import tfdist.strategies.hogwild.training_loop
from tfdist.strategies.hogwild.local_replicas import LocalReplicas
from tfdist.strategies.hogwild.local_variable import Kind
from tfdist.strategies.hogwild.outer_optimizers import Control


def begin(strategy, groups, period=1, servers=((0, 1),), **options):
    """Lets `strategy` train with these options from now on, on its first `groups` groups, with these ps in server groups."""
    strategy.server_devices = [[f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in indices] for indices in servers]
    strategy.synchronization = tfdist.Synchronization(**options)
    strategy.steps_per_exchange = period // strategy.synchronization.fragments
    strategy.local_replicas = LocalReplicas(strategy, strategy._cluster_coordinator)
    strategy.local_replicas.in_flight = lambda: 0
    wait_for(lambda: all(strategy.local_replicas.incarnation_of(group) for group in range(len(strategy.worker_groups))))
    for group in range(groups, len(strategy.worker_groups)):
        strategy.local_replicas.mark_lost(group)


class Case:
    """Variables of which the groups have copies, and what they do with them.

    A local step is w += decay * w + row: with decay 0 a known change, with others SGD on a quadratic loss. `rows` has a row
    for each step, of as many values as all variables together or of one for all.
    """

    def __init__(self, strategy, values, groups, options, events):
        begin(strategy, groups, **options)
        self.strategy, self.copies, self.groups = strategy, strategy.local_replicas, groups
        with strategy.scope():
            self.variables = [tf.Variable(np.float32(value)) for value in values]
        self.copies.register(self.variables, Kind.EXCHANGED, options.get("fragments", 1))
        self.blocks = list(self.copies.blocks)
        self.rates = strategy.synchronization.outer_rates("SGD")
        for block in self.blocks:
            block.rates = self.rates
        self.functions = {}
        self.under_way = {}
        self.reads = []
        self.pool = concurrent.futures.ThreadPoolExecutor(max_workers=len(strategy.worker_groups))
        for group in range(groups):
            self.copies.refresh(group, self.blocks)
        for what, *arguments in events:
            getattr(self, what)(*arguments)
        assert not self.under_way
        self.pool.shutdown()

    # What events call.

    def steps(self, group, rows, decay=0.0):
        """Local steps."""
        self._call(group, (), rows, decay)

    def exchange(self, group, rows=(), decay=0.0, blocks=None):
        """An exchange of some blocks, or all, with local steps while it is under way."""
        self._call(group, self._chosen(blocks), rows, decay)

    def begin(self, group, rows=(), decay=0.0, blocks=None):
        """As `exchange`; returns when the ps have answered, and the group waits before its local steps for `end`."""
        call = self.pool.submit(self._call, group, self._chosen(blocks), rows, decay, True)
        self.under_way[group] = call
        wait_for(lambda: call.done() or self._queue("answered", group, tf.raw_ops.QueueSizeV2) > 0)
        if call.done():
            raise RuntimeError(f"group {group} did not wait") from call.exception()
        self._queue("answered", group, tf.raw_ops.QueueDequeueV2, component_types=[tf.int32])

    def end(self, group):
        """Lets the group make its local steps and take the answer over."""
        self._queue("go", group, tf.raw_ops.QueueEnqueueV2, components=[tf.constant(1)])
        self.under_way.pop(group).result(LIMIT)

    def hand_over(self, groups):
        """All progress of these groups goes to the centre, of one group after the other."""
        for group in groups:
            for block in self.blocks:
                self.copies.flush(block, group)

    def collect(self):
        """All groups hand over and begin anew from the centre, as before an evaluation."""
        self.copies.collect(self.blocks)

    def lost(self, group):
        """The group has failed."""
        self.copies.mark_lost(group)

    def read(self):
        """Notes the centre and the groups' copies."""
        centre = np.concatenate([block.fetch() for block in self.blocks])
        self.reads.append({"centre": centre.tolist(), "copies": [self._copies_of(g) for g in range(self.groups)]})

    # How.

    def _chosen(self, numbers):
        return tuple(range(len(self.blocks))) if numbers is None else tuple(numbers)

    def _copies_of(self, group):
        return self._call(group, (), (), 0.0)

    def _call(self, group, blocks, rows, decay, waits=False):
        """One call of the group's function; its copies afterwards."""
        rows = np.float32(rows).reshape([len(rows), -1] if len(rows) else [0, 1])
        like = group if waits or len(self.strategy.server_devices) > 1 else 0  # Of groups that look alike the first.
        function = self._function(like, blocks, waits)
        self.copies.refresh(group, self.blocks)
        if len(rows):
            for block in self.blocks:
                block.dirty.add(group)
        control = self.copies.control(group, self.rates)
        with tf.device(self.strategy.worker_groups[group].devices[0]):
            copies = function(control, tf.constant(rows), tf.constant(decay, tf.float32))
        with tf.device("/job:chief/replica:0/task:0/device:CPU:0"):
            return tf.identity(copies).numpy().tolist()

    def _function(self, group, blocks, waits):
        key = (group, blocks, waits)
        if key not in self.functions:
            strategy, home = self.strategy, self.strategy.home_of(group)

            def run(numbers, rows, decay):
                control = Control.of(numbers)
                exchanges = [self.copies.push_pull(self.blocks[n], strategy.servers_of(group), control) for n in blocks]
                for exchange in exchanges:
                    exchange.begin()
                ready = []
                if waits:
                    with tf.control_dependencies([answer for exchange in exchanges for answer in exchange._answers]):
                        told = self._queue("answered", group, tf.raw_ops.QueueEnqueueV2, components=[tf.constant(1)])
                    with tf.control_dependencies([told]):
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
                for exchange in exchanges:
                    exchange.end()
                return tf.concat([block.copies() for block in self.blocks], axis=0)

            device = strategy.worker_groups[group].devices[0]
            with tf.device(device), strategy.extended.tracing([home]), strategy.extended.home(home):
                signature = [Control.SPEC, tf.TensorSpec([None, None]), tf.TensorSpec([])]
                self.functions[key] = tf.function(run, autograph=False).get_concrete_function(*signature)
        return self.functions[key]

    def _queue(self, what, group, operation, **arguments):
        """One operation on a queue on a ps, with which the chief and a group tell each other how far they are."""
        with tf.device(PS):
            name = f"hogwild_exact/{what}/{group}"
            handle = tf.raw_ops.FIFOQueueV2(component_types=[tf.int32], shapes=[[]], shared_name=name)
            return operation(handle=handle, **arguments)


class Trained:
    """A Keras model whose training step the chief lets the groups make one by one.

    Args:
        make: makes the compiled model.
        batch: one like those that it will be trained with.
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
        """The group makes a step with each batch."""
        data = [tf.nest.map_structure(tf.constant, batch) for batch in batches]
        call = self.model.train_function._step.prepare(data)
        with tf.device(self.strategy.worker_groups[group].devices[0]):
            call(group, self.number)
        self.number += len(batches)

    def centre(self):
        """What the ps hold."""
        blocks = [block for block in self.strategy.local_replicas.blocks if block.kind is Kind.EXCHANGED]
        return [value for block in blocks for value in block.fetch().tolist()]

    def collect(self):
        """All groups hand over and begin anew from the centre."""
        self.strategy.local_replicas.synchronize_groups()
        return self.weights()

    def weights(self):
        """The model's weights as callbacks and files get them."""
        return [weight.tolist() for weight in self.model.get_weights()]


def data_parallel(strategy):
    """Linear regression, one batch of each group a step, all exchanging after each."""
    generator = np.random.default_rng(5)
    batches = [[generator.normal(size=(8, 4)).astype("float32") for _ in range(3)] for _ in range(10)]
    targets = [[batch @ [[1.0], [-2.0], [0.5], [3.0]] for batch in step] for step in batches]
    given = {"inputs": [[b.tolist() for b in step] for step in batches], "targets": [[t.tolist() for t in s] for s in targets]}

    for overlap, momentum in ((True, 0.0), (False, 0.9)):
        begin(strategy, 3, overlap=overlap)

        def make(momentum=momentum):
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
            model.compile(keras.optimizers.SGD(0.05, momentum=momentum), "mse")
            return model

        trained = Trained(strategy, make, (batches[0][0], targets[0][0]))
        given[f"{overlap} {momentum}"] = history = []
        for step, wanted in zip(batches, targets, strict=True):
            for group in range(3):
                trained.steps(group, (step[group], wanted[group]))
            history.append(trained.collect())
    return given


class Sum(keras.layers.Layer):
    """The sum of three weights, each with the gradient 1, and a fourth that has none."""

    def build(self, shape):
        self.parts = [self.add_weight((4,), "zeros", name=f"part{number}") for number in range(3)]
        self.unused = self.add_weight((2,), "ones", name="unused")

    def call(self, inputs):
        return inputs + keras.ops.sum(keras.ops.concatenate(self.parts))


def upwards():
    """A model each of whose steps adds 1 to every weight that is used."""
    model = keras.Sequential([keras.Input((1,)), Sum()])
    model.compile(keras.optimizers.SGD(1.0), lambda _, outputs: -outputs)
    return model


def slices_in_turn(strategy):
    """A group alone, whose steps each begin the exchange of the next third; then three groups in a random order."""
    batch = np.zeros((2, 1), "float32"), np.zeros((2, 1), "float32")
    begin(strategy, 1, period=3, slices=3)
    trained = Trained(strategy, upwards, batch)
    centres = []
    for _ in range(7):
        trained.steps(0, batch)
        centres.append(trained.centre())
    alone = trained.collect()
    begin(strategy, 3, period=3, slices=3)
    trained = Trained(strategy, upwards, batch)
    order = np.random.default_rng(2).integers(0, 3, size=30).tolist()
    for group in order:
        trained.steps(group, batch)
    return {"centres": centres, "alone": alone, "order": order, "together": trained.collect()}


def examples(strategy):
    """Two groups with batches of 2 and of 6, whose changes weigh by their examples."""
    batches = [(np.zeros((size, 1), "float32"), np.zeros((size, 1), "float32")) for size in (2, 6)]
    begin(strategy, 2, period=2, weights="examples")
    trained = Trained(strategy, upwards, batches[0])
    for group in (0, 1, 0, 1, 0):
        trained.steps(group, batches[group], batches[group])
    return trained.collect()


def answers_between_steps(strategy):
    """Two groups; each step takes a tenth away from the first's copy. An answer comes when the first has made some steps.

    Returns the copy of the first group at the end of that period, by how many steps it had made.
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

    def with_answer_after(steps_before):
        begin(strategy, 2, period=4, outer="delayed_nesterov", outer_learning_rate=1.0, outer_momentum=0.0)
        trained = Trained(strategy, make, batch)
        for group, given in ((0, batch), (1, other), (1, other)):
            gate.let(group, 4)
            trained.steps(group, *[given] * 4)
        (block,) = [block for block in strategy.local_replicas.blocks if block.kind is Kind.EXCHANGED]
        leader = strategy.worker_groups[0].devices[0]

        def weight():
            return block.variables[0].copy.read(leader).numpy().item()

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            with HeldCentre(block):
                wanted = weight() * 0.9**steps_before
                call = pool.submit(called_beside, trained.steps, 0, *[batch] * 4)
                gate.let(0, steps_before)
                if steps_before < 4:
                    gate.wait_until_next_waits(0)
                wait_for(lambda: abs(weight() - wanted) < 1e-6)
            wait_for(lambda: bool(block.is_there.read(leader).numpy()))
            gate.let(0, 4 - steps_before)
            call.result(LIMIT)
        return weight()

    return [with_answer_after(steps_before) for steps_before in range(5)]


def what_steps_wait_for(strategy):
    """Under each rule, in the function of a period: how many operations there are on ps, and which its local steps wait for."""
    batch = np.ones((2, 3), "float32"), np.ones((2, 1), "float32")

    def make():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activation="relu"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        return model

    def counted(options):
        begin(strategy, 3, period=4, **options)
        trained = Trained(strategy, make, batch)
        trained.steps(0, *[batch] * 4)
        graphs = [functions[0].graph for functions in trained.model.train_function._step._traced.values()]
        (graph,) = [graph for graph in graphs if any("While" in op.type for op in graph.get_operations())]
        (loop,) = [op for op in graph.get_operations() if "While" in op.type]
        waited_for, new = set(), [loop]
        while new:
            op = new.pop()
            before = {*(tensor.op for tensor in op.inputs), *op.control_inputs} - waited_for
            waited_for |= before
            new += before
        on_ps = {op for op in graph.get_operations() if "job:ps" in op.device}
        return len(on_ps), sorted(op.name for op in on_ps & waited_for)

    rules = [{"outer": outer} for outer in ("average", "nesterov", "delayed_nesterov", "elastic", "sum")]
    return [counted(options) for options in (*rules, {"compression": "int8"})]


def rows_looked_up(strategy):
    """An embedding, whose gradients are sparse, and a weight without a gradient: a group alone, two groups, plain Keras."""

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
    # The first group looks up rows 0 to 19, the second 10 to 24; nobody 25 to 29.
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
    """Epochs of 12 batches for three groups with a sync period of 16: how many examples each call has, and the weights after it."""
    begin(strategy, 3, period=16)
    with strategy.scope():
        model = upwards()
    called = []

    def note(group, examples):
        called.append(examples)
        LocalReplicas.count_examples(strategy.local_replicas, group, examples)

    strategy.local_replicas.count_examples = note
    strategy.local_replicas.in_flight = strategy._tfdist_steps.__len__
    ones = np.ones((24, 1), "float32")
    model.fit(ones, ones, batch_size=2, epochs=2, verbose=0)
    given, schedule = [], strategy._tfdist_steps.schedule
    with unittest.mock.patch.object(strategy._tfdist_steps, "schedule", lambda run: given.append(run) or schedule(run)):
        model.evaluate(ones, ones, batch_size=2, verbose=0)
    return {"examples": called, "evaluations": len(given), "weights": [weight.tolist() for weight in model.get_weights()]}


def alone_and_late(strategy):
    """`train_on_batch` in three groups: the one that trains always comes back late, and in the end no more.

    Returns the losses of plain Keras, those with a group that comes late, and those with it gone after the third step.
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


def main(cases_file, results_file):
    """Runs all cases, with several slices on each ps, as a model of megabytes has them."""
    tfdist.strategies.hogwild.global_parameters.SLICE_BYTES = 4
    with open(cases_file) as file:
        cases = json.load(file)
    strategy = tfdist.strategy()
    results = {}
    for name, case in cases.items():
        results[name] = Case(strategy, **case).reads if case else globals()[name](strategy)
        print(name, "done", flush=True)
    with open(results_file, "w") as file:
        json.dump(results, file)


main(*sys.argv[1:])
