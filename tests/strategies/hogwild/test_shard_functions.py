"""The functions that ps run: the same for all shards, so that a shard adds little to what is traced."""

import numpy as np
import pytest
import tensorflow as tf
from sharded_block import GROUPS, block_on

from tfdist.strategies.hogwild.synchronization.compression import COMPRESSORS
from tfdist.strategies.hogwild.synchronization.control import Control
from tfdist.strategies.hogwild.synchronization.outer_optimizers import OUTER_OPTIMIZERS
from tfdist.strategies.hogwild.synchronization.push_pull import PushPull
from tfdist.strategies.hogwild.synchronization.shard import Shard
from tfdist.strategies.hogwild.synchronization.shard_functions import ShardFunctions
from tfdist.synchronization import Synchronization

HERE = "/job:localhost/replica:0/task:0/device:CPU:0"
NUMBERS = [0, 1 / GROUPS, GROUPS, 0, 0.7, 0.5, 9.0, 1, 0]


def optimizer_of(outer):
    return OUTER_OPTIMIZERS[outer](Synchronization(outer=outer), GROUPS)


def operations(functions, optimizer, servers):
    """How many operations TensorFlow gets for a push to this many ps, and how many functions."""
    block = block_on(servers, optimizer)

    def push(numbers):
        for shard in block.shards[0]:
            functions.push(shard, (tf.zeros(shard.parameters.shape),), numbers, COMPRESSORS[None], waits=optimizer.in_rounds)

    graph = tf.function(push, autograph=False).get_concrete_function(tf.TensorSpec([10], tf.float64)).graph
    return len(graph.get_operations()), len(graph.as_graph_def().library.function)


@pytest.mark.parametrize("outer", OUTER_OPTIMIZERS)
def test_a_shard_adds_one_call_to_the_function_of_a_group(outer):
    optimizer = optimizer_of(outer)
    functions = ShardFunctions(optimizer)
    (few, traced), (many, traced_for_many) = (operations(functions, optimizer, servers) for servers in (2, 8))
    assert many - few <= 6 * 10  # Variables, lock and call.
    assert traced == traced_for_many


@pytest.mark.parametrize("compression", [None, "int8"])
@pytest.mark.parametrize("outer", ["average", "nesterov"])
def test_a_function_computes_what_the_shard_does(outer, compression):
    optimizer, compressor = optimizer_of(outer), COMPRESSORS[compression]
    functions = ShardFunctions(optimizer)
    for size in (5, 300):
        shards = [Shard(tf.float32, size, HERE, optimizer, GROUPS if compression else 0) for _ in range(2)]
        for shard in shards:
            shard.initialize()
            shard.parameters.assign(tf.zeros([size]))
        by_function, by_shard = shards

        @tf.function(autograph=False)
        def push(message, numbers, by_function=by_function):
            return functions.push(by_function, message, numbers, compressor, waits=False)

        @tf.function(autograph=False)
        def apply(message, numbers, by_shard=by_shard, size=size):
            control = Control.of(numbers[:-1])
            control.wanted = tf.cast(numbers[-1], tf.int64) + 1
            return by_shard.apply(compressor.decode(message, size), control)[:2]

        known = np.zeros([GROUPS, size], "float32")
        for number, values in enumerate(np.random.default_rng(0).normal(size=(6, size)).astype("float32")):
            group = number % GROUPS
            message, numbers = compressor.encode(tf.constant(values)), tf.constant([group, *NUMBERS[1:], number // GROUPS])
            reply, round_ = push(message, tf.cast(numbers, tf.float64))
            parameters, expected = apply(message, tf.cast(numbers, tf.float64))
            np.testing.assert_array_equal(round_, expected)
            decoded = compressor.decode(reply, size).numpy()
            known[group] = decoded + (known[group] if compression else 0)
            scale = np.abs(parameters).max()
            tolerance = 0.01 if compression else 0
            np.testing.assert_allclose(known[group], parameters, atol=tolerance * scale)
        np.testing.assert_array_equal(by_function.parameters.read(), by_shard.parameters.read())


def test_a_worker_traces_as_many_functions_for_the_second_model_as_for_the_tenth():
    optimizer = optimizer_of("nesterov")
    functions = ShardFunctions(optimizer)

    def synchronization():
        block = block_on(2, optimizer)

        def run(numbers):
            pushed = PushPull(block, 0, Control.of(numbers), functions)
            pushed.push()
            pushed.pull()

        tf.function(run, autograph=False).get_concrete_function(Control.SPEC)
        return len(functions._functions)

    first = synchronization()
    assert [synchronization() for _ in range(3)] == [first] * 3
