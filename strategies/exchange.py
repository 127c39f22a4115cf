"""One exchange of a worker group with the centre, inside the function that the group runs.

What was read before the local steps is pushed and answered while they run: nothing but their first and last operations touch
the same variables, so TensorFlow runs both side by side. What the group does meanwhile stays its own progress and goes with
the next exchange, so no update is lost however late the answer comes.
"""

from typing import Any

import tensorflow as tf

from tfdist.strategies import compression, topology
from tfdist.strategies.centre import Block
from tfdist.strategies.local_variable import Kind
from tfdist.strategies.outer import Control

SEED_STRIDE = 1_000_003
"""Between the seeds of two groups: any number that users' own seeds are unlikely to differ by."""


class Exchange:
    """The exchange of one block by a group that belongs to server group `servers`.

    `begin`, the local steps, then `end`.
    """

    def __init__(
        self, block: Block, rule: Any, servers: int, kind: str | None, control: Control, mixing: str = "centre"
    ) -> None:
        self._block = block
        self._rule = rule
        self._servers = servers
        self._kind = kind
        self._control = control
        self._topology = mixing

    def begin(self) -> None:
        """Sends the group's progress and asks for the centre."""
        block = self._block
        self._copy = block.copies()
        self._before = None if self._rule.sends_copy else block.last.read(block.leader)
        self._seen = block.seen.read(block.leader)
        progress = self._copy if self._rule.sends_copy else self._copy - self._before
        self._understood, self._answers, self._notes = [], [], []
        for number, part in enumerate(block.split(progress)):
            understood, answer, note = self._push(number, part)
            self._understood.append(understood)
            self._answers.append(answer)
            self._notes.append(note)

    def _push(self, number: int, part: Any) -> tuple[Any, Any, Any]:
        """For one slice: the progress as the ps has understood it, the answer and the note."""
        block, control, kind = self._block, self._control, self._kind
        centre, state = block.slices[self._servers][number], block.state[self._servers][number]
        length = block.sizes[number]
        message = (part,) if kind is None else compression.encode(part, kind)
        understood = part if kind is None else compression.decode(message, length, kind)
        with tf.device(centre.device):
            there = (
                message[0] if kind is None else compression.decode(tf.nest.map_structure(tf.identity, message), length, kind)
            )
            there = tf.identity(there)
            answer, note = self._rule.received(centre, state, there, control)
            if self._topology != "centre":
                topology.mix(self._topology, block, self._servers, number)
                answer = centre.read()
            if kind is not None:
                # The group knows what it was told so far; it is sent what is new since, and what rounding left out goes next time.
                known = block.known[self._servers][number]
                row = tf.gather(known.read(), control.group)
                answer = compression.encode(answer - row, kind)
                row += compression.decode(answer, length, kind)
                tf.raw_ops.ResourceScatterUpdate(resource=known.handle(), indices=control.group[None], updates=row[None])
            answer, note = tf.nest.map_structure(tf.identity, (answer, note))
        if kind is not None:
            answer = compression.decode(tf.nest.map_structure(tf.identity, answer), length, kind)
        return understood, answer, note

    def end(self) -> None:
        """Takes the answer over; what the group did since `begin` stays."""
        block = self._block
        answer = tf.concat(self._answers, axis=0)
        if self._rule.sends_copy:
            block.set_copies(-answer, add=True)
            return
        if self._kind is not None:
            answer = block.received.read(block.leader) + answer
            block.received.assign(answer, block.leader)
        lasts, seens = [], []
        for centre, before, handed_over, note, seen in zip(
            block.split(answer),
            block.split(self._before),
            self._understood,
            self._notes,
            tf.unstack(self._seen, len(block.sizes)),
            strict=True,
        ):
            last, seen = self._rule.last(centre, before, handed_over, note, seen)
            lasts.append(last)
            seens.append(seen)
        last = tf.concat(lasts, axis=0)
        # w <- L + what was done since `begin` + what rounding has left out of the progress.
        left_out = 0.0 if self._kind is None else self._copy - self._before - tf.concat(self._understood, axis=0)
        block.set_copies(last - self._copy + left_out, add=True)
        block.last.assign(last, block.leader)
        block.seen.assign(tf.stack(seens), block.leader)


def take_over(block: Block, servers: int, group: Any, groups: int) -> None:
    """Gives the group the values of the slices, for a block of any kind.

    Args:
        block: the block.
        servers: the number of the group's server group.
        group: the number of the group, int32 scalar.
        groups: how many there are.
    """
    parts = []
    for number, each in enumerate(block.slices[servers]):
        value = each.read()
        if block.known[servers]:
            with tf.device(each.device):
                known = block.known[servers][number]
                tf.raw_ops.ResourceScatterUpdate(resource=known.handle(), indices=group[None], updates=value[None])
        parts.append(value)
    vector = tf.concat(parts, axis=0)
    if block.kind is Kind.COUNTER:
        vector //= tf.cast(groups, vector.dtype)  # Each group makes its part of the updates.
    elif block.kind is Kind.SEED:
        vector += tf.cast(group, vector.dtype) * SEED_STRIDE
    block.set_copies(vector)
    if block.kind is Kind.EXCHANGED:
        block.last.assign(vector, block.leader)
        block.received.assign(vector, block.leader)
        block.seen.assign(tf.zeros(block.seen.shape, tf.int64), block.leader)
