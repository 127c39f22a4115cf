"""Local replicas under a known order of events: groups step and synchronize when they are told to.

For the programs `hogwild_exact.py` and `hogwild_exact_models.py`.
"""

import concurrent.futures
import dataclasses
import gc
import json
import os
import time

import keras
import numpy as np
import own_cluster
import tensorflow as tf
from held_parameters import LIMIT, wait_for

import tfdist
import tfdist.strategies.hogwild.synchronization.global_parameters
from tfdist.strategies.coordinator.members.membership import Membership
from tfdist.strategies.hogwild.replicas.local_replicas import LocalReplicas
from tfdist.strategies.hogwild.synchronization.control import Control
from tfdist.strategies.hogwild.synchronization.local_variable import Kind

FOR_A_RELEASE = os.environ.get("TFDIST_TESTS") == "all"
"""Whether to run cases also with options that others run with."""

RATES = ("outer_learning_rate", "outer_momentum")
"""Options that the chief sends with each call: functions do not depend on them."""


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
    tfdist.strategies.hogwild.synchronization.global_parameters.SHARD_BYTES = shard_bytes
    strategy.local_replicas.in_flight = lambda: 0
    strategy.local_replicas.grace.seconds = lambda group: grace
    for group in range(groups, len(strategy.worker_groups)):
        membership.lose(group)
    return membership


def begin_training(strategy, groups, **options):
    """As `begin`, for a training with `fit`."""
    begin(strategy, groups, **options)
    strategy.local_replicas.in_flight = strategy.executions.__len__
    strategy.local_replicas.wait_until_idle = strategy.executions.wait_until_idle
    strategy.local_replicas.count_steps = strategy.tfdist_hooks.count_steps


class Case:
    """Variables with local replicas, and events on them.

    An inner step is w += decay * w + row: with decay 0 a known change, otherwise SGD on a quadratic loss. `rows` has a row for
    each step, with one value for each value of all variables, or one for all.

    Args:
        strategy: the strategy.
        values: the initial value of each variable.
        groups: the number of groups.
        options: those of `begin`.
    """

    def __init__(self, strategy, values, groups, options):
        self.membership = begin(strategy, groups, **options)
        self.strategy, self.replicas, self.groups = strategy, strategy.local_replicas, groups
        self.values = [np.float32(value) for value in values]
        with strategy.scope():
            self.variables = [tf.Variable(value) for value in self.values]
        self.replicas.register(self.variables, Kind.SYNCHRONIZED, options.get("fragments", 1))
        self.blocks = list(self.replicas.blocks)
        self.functions = {}
        self.has_run = self.has_lost = False

    def run(self, options, events):
        """Returns what the events `read` after the initial values, with the rates in `options`."""
        if self.has_run:
            self._begin_anew()
        self.has_run = True
        rates = {name: value for name, value in options.items() if name in RATES}
        synchronization = dataclasses.replace(self.strategy.synchronization, **dict.fromkeys(RATES) | rates)
        self.rates = synchronization.outer_rates("SGD", len(self.strategy.worker_groups))
        for block in self.blocks:
            block.rates = self.rates
        self.in_flight, self.reads = {}, []
        with concurrent.futures.ThreadPoolExecutor(max_workers=len(self.strategy.worker_groups)) as self.pool:
            for group in range(self.groups):
                self.replicas.refresh(group, self.blocks)
            for what, *arguments in events:
                getattr(self, what)(*arguments)
            assert not self.in_flight
        return self.reads

    def _begin_anew(self):
        assert not self.has_lost
        for block in self.blocks:
            block.dirty.clear()
        for variable, value in zip(self.variables, self.values, strict=True):
            variable.assign(value)
        for block in self.blocks:
            block.initialize()

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
        self.has_lost = True

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
                    self.replicas.functions.push_pull(self.blocks[n], strategy.servers_of(group), control) for n in blocks
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
        self.initial = self.model.get_weights()
        self.model.make_train_function()
        self.number = 0

    @property
    def calls(self):
        """The calls of the groups."""
        return self.model.train_function._steps._calls

    def prepare(self, *batches):
        """Returns the call of a group that makes a step with each batch. It is traced here."""
        return self.calls.prepare([tf.nest.map_structure(tf.constant, batch) for batch in batches])

    def steps(self, group, *batches):
        """Lets the group make a step with each batch."""
        call = self.prepare(*batches)
        with tf.device(self.strategy.worker_groups[group].devices[0]):
            call(group, self.number)
        self.number += len(batches)

    def begin_anew(self):
        """Gives the weights and the outer optimizer their initial values."""
        blocks = self.strategy.local_replicas.blocks
        for block in blocks:
            block.dirty.clear()
        self.model.set_weights(self.initial)
        for block in blocks:
            block.initialize()

    def parameters(self):
        """Returns the global parameters."""
        blocks = [block for block in self.strategy.local_replicas.blocks if block.kind is Kind.SYNCHRONIZED]
        return [value for block in blocks for value in block.fetch().tolist()]

    def collect(self):
        """Collects all groups."""
        self.strategy.local_replicas.chief.synchronize_groups()
        return self.weights()

    def weights(self):
        """Returns the model's weights as callbacks and files get them."""
        return [weight.tolist() for weight in self.model.get_weights()]


class Sum(keras.layers.Layer):
    """The sum of some weights, each with the gradient 1, and another one that has none."""

    def __init__(self, parts):
        super().__init__()
        self.count = parts

    def build(self, shape):
        self.parts = [self.add_weight((4,), "zeros", name=f"part{number}") for number in range(self.count)]
        self.unused = self.add_weight((2,), "ones", name="unused")

    def call(self, inputs):
        return inputs + keras.ops.sum(keras.ops.concatenate(self.parts))


def upwards(parts=3):
    """Makes a model whose every step adds 1 to each weight that is used."""
    model = keras.Sequential([keras.Input((1,)), Sum(parts)])
    model.compile(keras.optimizers.SGD(1.0), lambda _, outputs: -outputs)
    return model


def main(functions, cases_file, results_file, servers):
    """Runs all cases in one cluster, of three workers. Cases with the same options share variables and functions.

    Args:
        functions: the names that functions of cases have.
        cases_file: a JSON file. It maps names to cases: initial `values` of each variable, `options` of `Synchronization`, the
            number of `groups`, and `events`, each a method of `Case` with its arguments. A case that is null runs the function
            of its name.
        results_file: where to write what comes out, by name.
        servers: how many ps there are. Without, the workers hold the global parameters.
    """
    gc.disable()  # To look for garbage among the graphs takes a tenth of the time.
    with open(cases_file) as file:
        cases = json.load(file)
    if int(servers):
        own_cluster.serve(worker=3, ps=int(servers))
        groups = f"nworker_groups: 3 nserver_groups: {servers} nservers_per_group: 1 server_worker_separate: true"
        cluster = tfdist.read(f"cluster {{ {groups} }}")
        ring = tfdist.Synchronization(topology="ring")  # The ps see each other.
        strategy = tfdist.strategy(dataclasses.replace(cluster, strategy="hogwild", synchronization=ring))
    else:
        own_cluster.serve({"strategy": "hogwild"}, worker=3)
        strategy = tfdist.strategy()
    results = {}

    def note(name, run):
        begin = time.process_time()
        results[name] = run()
        print(f"{time.process_time() - begin:5.1f} s {name}", flush=True)

    alike = {}
    for name, case in cases.items():
        if case:
            options = {option: value for option, value in case["options"].items() if option not in RATES}
            alike.setdefault(json.dumps([case["values"], case["groups"], options]), []).append(name)
        else:
            note(name, lambda name=name: functions[name](strategy))
    for like, names in alike.items():
        shared = Case(strategy, *json.loads(like))
        for name in names:
            note(name, lambda name=name: shared.run(cases[name]["options"], cases[name]["events"]))  # noqa: B023
    with open(results_file, "w") as file:
        json.dump(results, file)
