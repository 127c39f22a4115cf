"""How a call of `fit` begins, by which a program that is started again finds the backup of that call.

Models are counted as they begin to train, and so are the calls of each. Numbers are not enough for a program that finds files
of its own and skips what it has finished: its first call is then not the first of the training, and must not get the weights
and the `History` of that one. So a backup also has what is known of the beginning of each call:

* a call takes the backup of the call that it is like, if that is more like it than the call with its number;
* if it is like none, and the call with its number was finished, it begins anew.
"""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies.checkpoint import random_numbers

MOST_BYTES = 2**24
"""So much of each array is compared: all of it, or rows at equal distances."""


@dataclass
class FitStart:
    """What is known of the beginning of a call of `fit`.

    Attributes:
        epochs: the argument of `fit`.
        initial_epoch: the argument of `fit`.
        iterations: how many updates the optimizer had made; None if unknown.
        trainable: the number of trainable variables; None if the model was not built.
        learning_rate: a constant learning rate; None for a schedule.
        data: a digest of the arrays that `fit` got; None for other data, which only reading shows.
        random: a digest of Python's and numpy's random numbers, which a program that sets its seed has again.
    """

    epochs: int
    initial_epoch: int
    iterations: int | None = None
    trainable: int | None = None
    learning_rate: float | None = None
    data: str | None = None
    random: str = ""

    def may_be(self, other: "FitStart") -> bool:
        """Returns whether both may be the same call."""
        same = (self.epochs, self.initial_epoch) == (other.epochs, other.initial_epoch)
        return same and _may_equal(self.iterations, other.iterations) and _may_equal(self.trainable, other.trainable)

    def likeness(self, other: "FitStart") -> int:
        """Returns a number: the more both have in common the greater, above 1 if that is hardly by chance, -1 for nothing."""
        if not self.may_be(other):
            return -1
        data = self.data is not None and self.data == other.data
        rate = self.learning_rate is not None and self.learning_rate == other.learning_rate
        return 4 * data + 2 * rate + (self.random == other.random)

    def difference(self, other: "FitStart") -> str:
        """Returns what differs from `other`, which was before the restart, for a sentence; "" for nothing."""
        names = ("iterations", "trainable", "learning_rate")
        values = [(name, getattr(other, name), getattr(self, name)) for name in names]
        changes = [f"{name} was {before} and is {now}" for name, before, now in values if not _may_equal(before, now)]
        if not _may_equal(self.data, other.data):
            changes.append("its data are others")
        return ", ".join(changes)


def _may_equal(one: Any, other: Any) -> bool:
    return one is None or other is None or one == other


def of(model: Any, arguments: Mapping[str, Any], is_whole: bool = True) -> FitStart:
    """Returns how a call begins.

    Args:
        model: the model.
        arguments: all arguments of `fit`, by name.
        is_whole: whether to return more than the epochs.
    """
    start = FitStart(int(arguments["epochs"]), int(arguments["initial_epoch"]))
    if not is_whole:
        return start
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.Optimizer):
        start.iterations = int(optimizer.iterations.numpy())
        rate = getattr(optimizer, "_learning_rate", None)
        start.learning_rate = float(rate.numpy()) if isinstance(rate, keras.Variable) else None
    if model.built:
        start.trainable = len(model.trainable_variables)
    digest = hashlib.sha256()
    with contextlib.suppress(Exception):  # Keras says what is wrong with the data.
        if all([_add(digest, arguments[name]) for name in ("x", "y", "sample_weight")]):
            start.data = digest.hexdigest()
    start.random = hashlib.sha256(repr(random_numbers.state()).encode()).hexdigest()
    return start


def find(start: FitStart, number: int, backups: Mapping[int, Sequence[FitStart]]) -> tuple[int, int]:
    """Returns which call before a restart is the first of a model after it.

    Args:
        start: how the call begins.
        number: the number of the model, from 1, if the program trains all models again.
        backups: by the numbers of models, from `number` on, how the calls of each have begun.

    Returns:
        The number of a model, and of its calls before this one.
    """
    calls = [(model, call, each) for model in sorted(backups) for call, each in enumerate(backups[model])]
    likeness = {(model, call): start.likeness(each) for model, call, each in calls}
    best = max(likeness, key=lambda place: likeness[place], default=(number, 0))  # The first of equal ones.
    counted = (number, 0)
    return best if likeness.get(best, 0) > max(1, likeness.get(counted, -1)) else counted


def _add(digest: Any, data: Any) -> bool:
    """Adds arrays to a digest. Returns False for anything else."""
    if isinstance(data, dict):
        return all([_add(digest, each) for each in (list(data), *data.values())])
    if isinstance(data, list | tuple) and any(hasattr(each, "shape") for each in data):
        return all([_add(digest, each) for each in data])
    shape = tuple(getattr(data, "shape", ()))
    if hasattr(data, "iloc"):  # pandas
        data = data.iloc[:: _step(len(data), data.memory_usage(deep=False))].to_numpy()
    elif data is None or isinstance(data, list | tuple):
        data = np.asarray(data)
    if not isinstance(data, np.ndarray | tf.Tensor):
        return False
    if data.ndim:
        item = data.dtype.size if isinstance(data, tf.Tensor) else data.dtype.itemsize
        data = data[:: _step(data.shape[0], item * int(np.prod(data.shape)))]
    array = np.asarray(data)
    digest.update(f"{array.dtype} {shape} ".encode())
    digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes())
    return True


def _step(rows: int, size: Any) -> int:
    """Returns the distance of the rows of an array of so many bytes that are compared."""
    return max(1, min(rows, -(-int(np.sum(size)) // MOST_BYTES)))
