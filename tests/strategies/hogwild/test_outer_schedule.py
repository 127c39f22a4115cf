"""The outer momentum follows the learning rate: pure functions."""

import math

import pytest

from tfdist.strategies.hogwild.synchronization.outer_schedule import SAMPLES, OuterSchedule, momentum_for


@pytest.mark.parametrize("fraction", [1.0, 0.9, 0.7, 0.5, 0.41])
def test_learning_rate_times_outer_step_stays_what_it_was_at_first(fraction):
    assert fraction * 0.7 / (1 - momentum_for(0.7, 0.5, fraction, 3.5)) == pytest.approx(1.4)


@pytest.mark.parametrize("fraction", [0.4, 0.1, 1e-6, 0.0])
def test_an_outer_step_goes_no_farther_than_the_factor(fraction):
    assert 0.7 / (1 - momentum_for(0.7, 0.5, fraction, 3.5)) == pytest.approx(3.5)


def test_the_momentum_is_never_smaller_than_at_first():
    assert momentum_for(2.0, 0.5, 0.5, 3.5) == 0.5  # The factor is 4 already.
    assert momentum_for(0.7, 0.5, 1.2, 3.5) == 0.5


def test_without_a_factor_or_a_learning_rate_the_rates_stay():
    assert OuterSchedule((0.7, 0.5)).at(1000) == (0.7, 0.5)
    assert OuterSchedule((0.7, 0.5), 3.5).at(1000) == (0.7, 0.5)
    assert OuterSchedule((0.7, 0.5), None, lambda step: 1 / (1 + step)).at(1000) == (0.7, 0.5)


def test_a_warm_up_does_not_raise_the_momentum():
    def learning_rate(step):
        return step / 100 if step < 100 else 0.5

    rates = OuterSchedule((0.7, 0.5), 3.5, learning_rate)
    assert [rates.at(step) for step in (0, 10, 50, 99)] == [(0.7, 0.5)] * 4
    assert rates.at(100) == (0.7, pytest.approx(1 - 0.7 * 0.5 / 0.99 / 1.4))


def test_a_training_that_continues_has_the_rates_of_one_that_was_not_interrupted():
    asked = []

    def learning_rate(step):
        asked.append(step)
        return 0.5 * (1 + math.cos(math.pi * step / 3000))

    whole = OuterSchedule((0.7, 0.5), 3.5, learning_rate, every=128)
    straight = [whole.at(step) for step in range(0, 3000, 16)]
    assert len(asked) == 24  # Once in 128 updates.
    del asked[:]
    assert OuterSchedule((0.7, 0.5), 3.5, learning_rate, every=128).at(2000) == straight[2000 // 16]
    assert len(asked) == 1 + SAMPLES and max(asked) == 2000 // 128 * 128
    assert straight[0] == (0.7, 0.5) and straight[-1][1] == pytest.approx(0.8)
    momenta = [momentum for _, momentum in straight]
    assert momenta == sorted(momenta)


def test_a_learning_rate_of_zero_all_the_time_leaves_the_rates_as_they_are():
    assert OuterSchedule((0.7, 0.5), 3.5, lambda step: 0.0).at(10) == (0.7, 0.5)
