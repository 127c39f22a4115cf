"""The batches of a call are split if they are more than a message takes."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.coordinator.calls import call_size
from tfdist.strategies.coordinator.calls.group_function import HostBatch
from tfdist.strategies.parameter_server.training_loop import Steps


@pytest.fixture
def run():
    return [HostBatch.of((tf.fill([4], float(number)), tf.zeros([4]))) for number in range(10)]  # Of 32 bytes each.


@pytest.mark.parametrize(("most", "sizes"), [(2**29, [10]), (320, [10]), (319, [5, 5]), (100, [3, 3, 3, 1]), (1, [1] * 10)])
def test_a_run_is_split_in_order_by_its_bytes(monkeypatch, run, most, sizes):
    monkeypatch.setattr(call_size, "MOST_CALL_BYTES", most)
    calls = call_size.calls_of(run)
    assert [len(call) for call in calls] == sizes
    assert [batch for call in calls for batch in call] == run


def test_steps_of_parameter_server_send_many_large_batches_with_several_messages(monkeypatch):
    monkeypatch.setattr(call_size, "MOST_CALL_BYTES", 100)
    prepared, scheduled = [], []

    class Function:
        def prepare(self, run, element_spec=None):
            prepared.append(len(run))
            return lambda group: np.array(len(prepared))

    class Ignores:
        def begin_steps(self):
            pass

        def schedule(self, function, owner):
            scheduled.append(function)

    steps = Steps(None, Function(), Ignores(), Ignores())
    steps._schedule([(tf.zeros([8]),)] * 10)
    assert prepared == [3, 3, 3, 1]
    assert scheduled[0](0) == 4
