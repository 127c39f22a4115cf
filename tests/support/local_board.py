"""A `Board` of the tasks of multi_worker_mirrored without TensorFlow."""

import threading
import time
from types import SimpleNamespace

from tfdist.strategies.data_parallel.same_calls import SameCalls


class LocalBoard:
    """What `Board` does, for threads."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def put(self, name, value):
        with self.changed:
            assert name not in self.values, f"{name} exists"
            self.values[name] = value
            self.changed.notify_all()

    def take(self, name, seconds):
        with self.changed:
            self.changed.wait_for(lambda: name in self.values, min(seconds, 0.05))
            return self.values.get(name)

    def remove(self, name):
        with self.changed:
            del self.values[name]


def same_calls_of(
    me,
    names,
    board,
    clock=time.monotonic,
    explain=lambda error: None,
    look_around=lambda: False,
    has_left=lambda name: False,
    watch=lambda name, may_end: lambda: None,
):
    """The calls of a task whose look at the others finds this; by default that all are there."""
    lost = SimpleNamespace(explain=explain, look_around=look_around, has_left=has_left, watch=watch)
    return SameCalls(me, names, lost, board, clock)
