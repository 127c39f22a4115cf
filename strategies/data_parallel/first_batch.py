"""Finds out that tasks which should read the same data read different ones.

Every task takes its part of each batch. If a program divides the data by rank, as it would for Horovod, each task takes a part
of its own part, and most examples are never seen. The numbers of batches are equal, so nothing else shows it. So each task
computes a fingerprint of the first batch that a call reads in each of its epochs, in the input pipeline, and the first task
compares them. (The first epoch alone would not do: only later ones differ if the chief alone has drawn random numbers by which
the data are shuffled.)

Augmented inputs may differ, because parallel calls of `Dataset.map` draw random numbers in any order. So what is compared is
what is least likely augmented:

* integers and texts of the targets;
* those of the inputs, such as words that a vocabulary numbers, but no images;
* floats, only if a batch has neither.
"""

import contextlib
import json
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.errors import DifferentCallsError
from tfdist.strategies.data_parallel.board import DATA_ADVICE, Board

WAIT_SECONDS = 1.0
"""How long the first task waits for the fingerprints of others after an execution, in which all have read a batch."""

MOMENT_SECONDS = 0.01
"""How long it looks for those of later epochs. It looks again after the next execution."""

KEPT_EPOCHS = 4
"""For so many epochs a task leaves its fingerprints for the first task."""

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

SAME_SENTENCE = (
    "%s and %s read the same batches under tf.data's sharding policy OFF, by which each task reads data of its own: in every "
    "step they compute the same examples. Do not set the policy, so that every task takes its part of each batch, or divide "
    "the data by rank"
)
"""What is said if tasks that should read different data read the same."""

_log = logging.getLogger("tfdist")


class FirstBatch:
    """The first batches of the epochs of one call, on this task and on the others.

    Args:
        me: the name of this task.
        names: the names of all tasks. The first compares.
        key: the name of the comparison, the same on all tasks.
        board: where they tell each other.
        apart: whether each task should read data of its own.
    """

    def __init__(self, me: str, names: Sequence[str], key: str, board: Board, apart: bool = False) -> None:
        self._me, self._names, self._key, self._board = me, list(names), key, board
        self._read: list[list[int]] = []  # The fingerprints of the first batch of each epoch.
        self._compared = 0  # For how many epochs this task has told its own, or compared those of all.
        self._others_compared = 0  # How many of the others have been compared for the next epoch.
        self._is_apart = apart
        self._is_said = False
        self._published: deque[str] = deque()  # The names under which this task has told its own.

    def watch(self, number: tf.Tensor, batch: Any) -> None:
        """Notes the fingerprints of batch 0 of each epoch, in the function of a `Dataset.map`."""

        def note(value: Any) -> Any:
            self._read.append([int(each) for each in value])
            return value

        zeros = tf.zeros([len(SENTENCES)], tf.int64)
        # Stateful, so it runs although nothing reads its output.
        tf.cond(tf.equal(number, 0), lambda: tf.numpy_function(note, [fingerprints(batch)], tf.int64), lambda: zeros)

    def note(self, batch: Any) -> None:
        """Notes the fingerprints of a batch that the program itself gives to a call."""
        self._read.append([int(each) for each in fingerprints(batch)])

    def watched(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a dataset whose batches are watched."""

        def element(number: tf.Tensor, batch: Any) -> Any:
            self.watch(number, batch)
            return batch

        return dataset.enumerate().map(tf.autograph.experimental.do_not_convert(element))

    def compare(self) -> None:
        """Warns, in the first task, if a task has read another first batch in an epoch. The first difference only."""
        with contextlib.suppress(tf.errors.OpError, DifferentCallsError):
            while self._compared < len(self._read) and not self._is_said:
                if self._me != self._names[0]:
                    self._publish()
                elif not self._compare_epoch():
                    return
                self._compared += 1

    def close(self) -> None:
        """Removes what this task has told."""
        with contextlib.suppress(tf.errors.OpError):
            while self._published:
                self._board.remove(self._published.popleft())

    def _publish(self) -> None:
        name = f"{self._key}/{self._compared}/{self._me}"
        self._board.put(name, json.dumps(self._read[self._compared]))
        self._published.append(name)
        if len(self._published) > KEPT_EPOCHS:
            self._board.remove(self._published.popleft())

    def _compare_epoch(self) -> bool:
        """Compares the first batches of the next epoch; returns False if another task has not told its own yet."""
        while self._others_compared < len(self._names) - 1:
            name = self._names[1 + self._others_compared]
            # In the first epoch tasks may begin at different times. Later a task is asked again after the next execution.
            seconds = MOMENT_SECONDS if self._compared else WAIT_SECONDS
            other = self._board.take(f"{self._key}/{self._compared}/{name}", seconds)
            if other is None and self._compared:
                return False
            self._others_compared += 1
            if other is None:
                continue
            if (sentence := self._sentence(json.loads(other), self._read[self._compared])) is not None:
                self._is_said = True
                _log.warning(sentence, self._me, name)
                return True
        self._others_compared = 0
        return True

    def _sentence(self, theirs: list[int], own: list[int]) -> str | None:
        """Returns what to say of the fingerprints of two tasks; None if they are as they should be."""
        if self._is_apart:
            return SAME_SENTENCE if theirs == own and any(own) else None
        return next((text for one, other, text in zip(theirs, own, SENTENCES, strict=True) if one != other), None)


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
