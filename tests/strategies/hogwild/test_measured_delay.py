"""The delay of a pull follows from the measured times of a synchronization and of an update."""

import numpy as np
import pytest

from tfdist.strategies.hogwild.measured_delay import MEASURED, MeasuredDelay, delay_for


@pytest.mark.parametrize(
    ("synchronization", "update", "between", "delay"),
    [
        (0.001, 0.010, 64, 1),
        (0.010, 0.010, 64, 1),
        (0.021, 0.010, 64, 3),
        (1.000, 0.010, 64, 16),  # A quarter of the updates between two pushes.
        (1.000, 0.010, 12, 3),
        (1.000, 0.010, 1, 1),
        (0.010, 0.000, 64, 16),
    ],
)
def test_the_delay_is_the_quotient_of_the_times_within_limits(synchronization, update, between, delay):
    assert delay_for(synchronization, update, between) == delay


def rows(seconds, steps=16, update=0.01, pulls_after=1, wait=0.0):
    """What a group measures in a call: it waits after the pull."""
    ends = np.arange(1, steps + 1) * update
    ends[pulls_after:] += wait
    return np.stack([ends, np.where(np.arange(steps) == pulls_after - 1, seconds, 0.0)], axis=1)


def test_the_delay_is_measured_once_and_told():
    told = []
    delay = MeasuredDelay(None, groups=2, between=16, tell=told.append)
    assert delay.measures and delay.updates == 1
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


def test_a_synchronization_that_takes_too_long_is_told():
    told = []
    delay = MeasuredDelay(None, groups=1, between=16, tell=told.append)
    for _ in range(1 + MEASURED):
        delay.note(0, rows(0.5))
    assert delay.updates == 4
    assert "groups wait about 460 ms for each result; a longer --sync_period or --compression" in told[1]


def test_a_delay_that_the_user_has_chosen_stays():
    delay = MeasuredDelay(2, groups=1, between=16)
    assert not delay.measures and delay.updates == 2


def test_calls_of_one_update_leave_the_delay_as_it_is():
    delay = MeasuredDelay(None, groups=1, between=1)
    for _ in range(20):
        delay.note(0, rows(0.5, steps=1))
    assert delay.updates == 1
