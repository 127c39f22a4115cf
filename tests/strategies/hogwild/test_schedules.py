"""How many batches a worker group gets at a time, and when it synchronizes."""

import dataclasses
from types import SimpleNamespace

import pytest

import tfdist
from tfdist.strategies.coordinator.calls.call_size import MOST_CALL_BYTES, batches_per_call
from tfdist.strategies.hogwild.strategy import note_of_period
from tfdist.strategies.hogwild.timing.schedules import (
    Speeds,
    adaptive_period,
    aligned_since,
    is_due,
    most_periods,
    period_in_epoch,
    periods_per_call,
    steps_per_call,
)
from tfdist.strategies.keras_hooks.interface import Readers


def synchronizations(steps, period, calls=24):
    """Returns the numbers of inner steps after which a group synchronizes, with `steps` of them in each call."""
    since, made, found = 0, 0, []
    for _ in range(calls):
        if since and is_due(since, steps, period):
            found.append(made)
            since = 0
        since += steps
        made += steps
    return found


@pytest.mark.parametrize(("batches", "expected"), [(1000, 16), (64, 16), (63, 16), (60, 15), (45, 12), (5, 2), (2, 1)])
def test_an_epoch_is_divided_among_all_groups(batches, expected):
    assert steps_per_call(batches, groups=4, period=16) == expected


@pytest.mark.parametrize(
    ("batches", "expected"),
    [(None, 16), (5, 16), (64, 16), (65, 9), (100, 13), (128, 16), (129, 11), (469, 15), (512, 16), (513, 16), (10_000, 16)],
)
def test_all_groups_make_the_same_number_of_calls_in_an_epoch_of_few_periods(batches, expected):
    assert period_in_epoch(batches, groups=4, period=16) == expected
    assert period_in_epoch(batches, groups=1, period=16) == 16  # It waits for nobody.


@pytest.mark.parametrize(
    ("since", "expected"), [([14, 13, 12], 13), ([7, 7, 21], 7), ([1, 0], 1), ([16, 16, 4, 16], 16), ([5], 5)]
)
def test_groups_count_the_same_updates_when_an_epoch_begins(since, expected):
    assert aligned_since(since) == expected


def test_calls_grow_in_an_epoch_of_unknown_length():
    taken, calls = 0, []
    for _ in range(16):
        calls.append(steps_per_call(None, groups=4, period=16, taken=taken))
        taken += calls[-1]
    assert calls == [2, 2, 2, 2, 2, 3, 4, 5, 6, 7, 9, 11, 14, 16, 16, 16]


@pytest.mark.parametrize(
    ("left", "batch_bytes", "expected"),
    [(10_000, 0, 4), (10_000, 1000, 4), (1024, 0, 2), (1023, 0, 1), (3, 0, 1), (10_000, 2**17, 2), (10_000, 2**30, 1)],
)
def test_a_group_gets_several_periods_if_many_batches_are_left_and_they_are_small(left, batch_bytes, expected):
    assert periods_per_call(left, 4, 16, batch_bytes) == expected
    assert periods_per_call(None, 4, 16, batch_bytes) == periods_per_call(left, 4, 16, None) == 1
    assert periods_per_call(left, 4, 16, batch_bytes, most=1) == 1


@pytest.mark.parametrize(
    ("readers", "every", "step_seconds", "seconds", "expected"),
    [
        (Readers.NOBODY, 1, 1.0, 0.0, 4),
        (Readers.CALLBACKS, 1, 0.001, 60.0, 1),
        (Readers.CALLBACKS, 31, 0.001, 60.0, 1),
        (Readers.CALLBACKS, 32, 1.0, 0.0, 2),
        (Readers.PROGRESS_BAR, 1, 0.001, 4.9, 1),
        (Readers.PROGRESS_BAR, 1, 0.001, 5.0, 6),
        (Readers.PROGRESS_BAR, 1, 0.003, 60.0, 2),
        (Readers.PROGRESS_BAR, 1, 0.010, 60.0, 1),
        (Readers.PROGRESS_BAR, 48, 0.010, 60.0, 3),
        (Readers.PROGRESS_BAR, 1, 0.0, 60.0, 100_000_000),  # Its time of tracing is left out, so a call may have taken none.
    ],
)
def test_logs_of_steps_arrive_in_time_for_those_who_read_them(readers, every, step_seconds, seconds, expected):
    assert most_periods(readers, 16, every, step_seconds, seconds) == expected


@pytest.mark.parametrize(
    ("batch_bytes", "expected"),
    [
        (0, 16),
        (MOST_CALL_BYTES // 16, 16),
        (MOST_CALL_BYTES // 16 + 1, 8),
        (MOST_CALL_BYTES // 5, 4),
        (256 * 224 * 224 * 3 * 4, 3),
        (MOST_CALL_BYTES, 1),
        (2 * MOST_CALL_BYTES, 1),
    ],
)
def test_a_period_of_large_batches_is_divided_into_equal_calls_within_the_limit(batch_bytes, expected):
    assert batches_per_call(16, batch_bytes) == expected
    assert batches_per_call(1, batch_bytes) == 1
    assert expected == 1 or expected * batch_bytes <= MOST_CALL_BYTES < 2**31


@pytest.mark.parametrize("period", [1, 2, 3, 16, 50])
def test_calls_of_a_period_and_of_one_step_synchronize_after_each_period(period):
    for steps in (1, period):
        assert synchronizations(steps, period)[:3] == [step for step in (period, 2 * period, 3 * period) if step < 24 * steps]


@pytest.mark.parametrize("steps", range(1, 17))
def test_groups_synchronize_at_the_call_nearest_to_the_end_of_the_period(steps):
    first, *_ = synchronizations(steps, 16)
    assert abs(first - 16) <= steps / 2


def test_measured_speeds_shorten_the_period_of_slow_groups(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tfdist.strategies.hogwild.timing.schedules.time", SimpleNamespace(monotonic=lambda: now[0]))
    speeds = Speeds(2)
    for group, seconds in ((0, 9.0), (1, 9.0), (0, 1.0), (1, 4.0)):  # The first call of each also compiles.
        assert speeds.period(group, 16) == 16
        with speeds.measured(group, steps=10):
            now[0] += seconds
    assert [speeds.period(group, 16) for group in range(2)] == [16, 4]


@pytest.mark.parametrize(
    ("speed", "speeds", "period"),
    [(4.0, [4.0, 1.0], 16), (1.0, [4.0, 1.0], 4), (0.1, [4.0, 0.1], 1), (None, [4.0, None], 16), (None, [None, None], 16)],
)
def test_the_adaptive_period_is_proportional_to_the_speed(speed, speeds, period):
    assert adaptive_period(speed, speeds, 16) == period


def test_a_period_of_one_is_named_unless_a_flag_or_tf_config_gives_it():
    cluster = dataclasses.replace(tfdist.read("STANDARD_1"), strategy="hogwild")
    assert "sync_period of 16" in note_of_period(cluster)
    assert note_of_period(dataclasses.replace(cluster, sync_period=2)) is None
    assert note_of_period(dataclasses.replace(cluster, says=frozenset({"sync_period"}))) is None
