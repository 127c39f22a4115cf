"""Averages that are never negative stay so, whatever the order in which groups push; others are as without."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.hogwild.replicas import nonnegatives
from tfdist.strategies.hogwild.synchronization import rounds
from tfdist.strategies.hogwild.synchronization.compression import COMPRESSORS
from tfdist.strategies.hogwild.synchronization.outer_optimizers import OUTER_OPTIMIZERS
from tfdist.strategies.hogwild.synchronization.shard import Shard
from tfdist.strategies.hogwild.synchronization.shard_functions import ShardFunctions
from tfdist.synchronization import Synchronization

HERE = "/job:localhost/replica:0/task:0/device:CPU:0"
ASYNCHRONOUS = ("average", "delayed_nesterov", "sum")
GROUPS = 2


class Groups:
    """Two groups that push averages to one shard and pull it, as push_pull.py does without a delay."""

    def __init__(self, outer, start):
        optimizer = OUTER_OPTIMIZERS[outer](Synchronization(outer=outer), GROUPS)
        self.functions = ShardFunctions(optimizer)
        self.shard = Shard(tf.float32, len(start), HERE, nonnegatives.optimizer_of(optimizer))
        self.shard.initialize()
        self.shard.parameters.assign(tf.constant(start, tf.float32))
        self.replicas = [np.array(start, "float32") for _ in range(GROUPS)]
        self.baselines = [replica.copy() for replica in self.replicas]
        self.rounds = [0, 0]

        @tf.function(autograph=False)
        def push(message, numbers):
            return self.functions.push(self.shard, message, numbers, COMPRESSORS[None], waits=False)

        self._push = push

    def push(self, group, step):
        """Moves the replica of a group by `step`, and synchronizes it. Returns the global parameters."""
        replica = step(self.replicas[group])
        numbers = tf.constant([group, 1 / GROUPS, GROUPS, 0, 1, 0, 9, 0, 0, self.rounds[group]], tf.float64)
        reply, round_ = self._push((tf.constant(replica - self.baselines[group]), tf.constant(replica)), numbers)
        self.rounds[group] = int(round_[0])
        self.replicas[group] = self.baselines[group] = reply[0].numpy()
        return self.replicas[group]

    def end_round(self):
        """Ends the open round for the first group, which goes on from its result. Returns the global parameters."""
        settle = tf.function(functools.partial(self.functions.change_round, rounds.settle, self.shard), autograph=False)
        settle(tf.constant([-1, 0, 1, 0, 1, 0, 0, 0, 0], tf.float64), tf.zeros([GROUPS], tf.int32))
        self.rounds[0] += 1
        self.replicas[0] = self.baselines[0] = self.shard.parameters.read().numpy()
        return self.replicas[0]


def falls(replica):
    """A moving variance that becomes 0.01, a moving mean that becomes -1, and a count of 10 steps."""
    return np.array([0.01 + 0.01 * (replica[0] - 0.01), -1.0, replica[2] + 10], "float32")


@pytest.mark.parametrize("outer", ASYNCHRONOUS)
@pytest.mark.parametrize("order", [[0, 1] * 4, [0, 0, 0, 1, 0, 0, 1, 1], [0, 1, 1, 0, 0, 1, 0, 1]])
def test_a_moving_variance_that_falls_stays_positive_without_rounds(outer, order):
    groups = Groups(outer, [1.0, 0.0, 0.0])
    values = [groups.push(group, falls) for group in order]
    assert min(value[0] for value in values) > 0.004  # Its own rule brings it to -0.24 with the third push.
    assert values[-1][0] == pytest.approx(0.01, rel=1) and values[-1][1] < -0.5
    assert values[-1][2] == pytest.approx(10 * len(order) / GROUPS)


def test_a_late_push_of_a_round_leaves_a_moving_variance_positive():
    groups = Groups("nesterov", [1.0, 0.0, 0.0])
    groups.push(0, falls)
    groups.push(1, falls)
    together = groups.shard.parameters.read().numpy()
    np.testing.assert_allclose(together, [0.0199, -1.0, 10.0], rtol=1e-5)  # The mean, as all are in time.
    late = Groups("nesterov", [1.0, 0.0, 0.0])
    late.push(0, falls)
    late.end_round()
    late.push(0, falls)
    late.push(1, falls)  # To the first round, which has ended: it counts in the second.
    value = late.end_round()
    assert value[0] == pytest.approx(0.01, rel=0.5) and value[1] < -0.5 and value[2] == pytest.approx(15)


def test_shards_of_weights_and_of_averages_have_their_own_outer_optimizers():
    outer = OUTER_OPTIMIZERS["sum"](Synchronization(outer="sum"), GROUPS)
    functions, found = ShardFunctions(outer), []
    for optimizer in (outer, outer.of_averages):
        shard = Shard(tf.float32, 1, HERE, optimizer)
        shard.parameters.assign([0.0])

        @tf.function(autograph=False)
        def push(numbers, shard=shard):
            return functions.push(shard, (tf.constant([1.0]),), numbers, COMPRESSORS[None], waits=False)[0]

        found.append(float(push(tf.constant([0, 0.5, GROUPS, 0, 1, 0, 9, 0, 0, 0], tf.float64))[0][0]))
    assert found == [1.0, 0.5]
