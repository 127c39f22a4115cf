"""Finds out that tasks which should read the same data read different ones.

Every task takes its part of each batch. If a program divides the data by rank, as it would for Horovod, each task takes a part
of its own part, and most examples are never seen: the numbers of batches are equal, so nothing else shows it. Each task
computes a fingerprint of the first batch that a call reads, in the input pipeline, and the first task compares them.

Augmented inputs may differ, because parallel calls of `Dataset.map` draw random numbers in any order. So three fingerprints are
compared, of what is least likely augmented: integers and texts of the targets; those of the inputs, such as words that a
vocabulary numbers, but no images; and floats only if a batch has neither.
"""

import contextlib
import json
import logging
import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.data_parallel.board import DATA_ADVICE, Board, DifferentCallsError

WAIT_SECONDS = 1.0
"""How long the first task waits for the fingerprints of others after an execution, in which all have read a batch."""

SENTENCES = (
    f"%s and %s read different batches, so examples may be left out or count twice; {DATA_ADVICE}. This does no harm if the "
    "program draws each task's examples at random on purpose",
    "%s and %s read different integers or texts as inputs. If words or categories are numbered in the order of a set, each "
    f"task numbers them differently: sort them first. Otherwise, {DATA_ADVICE}. This does no harm if the program draws or "
    "masks each task's inputs at random on purpose",
    "%s and %s read different batches. This does no harm if they are augmented at random, as views of images are. Otherwise "
    f"examples may be left out or count twice; {DATA_ADVICE}",
)
"""What is said if the first, the second or the third fingerprint differs."""

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
        self._fingerprints = [0, 0, 0]
        self._is_told = False

    def watch(self, number: tf.Tensor, batch: Any) -> None:
        """Notes the fingerprints of batch 0, in the function of a `Dataset.map`."""

        def note(value: Any) -> Any:
            if not self._is_read.is_set():
                self._fingerprints = [int(each) for each in value]
                self._is_read.set()
            return value

        zeros = tf.zeros([len(SENTENCES)], tf.int64)
        # Stateful, so it runs although nothing reads its output.
        tf.cond(tf.equal(number, 0), lambda: tf.numpy_function(note, [fingerprints(batch)], tf.int64), lambda: zeros)

    def compare(self) -> None:
        """Warns, in the first task, if a task has read another first batch. Later calls do nothing."""
        if self._is_told or not self._is_read.is_set():
            return
        self._is_told = True
        with contextlib.suppress(tf.errors.OpError, DifferentCallsError):
            if self._me != self._names[0]:
                self._board.put(f"{self._key}/{self._me}", json.dumps(self._fingerprints))
                return
            for name in self._names[1:]:
                other = self._board.take(f"{self._key}/{name}", WAIT_SECONDS)
                if other is None:
                    continue
                pairs = zip(json.loads(other), self._fingerprints, SENTENCES, strict=True)
                if (sentence := next((text for theirs, own, text in pairs if theirs != own), None)) is not None:
                    _log.warning(sentence, self._me, name)
                    return

    def close(self) -> None:
        """Removes what this task has told."""
        if self._is_told and self._me != self._names[0]:
            with contextlib.suppress(tf.errors.OpError):
                self._board.remove(f"{self._key}/{self._me}")


def fingerprints(batch: Any) -> tf.Tensor:
    """Returns numbers that depend on a batch: on its discrete targets, its discrete inputs and, without both, its floats.

    The numbers are int64. Floats are those of the targets, or of all of it if it has no targets.
    """
    inputs, targets = (batch[0], batch[1]) if isinstance(batch, tuple) and len(batch) > 1 else (batch, None)
    of_targets = [leaf for leaf in _leaves(targets) if not leaf.dtype.is_floating]
    of_inputs = [leaf for leaf in _leaves(inputs) if not leaf.dtype.is_floating and not _is_image(leaf)]
    floats = [] if of_targets or of_inputs else _leaves(targets) or _leaves(inputs)
    return tf.stack([_fingerprint(leaves) for leaves in (of_targets, of_inputs, floats)])


def _leaves(nested: Any) -> list[tf.Tensor]:
    leaves = tf.nest.flatten(nested, expand_composites=True)
    return [leaf for leaf in leaves if isinstance(leaf, tf.Tensor) and leaf.dtype != tf.variant]


def _is_image(leaf: tf.Tensor) -> bool:
    return leaf.dtype == tf.uint8 and (leaf.shape.rank is None or leaf.shape.rank > 2)


def _fingerprint(leaves: Sequence[tf.Tensor]) -> tf.Tensor:
    texts = [tf.io.serialize_tensor(leaf) for leaf in leaves]
    return tf.strings.to_hash_bucket_fast(tf.strings.join(texts), 2**62) if texts else tf.constant(0, tf.int64)
