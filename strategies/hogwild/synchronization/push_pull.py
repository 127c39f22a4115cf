"""One synchronization of a worker group with the global parameters, inside the function that the group runs.

A group pushes the progress that it has before its inner steps. The push and the reply travel while the inner steps run: apart
from the queue in which the reply waits, the two have nothing in common, so TensorFlow runs them side by side. A given
number of inner steps later, the delay, the group waits for the reply and adds it to its local replica. What the group has
trained in the meantime stays in the replica and is part of the next push, so no update is lost.
"""

import functools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.hogwild.synchronization import rounds, topologies
from tfdist.strategies.hogwild.synchronization.compression import COMPRESSORS, Compressor, Message
from tfdist.strategies.hogwild.synchronization.control import Control
from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind
from tfdist.strategies.hogwild.synchronization.outer_optimizers import ARRAYS
from tfdist.strategies.hogwild.synchronization.shard_functions import ShardFunctions
from tfdist.strategies.hogwild.synchronization.waiting import now

SHARDS_IN_FLIGHT = 2
"""Shards that travel to one ps at a time: while the ps reads one, the next fills the network."""

SEED_STRIDE = 1_000_003
"""Distance between the random seeds of two groups. Seeds that users choose are unlikely to have it."""


class PushPull:
    """Synchronizes one block. Used while a group's function is traced.

    Call `push`, then `pull`. To pull between two inner steps of a loop, call `push`, `post_reply`, and in the loop
    `pull_posted`.

    Args:
        block: the block, of kind SYNCHRONIZED.
        server_group: number of the server group of the worker group.
        control: the numbers from the chief.
        functions: those that the ps run.
        compressor: encodes what is sent, in both directions.
        topology: a name in `topologies.TOPOLOGIES`.

    Attributes:
        replies: after `push`, the decoded reply for each shard.
    """

    def __init__(
        self,
        block: ParameterBlock,
        server_group: int,
        control: Control,
        functions: ShardFunctions,
        compressor: Compressor = COMPRESSORS[None],
        topology: str = "global",
    ) -> None:
        self._block = block
        self._optimizer = block.optimizer
        self._server_group = server_group
        self._compressor = compressor
        self._functions = functions
        self._numbers = control.numbers
        self._topology = topology
        self.replies: list[Any] = []

    @functools.cached_property
    def rounds_made(self) -> Any:
        """For each shard the rounds since the group pulled anew, int64 [shards]; None without rounds."""
        if not self._optimizer.in_rounds:
            return None
        return self._last_rounds - self._block.first_round.read(self._block.leader)

    @functools.cached_property
    def _last_rounds(self) -> Any:
        return self._block.last_rounds.read(self._block.leader)

    def push(self, waits: bool = True, fewest: Any = None) -> None:
        """Sends the group's progress and requests the global parameters.

        Args:
            waits: whether the ps reply at the end of the round, if the outer optimizer works in rounds.
            fewest: the least of the `rounds_made` of all blocks that are pushed together, int64 scalar; None for this block's.
        """
        block, optimizer = self._block, self._optimizer
        self._waits = waits and optimizer.in_rounds
        self._replica = block.read_replica()
        self._baseline = None if optimizer.pushes_parameters else block.baseline.read(block.leader)
        self._known_rounds = tf.zeros([len(block.sizes)], tf.float64)
        if optimizer.in_rounds:
            known = self._last_rounds
            if self._waits:
                made = self.rounds_made
                known = rounds.known(known, made - (tf.reduce_min(made) if fewest is None else fewest), ARRAYS)
            self._known_rounds = tf.cast(known, tf.float64)
        what = self._replica if optimizer.pushes_parameters else self._replica - self._baseline
        self._pushed: list[Any] = []  # As the ps decode it.
        self._rounds: list[Any] = []
        self._arrived: dict[str, list[Any]] = defaultdict(list)  # By ps.
        beside = [(part,) for part in block.split(self._replica)] if optimizer.sends_replica else [()] * len(block.sizes)
        pushes = zip(block.split(what), beside, strict=True)
        self.replies = self._received([self._push_shard(number, *parts) for number, parts in enumerate(pushes)])
        self._change = self._change_of_replica()

    def _push_shard(self, number: int, part: Any, beside: Message) -> Message:
        """Returns the reply, as it is on the ps. `beside` goes there with the push, as it is."""
        compressor, length = self._compressor, self._block.sizes[number]
        shard = self._block.shards[self._server_group][number]
        message = compressor.encode(part)
        arrived = self._arrived[shard.device]
        # If all shards were sent at once, they would share the network, and all replies would come at the end.
        with tf.control_dependencies(arrived[: 1 - SHARDS_IN_FLIGHT][-1:]):
            sent = tf.nest.map_structure(tf.identity, (*message, *beside))
        with tf.device(shard.device):
            received = tf.nest.map_structure(tf.identity, sent)
            arrived.append(received[0])
        is_global = self._topology == "global"
        numbers = tf.concat([self._numbers, self._known_rounds[number : number + 1]], axis=0)
        reply, round_ = self._functions.push(shard, received, numbers, compressor, self._waits, replies=is_global)
        if not is_global:
            parameters = [shards[number].parameters for shards in self._block.shards]
            topologies.average(self._topology, parameters, self._server_group)
            reply = (shard.parameters.read(),)
        self._pushed.append(compressor.decode(message, length))
        self._rounds.append(round_)
        return reply

    def _received(self, replies: Sequence[Message]) -> list[Any]:
        """Returns the decoded replies, which come when the rounds of all ps have ended.

        Else the group that pushes first would get some replies while others still push, and would push again first. The
        groups get out of step, until the network carries data in one direction at a time (benchmarks/exchange.md).
        """
        shards, compressor = self._block.shards[self._server_group], self._compressor
        ended: dict[str, Any] = {}
        if self._waits and len(self._arrived) > 1:
            complete = tf.reduce_sum(tf.stack([round_[0] for round_ in self._rounds]))
            for device in self._arrived:
                with tf.device(device):
                    ended[device] = tf.identity(complete)
        decoded = []
        for shard, reply in zip(shards, replies, strict=True):
            if shard.device in ended:
                with tf.device(shard.device), tf.control_dependencies([ended[shard.device]]):
                    reply = tf.nest.map_structure(tf.identity, reply)
            with tf.device(self._block.leader):
                # Otherwise a condition on the reply runs on the ps, because TensorFlow places a `Switch` where its input is
                # and drops an `Identity`. That takes five more messages and a round trip for each ps.
                reply = tf.nest.map_structure(lambda part: tf.ensure_shape(part, part.shape), reply)
                decoded.append(compressor.decode(reply, int(shard.parameters.shape[0])))
        return decoded

    def post_reply(self) -> Any:
        """Lets `pull_posted` find the reply when it arrives. Returns a tensor that has to be computed before the first step."""
        with tf.device(self._block.leader):
            self._moment = now()
            self._block.replies.put(self._moment, now([self._change]) - self._moment, self._change)
        return self._moment

    def pull_posted(self, after: Any) -> Any:
        """Waits for the posted reply and adds it to the local replica. Call it between two inner steps.

        Args:
            after: a tensor that is computed before.

        Returns:
            The seconds that the synchronization has taken, from its begin to the arrival of the reply, float64 scalar.
        """
        with tf.device(self._block.leader):
            seconds, change = self._block.replies.take(self._moment, after)
            self._block.add_to_replica(change)
            return seconds

    def pull(self) -> None:
        """Waits for the reply and adds it to the local replica."""
        self._block.add_to_replica(self._change)

    def _change_of_replica(self) -> Any:
        """Returns what the reply adds to the local replica, whenever it is pulled, and assigns the new baseline."""
        block, leader, optimizer = self._block, self._block.leader, self._optimizer
        if optimizer.pushes_parameters:
            return -tf.concat(self.replies, axis=0)
        parameters, rounding_error = self.replies, None
        if not self._compressor.lossless:
            pulled = block.split(block.pulled.read(leader))
            parameters = [before + news for before, news in zip(pulled, self.replies, strict=True)]
            block.pulled.assign(tf.concat(parameters, axis=0), leader)
            rounding_error = self._replica - self._baseline - tf.concat(self._pushed, axis=0)
        last_rounds = tf.unstack(self._last_rounds, len(block.sizes)) if optimizer.in_rounds else [None] * len(block.sizes)
        each = zip(parameters, block.split(self._baseline), self._pushed, self._rounds, last_rounds, strict=True)
        baseline = tf.concat([self._functions.baseline(*values) for values in each], axis=0)
        block.baseline.assign(baseline, leader)
        if optimizer.in_rounds:
            block.last_rounds.assign(tf.stack([round_[0] for round_ in self._rounds]), leader)
        # The replica becomes the baseline, plus the steps since `push`, plus the rounding error of the push.
        change = baseline - self._replica
        return change if rounding_error is None else change + rounding_error


def pull_anew(block: ParameterBlock, server_group: int, group: Any) -> None:
    """Assigns the values of the shards to the local replica of a group. Its progress is dropped.

    Args:
        block: a block of any kind.
        server_group: number of the server group of the worker group.
        group: number of the worker group, int32 scalar.
    """
    complete = []
    if block.kind is Kind.SYNCHRONIZED and block.optimizer.in_rounds:
        # Read first: if a round ends in between, the group's first push to it is late, which is exact.
        complete = [tf.identity(shard.state["round"].read()) for shard in block.shards[server_group]]
    with tf.control_dependencies(complete):
        vector = _pull_shards(block, server_group, group)
    if block.kind is Kind.SEED:
        vector += tf.cast(group, vector.dtype) * SEED_STRIDE
    block.assign_replica(vector)
    if block.kind is Kind.SYNCHRONIZED:
        block.baseline.assign(vector, block.leader)
        if block.shards[server_group][0].acknowledged is not None:
            block.pulled.assign(vector, block.leader)
        if block.optimizer.in_rounds:
            block.last_rounds.assign(tf.stack(complete), block.leader)
            block.first_round.assign(tf.reduce_min(tf.stack(complete)), block.leader)


def _pull_shards(block: ParameterBlock, server_group: int, group: Any) -> Any:
    """Returns the values of the shards as a vector, and notes on the ps that the group has them."""
    parts = []
    for shard in block.shards[server_group]:
        value = shard.parameters.read()
        if shard.acknowledged is not None:
            with tf.device(shard.device):
                handle = shard.acknowledged.handle()
                tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=group[None], updates=value[None])
        parts.append(value)
    return tf.concat(parts, axis=0)
