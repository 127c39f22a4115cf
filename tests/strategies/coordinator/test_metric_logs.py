"""The sums over worker groups: each step counts once, whatever becomes of the worker that has made it."""

from types import SimpleNamespace

import numpy as np

from tfdist.strategies.coordinator.metric_logs import MetricLogs


def test_what_a_worker_had_counted_stays_when_it_is_restarted_and_counts_from_zero():
    logs = MetricLogs(None)
    logs._variables, logs._size, logs._means = [object()], 2, [(0, 1)]  # One mean: a total and a count.
    logs._metric_logs._places = {"loss": 0}
    logs.reset()

    def add(group, incarnation, total, count):
        execution = SimpleNamespace(group=group, incarnation=incarnation)
        return logs.add(execution, np.array([[float(total), float(count)]]))

    add(0, 0, 8, 8)
    add(1, 0, 4, 8)
    assert logs._sum.tolist() == [12.0, 16.0]
    add(1, 0, 8, 16)  # All that it has counted.
    assert logs._sum.tolist() == [16.0, 24.0]
    add(1, 1, 6, 8)  # It was restarted.
    assert logs._sum.tolist() == [22.0, 32.0]
    add(0, 0, 16, 16)
    add(1, 1, 8, 16)
    assert logs._sum.tolist() == [32.0, 48.0]
