"""Threads of worker groups that choose their own periods trace no function: they would race for what a trace records."""

import contextlib
import threading
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.strategies.hogwild.group_calls import GroupCalls
from tfdist.strategies.hogwild.replicas.step_counters import StepCounters
from tfdist.strategies.hogwild.timing.measured_delay import MeasuredDelay
from tfdist.strategies.hogwild.training_loop import Steps
from tfdist.synchronization import Synchronization


class Speeds:
    """Gives a group these periods, one after the other."""

    def __init__(self, periods):
        self.periods = list(periods)

    def period(self, group, period):
        return self.periods.pop(0)

    @contextlib.contextmanager
    def measured(self, group, steps):
        yield


@pytest.mark.parametrize("delay", [1, 0])
@pytest.mark.parametrize("periods", [[8], [1] * 8, [3, 3, 3], [5, 5], [7, 1], [2, 6]])
@pytest.mark.parametrize("begins_built", [True, False])
def test_a_thread_of_a_group_traces_nothing(delay, periods, begins_built, monkeypatch):
    traced_by, made = [], []
    blocks = ["block"] if begins_built else []

    def trace(calls, batches, *_):
        traced_by.append(threading.current_thread())
        blocks[:] = ["block"]  # Known after the first trace.
        return object()

    def run(calls, functions, batches, period, group, step):
        made.append((step, len(batches)))
        return tf.zeros([len(batches)])

    monkeypatch.setattr(GroupCalls, "_trace", trace)
    monkeypatch.setattr(GroupCalls, "_run", run)
    strategy = SimpleNamespace(
        synchronization=Synchronization("average", adaptive=True, delay=delay),
        steps_per_synchronization=8,
        shares_replicas=False,
        speeds=Speeds(periods),
        local_replicas=None,
        membership=None,
        executions=None,
    )
    calls = object.__new__(GroupCalls)
    calls._trains, calls._strategy, calls._functions, calls._longest = True, strategy, {}, 0
    calls.blocks = SimpleNamespace(synchronized=blocks, synchronize_assigned=lambda: False, take=lambda: None)
    calls.counters, calls._replicas = StepCounters(), SimpleNamespace(keeps_progress=False)
    calls.delay = MeasuredDelay(delay, 1, strategy.steps_per_synchronization)
    steps = Steps(strategy, SimpleNamespace(optimizer=None), calls, None, trains=True)
    (call,) = steps._prepare([tf.zeros([4, 2])] * 8, None, 8)
    thread = threading.Thread(target=call, args=(0,))
    thread.start()
    thread.join(20)
    assert sum(count for _, count in made) == 8 and [step for step, _ in made] == [sum(periods[:n]) for n in range(len(made))]
    assert traced_by and thread not in traced_by
