"""One exchange of a worker group with the centre, inside the function that the group runs.

What was read before the local steps is pushed and answered while they run: they touch no variables of the exchange but those
that it is announced by, so TensorFlow runs both side by side. After each step the group looks whether the answer is there and
takes it over as soon as it is; what the group has done meanwhile stays its own progress and goes with the next exchange, so no
update is lost however late the answer comes.
"""

from collections import defaultdict
from typing import Any

import tensorflow as tf

from tfdist.strategies.coordinator.named_resource import NamedVariable
from tfdist.strategies.hogwild import compression, topologies
from tfdist.strategies.hogwild.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.local_variable import Kind
from tfdist.strategies.hogwild.outer_optimizers import Control

ON_THE_WAY = 2
"""So many slices are on their way to a ps at a time: while one is read there, the next fills the line."""

SEED_STRIDE = 1_000_003
"""Between the seeds of two groups: any number that users' own seeds are unlikely to differ by."""


class PushPull:
    """The exchange of one block by a group that belongs to server group `servers`.

    `begin`, the local steps, then `end`; or `begin`, `announce`, local steps with `take_over_if_there` after each, then `end`.
    """

    def __init__(
        self, block: ParameterBlock, rule: Any, servers: int, kind: str | None, control: Control, mixing: str = "centre"
    ) -> None:
        self._block = block
        self._rule = rule
        self._servers = servers
        self._kind = kind
        devices = dict.fromkeys(each.device for each in block.slices[servers])
        self._control = {device: control.sent(device) for device in devices}
        self._topology = mixing

    def begin(self) -> None:
        """Sends the group's progress and asks for the centre."""
        block = self._block
        self._copy = block.copies()
        self._before = None if self._rule.sends_copy else block.last.read(block.leader)
        self._seen = block.seen.read(block.leader)
        progress = self._copy if self._rule.sends_copy else self._copy - self._before
        self._understood, self._answers, self._notes = [], [], []
        self._arrived: dict[str, list[Any]] = defaultdict(list)  # By ps.
        for number, part in enumerate(block.split(progress)):
            understood, answer, note = self._push(number, part)
            self._understood.append(understood)
            self._answers.append(answer)
            self._notes.append(note)
        self._change = self._change_of_copies()

    def _push(self, number: int, part: Any) -> tuple[Any, Any, Any]:
        """For one slice: the progress as the ps has understood it, the answer and the note."""
        block, kind = self._block, self._kind
        centre, state = block.slices[self._servers][number], block.state[self._servers][number]
        control = self._control[centre.device]
        length = block.sizes[number]
        message = compression.encode(part, kind)
        arrived = self._arrived[centre.device]
        # All at once they would share the way, and the answers come all at its end.
        with tf.control_dependencies(arrived[: 1 - ON_THE_WAY][-1:]):
            sent = tf.nest.map_structure(tf.identity, message)
        with tf.device(centre.device):
            there = tf.nest.map_structure(tf.identity, sent)
            arrived.append(there[0])
            there = compression.decode(there, length, kind)
            answer, note = self._rule.received(centre, state, there, control)
            if self._topology != "centre":
                topologies.mix(self._topology, block, self._servers, number)
                answer = centre.read()
            if kind is not None:
                answer = self._news(block.known[self._servers][number], answer, length, control.group)
            answer, note = tf.nest.map_structure(tf.identity, (answer, note))
        answer = answer if kind is None else compression.decode(tf.nest.map_structure(tf.identity, answer), length, kind)
        return compression.decode(message, length, kind), answer, note

    def _news(self, known: NamedVariable, centre: Any, length: int, group: Any) -> Any:
        """On the ps: what is new in the centre since the group was told of it; what rounding leaves out goes next time."""
        kind = self._kind
        row = tf.raw_ops.ResourceGather(resource=known.handle(), indices=group, dtype=centre.dtype)
        news = compression.encode(centre - row, kind)
        row += compression.decode(news, length, kind)
        tf.raw_ops.ResourceScatterUpdate(resource=known.handle(), indices=group[None], updates=row[None])
        return news

    def announce(self) -> Any:
        """Lets `take_over_if_there` find the answer when it comes. Returns an operation that has to run before the first."""
        reset = self._block.is_there.assign(False, self._block.leader)
        with tf.control_dependencies([self._block.inbox.assign(self._change, self._block.leader)]):
            self._block.is_there.assign(True, self._block.leader)
        return reset

    def take_over_if_there(self, taken: Any) -> Any:
        """Between two local steps: takes the answer over when it is there and not `taken`; whether it is now, bool scalars."""
        block = self._block

        def take() -> Any:
            block.set_copies(block.inbox.read_now(block.leader), add=True)
            return tf.constant(True)

        return tf.cond(block.is_there.read_now(block.leader) & ~taken, take, lambda: taken)

    def end(self, taken: Any = None) -> None:
        """Takes the answer over if it is not `taken`, bool scalar; what the group did since `begin` stays."""

        def take() -> Any:
            self._block.set_copies(self._change, add=True)
            return True

        if taken is None:
            take()
        else:
            tf.cond(taken, lambda: True, take)

    def _change_of_copies(self) -> Any:
        """What the answer adds to the group's copies, whenever it is taken over; notes what the group knows from now on."""
        block, leader = self._block, self._block.leader
        if self._rule.sends_copy:
            return -tf.concat(self._answers, axis=0)
        centres, left_out = self._answers, None
        if self._kind is not None:
            told = block.split(block.received.read(leader))
            centres = [before + news for before, news in zip(told, self._answers, strict=True)]
            block.received.assign(tf.concat(centres, axis=0), leader)
            left_out = self._copy - self._before - tf.concat(self._understood, axis=0)
        seen = tf.unstack(self._seen, len(block.sizes))
        each = zip(centres, block.split(self._before), self._understood, self._notes, seen, strict=True)
        lasts, seen = zip(*(self._rule.last(*values) for values in each), strict=True)
        last = tf.concat(lasts, axis=0)
        # w <- L + what was done since `begin` + what rounding has left out of the progress.
        block.last.assign(last, leader)
        block.seen.assign(tf.stack(seen), leader)
        change = last - self._copy
        return change if left_out is None else change + left_out


def take_over(block: ParameterBlock, servers: int, group: Any, groups: int) -> None:
    """Gives the group the values of the slices, for a block of any kind.

    Args:
        block: the block.
        servers: the number of the group's server group.
        group: the number of the group, int32 scalar.
        groups: how many there are.
    """
    vector = _told(block, servers, group)
    if block.kind is Kind.COUNTER:
        vector //= tf.cast(groups, vector.dtype)  # Each group makes its part of the updates.
    elif block.kind is Kind.SEED:
        vector += tf.cast(group, vector.dtype) * SEED_STRIDE
    block.set_copies(vector)
    if block.kind is Kind.EXCHANGED:
        block.last.assign(vector, block.leader)
        if block.known[servers]:
            block.received.assign(vector, block.leader)
        block.seen.assign(tf.zeros(block.seen.shape, tf.int64), block.leader)


def take_round(block: ParameterBlock, servers: int, group: Any) -> None:
    """Gives the group the centre as it is when a round is complete, after it has pushed its own change to that round.

    Args:
        block: the block, of kind EXCHANGED.
        servers: the number of the group's server group.
        group: the number of the group, int32 scalar.
    """
    vector = _told(block, servers, group)
    # What rounding has left out of the progress stays.
    block.set_copies(vector - block.last.read(block.leader), add=True)
    block.last.assign(vector, block.leader)
    block.received.assign(vector, block.leader)


def _told(block: ParameterBlock, servers: int, group: Any) -> Any:
    """The slices' values as a vector, which the group knows from now on."""
    parts = []
    for number, each in enumerate(block.slices[servers]):
        value = each.read()
        if block.known[servers]:
            with tf.device(each.device):
                known = block.known[servers][number]
                tf.raw_ops.ResourceScatterUpdate(resource=known.handle(), indices=group[None], updates=value[None])
        parts.append(value)
    return tf.concat(parts, axis=0)
