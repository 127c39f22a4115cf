"""When a worker begins its steps, given those of others, and which order is kept."""

import math

import pytest

from tfdist.step_order import APART, Running, StepOrder, best, pause

LATER = Running(begun=10.5, step=2.0)


def test_free_workers_and_those_who_are_alone_do_not_wait():
    assert pause(StepOrder.FREE, 10.0, [Running(10.0, 2.0)]) == 0
    for order in StepOrder:
        assert pause(order, 10.0, []) == 0


@pytest.mark.parametrize(
    ("now", "seconds"), [(10.0, APART), (10.25, APART - 0.25), (10.0 + APART, 0), (11.9, 0), (12.0, 0), (13.0, 0)]
)
def test_in_turns_two_workers_begin_nearly_half_a_step_apart(now, seconds):
    assert pause(StepOrder.TURNS, now, [Running(10.0, 2.0)]) == pytest.approx(seconds)


@pytest.mark.parametrize(("now", "seconds"), [(10.25, APART - 0.25), (11.9, 0), (12.0, APART), (16.1, APART - 0.1), (18.0, 0)])
def test_in_turns_of_calls_of_several_steps_the_present_step_counts(now, seconds):
    assert pause(StepOrder.TURNS, now, [Running(10.0, 2.0, steps=4)]) == pytest.approx(seconds)


def test_in_turns_of_three_a_worker_waits_for_the_one_that_has_begun_last():
    assert pause(StepOrder.TURNS, 10.6, [Running(10.0, 2.0), LATER]) == pytest.approx(2.0 * APART / 3 - 0.1)


@pytest.mark.parametrize(("now", "seconds"), [(10.0, 0), (10.19, 0), (10.5, math.inf), (11.9, math.inf), (13.0, math.inf)])
def test_together_a_worker_waits_until_the_one_that_has_begun_first_ends_its_step(now, seconds):
    assert pause(StepOrder.TOGETHER, now, [Running(10.0, 2.0), LATER]) == seconds


@pytest.mark.parametrize(("now", "seconds"), [(10.5, 1.5), (11.5, 0.5), (11.9, 0), (13.0, 1.0), (16.5, math.inf)])
def test_together_a_worker_joins_a_call_of_several_steps_between_two_of_them(now, seconds):
    assert pause(StepOrder.TOGETHER, now, [Running(10.0, 2.0, steps=4), LATER]) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("free", "together", "turns", "kept"),
    [
        (2.0, 1.6, 3.1, StepOrder.TURNS),
        (4.7, 5.8, 3.6, StepOrder.TOGETHER),
        (3.15, 1.6, 3.1, StepOrder.TURNS),  # Chance was as good, and may not stay.
        (1.40, 0.9, 1.30, StepOrder.FREE),  # Every wait costs.
    ],
)
def test_the_fastest_order_is_kept_but_none_if_waiting_costs_more_than_it_gains(free, together, turns, kept):
    assert best({StepOrder.FREE: free, StepOrder.TOGETHER: together, StepOrder.TURNS: turns}) is kept
