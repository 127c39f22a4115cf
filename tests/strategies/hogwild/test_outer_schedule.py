"""The outer momentum follows the learning rate: pure functions."""

import math

import numpy as np
import pytest
from periodic_oracles import Nesterov

from tfdist import Synchronization
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


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("period", [1, 3])
def test_adam_reaches_the_minimum_with_the_default_outer_rates_and_a_short_period(groups, period):
    """Linear regression without noise. An outer momentum of 0.8 beside Adam's own 0.9 keeps the loss above 0.01."""
    generator = np.random.default_rng(1)
    x = generator.standard_normal((240, 4))
    y = x @ np.array([1.0, -2.0, 0.5, 3.0])
    outer = Nesterov(np.zeros(4), *Synchronization().outer_rates("Adam", groups))
    first, second = np.zeros((2, groups, 4))
    losses = []
    for step in range(1, 1501):
        if step % period == 1 % period:
            replicas = np.tile(outer.parameters, (groups, 1))
        for group, rows in enumerate(generator.integers(0, 240, (groups, 12))):
            gradient = 2 / 12 * x[rows].T @ (x[rows] @ replicas[group] - y[rows])
            first[group] += 0.1 * (gradient - first[group])
            second[group] += 0.001 * (gradient**2 - second[group])
            update = first[group] / (1 - 0.9**step) / (np.sqrt(second[group] / (1 - 0.999**step)) + 1e-7)
            replicas[group] -= 0.05 * update
        if step % period == 0:
            outer.take_round(list(replicas - outer.parameters), [1 / groups] * groups)
            losses.append(np.mean((x @ outer.parameters - y) ** 2))
    assert max(losses[-20:]) < 1e-3
