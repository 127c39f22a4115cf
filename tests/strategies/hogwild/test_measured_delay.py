"""The delay of a pull follows from the measured times of a synchronization and of an update."""

from types import SimpleNamespace

import numpy as np
import pytest

from tfdist.strategies.hogwild.timing.measured_delay import MEASURED, STEPS, MeasuredDelay, delay_for, period_for, updates_alone
from tfdist.strategies.hogwild.training_loop import Steps
from tfdist.strategies.keras_hooks.interface import Readers


@pytest.mark.parametrize(
    ("synchronization", "update", "between", "delay"),
    [
        (0.001, 0.010, 16, 1),
        (0.010, 0.010, 16, 1),
        (0.021, 0.010, 16, 2),  # With 3 groups would wait for a tenth of an update less.
        (0.025, 0.010, 16, 3),
        (0.060, 0.010, 16, 4),
        (0.060, 0.010, 12, 3),  # A quarter of the updates between two pushes.
        (0.060, 0.010, 1, 1),
        (0.035, 0.010, 64, 3),
        (1.000, 0.010, 64, 1),  # Groups wait for 0.96 s or 0.99 s.
        (0.010, 0.000, 64, 1),
    ],
)
def test_the_delay_is_the_shortest_that_costs_no_more_than_a_fiftieth_of_the_time(synchronization, update, between, delay):
    assert delay_for(synchronization, update, between) == delay


def test_the_delay_is_that_of_the_period_that_has_grown():
    assert delay_for(0.025, 0.010, 16) == 3
    assert delay_for(0.025, 0.010, 16, period=64) == 2


@pytest.mark.parametrize(
    ("synchronization", "between", "longest", "period"),
    [
        (0.060, 16, 128, 16),  # Groups wait for 2 of 16 updates.
        (0.061, 16, 128, 32),
        (0.080, 16, 128, 32),  # The delay stays at 4 updates.
        (0.081, 16, 128, 64),
        (9.000, 16, 128, 128),
        (9.000, 16, 100, 64),
        (9.000, 20, 80, 80),
        (9.000, 16, 16, 16),
        (0.011, 1, 8, 1),  # The delay is at least 1.
        (0.050, 1, 8, 8),
    ],
)
def test_the_period_doubles_until_groups_hardly_wait(synchronization, between, longest, period):
    assert period_for(synchronization, 0.010, between, longest) == period


def rows(seconds, steps=16, update=0.01, pulls_after=1, wait=0.0):
    """What a group measures in a call: it waits after the pull."""
    ends = np.arange(1, steps + 1) * update
    ends[pulls_after:] += wait
    return np.stack([ends, np.where(np.arange(steps) == pulls_after - 1, seconds, 0.0)], axis=1)


def test_the_delay_is_measured_once_and_told():
    told = []
    delay = MeasuredDelay(None, groups=2, between=16, tell=told.append)
    assert delay.updates == 1
    for call in range(1 + MEASURED):
        for group in range(2):
            assert delay.updates == 1 and not told
            # The first calls compile. In a round, group 1 also waits for group 0.
            delay.note(group, rows(9.0 if call == 0 else (0.025, 0.095)[group], wait=0.2))
    assert delay.updates == 3
    assert told == [
        "hogwild: a synchronization takes 25 ms, an update 10 ms; groups pull the result 3 updates after a push (--delay)"
    ]
    delay.note(0, rows(0.095))
    assert delay.updates == 3 and len(told) == 1


def test_updates_that_contain_a_wait_do_not_count_for_the_speed_of_a_group():
    assert updates_alone(rows(0.5, steps=4, wait=3.0)) == pytest.approx([0.01, 0.01])
    assert updates_alone(rows(0.0, steps=1)) == []


def test_a_synchronization_that_takes_too_long_is_told():
    told = []
    delay = MeasuredDelay(None, groups=1, between=16, tell=told.append)
    for _ in range(1 + MEASURED):
        delay.note(0, rows(0.5))
    assert delay.updates == 3 and delay.between == 16
    assert (
        "groups wait about 470 ms in each 630 ms; --compression bf16 halves the bytes, and a longer --sync_period makes waits rarer"
        in told[1]
    )


def test_a_period_that_may_grow_does_so_once_and_is_told():
    told = []
    delay = MeasuredDelay(None, groups=1, between=8, longest=32, fragments=2, tell=told.append)
    for _ in range(1 + MEASURED):
        assert delay.between == 8
        delay.note(0, rows(0.5))
    assert (delay.between, delay.updates) == (32, 1)
    assert "the sync period is 64 updates from now on, not 16 (--longest_period)" in told[1]
    assert "groups wait about 490 ms in each 810 ms" in told[2]
    delay.note(0, rows(5.0))
    assert delay.between == 32 and len(told) == 3


def test_calls_have_the_batches_of_the_period_that_has_grown():
    delay = MeasuredDelay(None, groups=1, between=8, longest=32, tell=lambda line: None)
    strategy = SimpleNamespace(
        local_replicas=None,
        membership=SimpleNamespace(live_groups=[0]),
        executions=SimpleNamespace(drain=lambda: None),
        worker_groups=[0],
    )
    calls = SimpleNamespace(delay=delay, takes_several_periods=lambda: False)
    steps, asked = Steps(strategy, None, calls, None, trains=False), []
    iterator = SimpleNamespace(owner=SimpleNamespace(batches_per_epoch=1000), taken=0, take=asked.append)
    steps.schedule(iterator, Readers.CALLBACKS)
    for _ in range(1 + MEASURED):
        delay.note(0, rows(0.5))
    steps.schedule(iterator, Readers.CALLBACKS)
    assert asked == [8, 32]


def test_a_delay_that_the_user_has_chosen_stays():
    delay = MeasuredDelay(2, groups=1, between=16)
    for _ in range(1 + MEASURED):
        delay.note(0, rows(0.5))
    assert delay.updates == 2


def test_calls_of_one_update_leave_the_delay_as_it_is():
    delay = MeasuredDelay(None, groups=1, between=1)
    for _ in range(20):
        delay.note(0, rows(0.5, steps=1))
    assert delay.updates == 1


def test_a_delay_that_is_never_measured_keeps_few_times():
    delay = MeasuredDelay(None, groups=1, between=64)
    for _ in range(2 * STEPS // 16):
        delay.note(0, rows(0.0))
    assert len(delay._steps) == STEPS


def test_a_group_that_has_pulled_nothing_does_not_count():
    delay = MeasuredDelay(None, groups=2, between=16, tell=lambda line: None)
    for _ in range(1 + 2 * MEASURED):
        assert delay.updates == 1
        delay.note(1, rows(0.0, steps=3))
        delay.note(0, rows(0.025))
    assert delay.updates == 3
