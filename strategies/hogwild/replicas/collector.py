"""Collects the progress of all worker groups, so that the chief has it and every group continues from the same parameters."""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.coordinator.calls.tracing import tracing_lock
from tfdist.strategies.hogwild.synchronization.global_parameters import ParameterBlock
from tfdist.strategies.hogwild.synchronization.local_variable import Kind
from tfdist.strategies.private_api.eager_context import own_executor
from tfdist.strategies.runtime import chief_device
from tfdist.strategies.runtime.deadline import Deadline

ASK_SECONDS = 1.0
"""A group that takes longer to flush is asked for an answer, again and again. Without one it is lost."""

ANSWER_SECONDS = 15.0
SLOWEST_BYTES_PER_SECOND = 1e7
"""The chief waits 15 s for groups that flush, plus the time that their bytes take at 10 MB/s, a shared network of 100 Mbit/s.

A group that takes longer counts as lost, like a group whose worker is gone, until it answers again.
"""

PIECE = 2**16
"""Numbers of which the chief computes the mean at a time."""

_log = logging.getLogger("tfdist")


class Collector:
    """Lets groups flush, and merges what they return.

    Args:
        flush: flushes a block of a group, unless a function says in its turn that nobody waits for it any more: then None.
            Returns its local replica where the block keeps no progress on the ps.
        mark_lost: notes that a group has failed or has not answered in time.
        give_up: called with groups that take long, or too long. Asks them for an answer, and ends the calls to those without.
        complete_round: ends the current round of a block.
    """

    def __init__(
        self,
        flush: Callable[[ParameterBlock, int, Callable[[], bool]], Any],
        mark_lost: Callable[[int], None],
        complete_round: Callable[[ParameterBlock], None],
        give_up: Callable[[list[int]], None] = lambda groups: None,
    ) -> None:
        self._flush = flush
        self._mark_lost = mark_lost
        self._complete_round = complete_round
        self._give_up = give_up

    def collect(
        self,
        blocks: Iterable[ParameterBlock],
        server_group: int | None,
        meanwhile: Callable[[], None] = lambda: None,
        others: Mapping[ParameterBlock, Collection[int]] | None = None,
    ) -> dict[ParameterBlock, dict[int, Any]]:
        """Gives the progress of all groups to the chief, and lets all groups continue from the result.

        No execution may be in flight. Groups that do not answer are left out.

        Args:
            blocks: the blocks to collect.
            server_group: the server group with all progress; None takes the mean over all server groups.
            meanwhile: called when the ps have all progress, while the groups send the other blocks.
            others: groups that send blocks that are not synchronized too, although they have no progress there.

        Returns:
            The local replicas of the blocks that are not synchronized, numpy [size], by group, as far as they were collected.
        """
        others = others or {}
        dirty = {block: sorted(block.dirty) for block in blocks if block.is_ahead}
        # What goes to the ps comes first: the chief fetches the result while the groups send the rest.
        order = sorted({**dirty, **others}, key=lambda block: block.kind is not Kind.SYNCHRONIZED)
        flushes = self._begin({block: sorted({*dirty.get(block, ()), *others.get(block, ())}) for block in order})
        collected = {}
        try:
            for block in order:
                if block.kind is Kind.SYNCHRONIZED:
                    self._collect_global(block, self._answers(flushes, block), server_group)
                    block.dirty.clear()  # Not before, or nobody would fetch the values after Ctrl-C.
            meanwhile()
            for block in order:
                if block.kind is not Kind.SYNCHRONIZED:
                    collected[block] = answers = self._answers(flushes, block)
                    if block in dirty:
                        if own := [answers[group] for group in dirty[block] if group in answers]:
                            block.set_values(_merged(own, answers.get(0) if 0 in dirty[block] else None, block.dtype))
                        block.dirty.clear()
        finally:
            flushes.close()  # After Ctrl-C the groups may train before the last of them has begun.
        return collected

    def _collect_global(self, block: ParameterBlock, answers: dict[int, Any], server_group: int | None) -> None:
        if block.optimizer.in_rounds:
            self._complete_round(block)
        if block.optimizer.pushes_parameters and answers:
            # An elastic push moves the replica only a part of the way. The mean of the replicas has all progress.
            block.set_values(_projected(block, _merged(list(answers.values()), None, block.dtype)))
            block.publish()
            return
        values = block.fetch(server_group)
        projected = _projected(block, values)
        block.set_values(projected)
        block.begin_generation()
        if not block.assigned and (len(block.shards) > 1 or projected is not values):
            block.publish()  # Groups of all server groups continue from, and evaluate, the same parameters.

    def _begin(self, asked: Mapping[ParameterBlock, Sequence[int]]) -> "_Flushes":
        """Lets groups flush blocks, each of them one block after the other, and all groups at the same time."""
        size = sum(block.size * block.dtype.size * len(groups) for block, groups in asked.items())
        flushes = _Flushes(asked, Deadline.after(ANSWER_SECONDS + size / SLOWEST_BYTES_PER_SECOND, tracing_lock.now))
        for group in sorted({group for groups in asked.values() for group in groups}):
            blocks = [block for block, groups in asked.items() if group in groups]
            threading.Thread(target=self._flush_all, args=(flushes, group, blocks), daemon=True).start()
        return flushes

    def _flush_all(self, flushes: "_Flushes", group: int, blocks: Sequence[ParameterBlock]) -> None:
        with own_executor():  # Else all threads wait for the one whose worker is stopped.
            self._flush_each(flushes, group, blocks)

    def _flush_each(self, flushes: "_Flushes", group: int, blocks: Sequence[ParameterBlock]) -> None:
        is_lost = False
        try:
            for block in blocks:
                is_shared = block.kind is Kind.SYNCHRONIZED
                if is_lost and is_shared:
                    continue
                try:
                    answer = self._flush(block, group, lambda: flushes.has_ended(group))
                    if answer is None:
                        return
                    flushes.add(block, group, chief_device.fetched(answer).numpy())
                except tf.errors.OpError as error:
                    _log.debug("group %d did not flush its progress: %s", group, error)
                    is_lost = True
                    self._mark_lost(group)
                    if not is_shared:
                        return  # The worker is gone: what groups do not share needs no ps.
        finally:
            flushes.end(group)

    def _answers(self, flushes: "_Flushes", block: ParameterBlock) -> dict[int, Any]:
        """Waits for what groups return for a block. Groups that take too long are lost."""
        while flushes.late(block) and not flushes.deadline.expired():
            if waiting := flushes.wait(block, flushes.deadline.within(ASK_SECONDS)):
                self._give_up(waiting)
        for group in flushes.late(block):
            _log.warning(
                "worker group %d has not sent its progress in time: what it has not synchronized is lost, and it starts anew",
                group,
            )
            self._mark_lost(group)
            flushes.end(group)
        return flushes.of(block)


class _Flushes:
    """What groups answer. Any thread may call the methods."""

    def __init__(self, asked: Mapping[ParameterBlock, Sequence[int]], deadline: Deadline) -> None:
        self.deadline = deadline
        self._asked = asked
        self._answers: dict[ParameterBlock, dict[int, Any]] = {block: {} for block in asked}
        self._ended: set[int] = set()
        self._changed = threading.Condition()

    def add(self, block: ParameterBlock, group: int, answer: Any) -> None:
        """Notes what a group has returned."""
        with self._changed:
            if group not in self._ended:
                self._answers[block][group] = answer
                self._changed.notify_all()

    def end(self, group: int) -> None:
        """Notes that a group returns nothing any more."""
        with self._changed:
            self._ended.add(group)
            self._changed.notify_all()

    def close(self) -> None:
        """Notes that nobody waits for groups any more."""
        with self._changed:
            self._ended.update(*self._asked.values())

    def has_ended(self, group: int) -> bool:
        """Returns whether a group returns nothing any more: the others may train with what it has flushed."""
        with self._changed:
            return group in self._ended

    def late(self, block: ParameterBlock) -> list[int]:
        """Returns the groups that may still return something for a block."""
        with self._changed:
            return [group for group in self._asked[block] if group not in self._answers[block].keys() | self._ended]

    def wait(self, block: ParameterBlock, deadline: Deadline) -> list[int]:
        """Waits until no group is late, or until `deadline`. Returns those that are."""
        with self._changed:
            self._changed.wait_for(lambda: not self.late(block), deadline.remaining())
            return self.late(block)

    def of(self, block: ParameterBlock) -> dict[int, Any]:
        """Returns the answers of the groups for a block, in their order."""
        with self._changed:
            return {group: self._answers[block][group] for group in self._asked[block] if group in self._answers[block]}


def _projected(block: ParameterBlock, values: Any) -> Any:
    """Returns the values with Keras' constraints applied; `values` itself if that changes nothing.

    A group applies them to its local replica. What several groups push need not satisfy them. A weight that nobody has moved
    since, such as a frozen one, keeps its values: Keras applies constraints only to what it trains.
    """
    projected = values
    for variable in block.variables:
        if variable.keras_constraint is not None:
            before = block.cut(projected, variable)
            if block.values is not None and np.array_equal(before, block.cut(block.values, variable)):
                continue
            after = np.asarray(variable.keras_constraint(before))
            if not np.array_equal(before, after):
                projected = projected.copy() if projected is values else projected
                block.cut(projected, variable)[...] = after
    return projected


def _merged(vectors: list[Any], first: Any, dtype: tf.DType) -> Any:
    """Returns the mean of floating-point vectors. For other dtypes returns the first group's, or any if that is None."""
    if not dtype.is_floating:
        return (vectors[0] if first is None else first).copy()  # Others may assign parts of it.
    mean = np.empty_like(vectors[0])
    for begin in range(0, mean.size, PIECE):  # In pieces that stay in the processor's cache.
        piece = slice(begin, begin + PIECE)
        mean[piece] = np.mean([vector[piece] for vector in vectors], axis=0, dtype=np.float64)
    return mean
