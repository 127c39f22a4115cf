"""Lets the groups of a cluster run steps and synchronizations in a given order, instead of whenever they are free.

    hogwild_exact.py CASES RESULTS SERVERS

See `hogwild_events.main`.
"""

import concurrent.futures
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from held_parameters import LIMIT, HeldParameters, called_beside, wait_for
from hogwild_events import FOR_A_RELEASE, Trained, begin, job_of_servers, main, upwards

from tfdist.strategies.hogwild.synchronization.local_variable import Kind


def data_parallel(strategy):
    """Linear regression with one batch per group and step. All groups synchronize after each step."""
    generator = np.random.default_rng(5)
    batches = [[generator.normal(size=(8, 4)).astype("float32") for _ in range(2)] for _ in range(10)]
    targets = [[batch @ [[1.0], [-2.0], [0.5], [3.0]] for batch in step] for step in batches]
    results = {
        "inputs": [[b.tolist() for b in step] for step in batches],
        "targets": [[t.tolist() for t in s] for s in targets],
    }

    for delay, momentum in ((1, 0.0), (0, 0.9)):
        begin(strategy, 2, delay=delay)

        def make(momentum=momentum):
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
            model.compile(keras.optimizers.SGD(0.05, momentum=momentum), "mse")
            return model

        trained = Trained(strategy, make, (batches[0][0], targets[0][0]))
        results[f"{delay} {momentum}"] = history = []
        for step, wanted in zip(batches, targets, strict=True):
            for group in range(2):
                trained.steps(group, (step[group], wanted[group]))
            history.append(trained.collect())
    return results


def replies_between_steps(strategy):
    """Two groups. Each step subtracts a tenth of the first group's replica, which pulls after some of its steps.

    Returns for each delay the replica of the first group at the end of that period, and whether it waited for a late reply.
    """

    def make():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.1), lambda _, outputs: outputs**2 / 2)
        return model

    batch, other = ((np.full((1, 1), value, "float32"), np.ones((1, 1), "float32")) for value in (1, 2))

    def in_turn(*delays):
        """Delays that the same function knows: whether it waits before its steps, or after some of them."""
        options = {"outer": "delayed_nesterov", "outer_learning_rate": 1.0, "outer_momentum": 0.0}
        begin(strategy, 2, period=4, delay=delays[0], **options)
        trained = Trained(strategy, make, batch)
        for delay in delays:
            trained.calls.delay.updates = delay
            trained.begin_anew()
            yield with_delay(trained, delay)

    def with_delay(trained, delay):
        for group, data in ((0, batch), (1, other), (1, other)):
            trained.steps(group, *[data] * 4)
        (block,) = [block for block in strategy.local_replicas.blocks if block.kind is Kind.SYNCHRONIZED]
        leader = strategy.worker_groups[0].devices[0]

        def weight():
            return block.variables[0].replica.read(leader).numpy().item()

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            with HeldParameters(block):
                wanted = weight() * 0.9**delay
                call = pool.submit(called_beside, trained.steps, 0, *[batch] * 4)
                wait_for(lambda: abs(weight() - wanted) < 1e-6)
                time.sleep(0.1)  # Without a wait it would make the other steps.
                waited = abs(weight() - wanted) < 1e-6
            call.result(LIMIT)
        late = weight()
        trained.steps(0, *[batch] * 4)  # The reply arrives before the delay is over, and the group still pulls after the delay.
        return late, waited, weight()

    return [*in_turn(0), *in_turn(1, 2, 3, 4)]


def rounds_in_threads(strategy):
    """Three groups, whose every step adds 1, in rounds with a delay of 2 of 4 steps. One group is late, then missing.

    Returns what the test of the same name compares.
    """
    options = {"outer": "nesterov", "outer_learning_rate": 1.0, "outer_momentum": 0.0}
    begin(strategy, 3, period=4, delay=2, grace=10 * LIMIT, shard_bytes=16, **options)
    batch = np.zeros((2, 1), "float32"), np.zeros((2, 1), "float32")
    trained = Trained(strategy, upwards, batch)
    call = trained.prepare(*[batch] * 4)
    (block,) = [block for block in strategy.local_replicas.blocks if block.kind is Kind.SYNCHRONIZED]

    def run(group):
        with tf.device(strategy.worker_groups[group].devices[0]):
            call(group, 0)
            weight(group)

    def weight(group):
        leader = strategy.worker_groups[group].devices[0]
        return block.variables[0].replica.read(leader).numpy()[0].item()

    results = {}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:

        def start(*groups):
            return [pool.submit(called_beside, run, group) for group in groups]

        def end(calls):
            for each in calls:
                each.result(LIMIT)  # Fails where a group waits for the grace time, which is longer.

        end(start(0, 1, 2))
        calls = start(0, 1)
        wait_for(lambda: weight(0) == weight(1) == 6)
        time.sleep(0.3)
        results["at the pull"] = [weight(0), weight(1)]
        end(calls + start(2))
        results["after a round"] = [weight(group) for group in range(3)]
        results["global"] = block.fetch()[0].item()
        strategy.local_replicas.grace.seconds = lambda group: 1.0
        end(start(0, 1))  # A group is missing.
        strategy.local_replicas.grace.seconds = lambda group: 10 * LIMIT
        end(start(0, 1))  # It is absent.
        end(start(2))  # It is late.
        results["replies"] = [block.last_rounds.read(group.devices[0]).numpy().tolist() for group in strategy.worker_groups]
    results["collected"] = trained.collect()
    return results


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
        trained.prepare(*[batch] * 4)
        graphs = [call.args[0][0].graph for call in trained.calls._function._traced.values()]
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


main(globals(), *sys.argv[1:])
