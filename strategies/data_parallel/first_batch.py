"""Finds out that tasks which should read the same data read different ones.

Every task takes its part of each batch. If a program divides the data by rank, as it would for Horovod, each task takes a part
of its own part, and most examples are never seen: the numbers of batches are equal, so nothing else shows it. Each task
computes a fingerprint of the first batch that a call reads, in the input pipeline, and the first task compares them.

The fingerprint is that of the targets where there are any: augmented inputs may differ, because parallel calls of `Dataset.map`
draw random numbers in any order.
"""

import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.data_parallel.board import DATA_ADVICE, Board, DifferentCallsError

WAIT_SECONDS = 1.0
"""How long the first task waits for the fingerprints of others after an execution, in which all have read a batch."""

_log = logging.getLogger("tfdist")


class FirstBatch:
    """The first batch of one call, on this task and on the others.

    Args:
        me: the name of this task.
        names: the names of all tasks. The first compares.
        key: the name of the comparison, the same on all tasks.
        board: where they tell each other.
    """

    def __init__(self, me: str, names: Sequence[str], key: str, board: Board) -> None:
        self._me, self._names, self._key, self._board = me, list(names), key, board
        self._is_read = threading.Event()
        self._fingerprint = 0
        self._is_told = False

    def watch(self, number: tf.Tensor, batch: Any) -> None:
        """Notes the fingerprint of batch 0, in the function of a `Dataset.map`."""

        def note(value: Any) -> Any:
            if not self._is_read.is_set():
                self._fingerprint = int(value)
                self._is_read.set()
            return value

        zero = tf.constant(0, tf.int64)
        # Stateful, so it runs although nothing reads its output.
        tf.cond(tf.equal(number, 0), lambda: tf.numpy_function(note, [fingerprint(batch)], tf.int64), lambda: zero)

    def compare(self) -> None:
        """Warns, in the first task, if a task has read another first batch. Later calls do nothing."""
        if self._is_told or not self._is_read.is_set():
            return
        self._is_told = True
        with contextlib.suppress(tf.errors.OpError, DifferentCallsError):
            if self._me != self._names[0]:
                self._board.put(f"{self._key}/{self._me}", str(self._fingerprint))
                return
            for name in self._names[1:]:
                other = self._board.take(f"{self._key}/{name}", WAIT_SECONDS)
                if other is not None and int(other) != self._fingerprint:
                    _log.warning(
                        "%s and %s read different batches, so examples may be left out or count twice; %s. This does no harm "
                        "if the program draws each task's examples at random on purpose",
                        *(self._me, name, DATA_ADVICE),
                    )
                    return

    def close(self) -> None:
        """Removes what this task has told."""
        if self._is_told and self._me != self._names[0]:
            with contextlib.suppress(tf.errors.OpError):
                self._board.remove(f"{self._key}/{self._me}")


def fingerprint(batch: Any) -> tf.Tensor:
    """Returns a number, int64, that depends on the targets of a batch; on all of it if it has no targets."""
    chosen = batch[1] if isinstance(batch, tuple) and len(batch) > 1 else batch
    leaves = [leaf for leaf in tf.nest.flatten(chosen, expand_composites=True) if isinstance(leaf, tf.Tensor)]
    texts = [tf.io.serialize_tensor(leaf) for leaf in leaves if leaf.dtype != tf.variant]
    return tf.strings.to_hash_bucket_fast(tf.strings.join(texts), 2**62) if texts else tf.constant(0, tf.int64)
