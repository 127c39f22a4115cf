"""What a replica knows of itself while its step of a model is traced.

TensorFlow traces the replicas' steps in one thread each; all that is here belongs to the current thread.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf


class SparseInLoopError(Exception):
    """A step in a loop has sparse gradients, which cannot be added up there: never reaches the user."""


@dataclass
class Replica:
    """One replica in one step.

    Attributes:
        strategy: the strategy whose replica it is.
        index: its number among those of this task.
        share: its examples divided by those of the whole batch, a float32 scalar; these add up to 1 over all replicas.
        assigned: variables that the step assigned, by id.
        reduced: whether gradients have been added up over the replicas already.
        waiting: where updates wait for the end of compiled code as (optimizer, gradients, variables); None outside of it.
        looping: whether the step is traced as the body of a loop.
        same: ids of variables that get the same value on every replica, so that nothing has to be sent.
    """

    strategy: tf.distribute.Strategy
    index: int
    share: Any
    assigned: dict[int, Any] = field(default_factory=dict)
    reduced: bool = False
    waiting: list[Any] | None = None
    looping: bool = False
    same: set[int] = field(default_factory=set)


_here = threading.local()


def current() -> Replica | None:
    """The replica that this thread traces a step of; None outside of tfdist's own step functions."""
    return getattr(_here, "replica", None)


@contextlib.contextmanager
def entered(replica: Replica) -> Iterator[Replica]:
    """Makes `replica` the current one of this thread."""
    before = current()
    _here.replica = replica
    try:
        yield replica
    finally:
        _here.replica = before
