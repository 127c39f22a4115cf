"""The models of periodic synchronization reproduce published values and lose no update."""

import random

import numpy as np
import pytest
from periodic_oracles import (
    TORCHFT_LAYER_0,
    TORCHFT_LAYER_1,
    DelayedNesterov,
    Nesterov,
    contrib_elastic,
    data_parallel,
    local_sgd,
    singa_parameters,
    torchft,
    without_barrier,
)


@pytest.mark.parametrize("case", TORCHFT_LAYER_0, ids=str)
def test_the_published_histories_of_torchft(case):
    history, _ = torchft(*case)
    assert {step: history[step][0] for step in TORCHFT_LAYER_0[case]} == TORCHFT_LAYER_0[case]
    assert {step: history[step][1] for step in TORCHFT_LAYER_1[case]} == TORCHFT_LAYER_1[case]


def test_with_alpha_1_the_replica_is_trained_locally_while_the_global_parameters_move():
    history, global_history = torchft(0, 1.0)
    assert [layers[0] for layers in history] == [1.0 - 2 * step for step in range(17)]
    assert global_history[3][0] == -11 and global_history[9][0] != history[9][0]


def test_the_values_of_tensorflow_1s_elastic_averaging_test():
    alone = contrib_elastic(groups=1, period=2, rate=1.0, steps=4)
    assert alone == [([1.0], 0.0), ([0.0], 2.0), ([1.0], 2.0), ([2.0], 2.0)]
    assert contrib_elastic(groups=1, period=2, rate=1.0, steps=3, start=1.0) == [([2.0], 1.0), ([1.0], 3.0), ([2.0], 3.0)]
    assert contrib_elastic(groups=2, period=1, rate=0.5, steps=1) == [([0.5, 0.75], 0.75)]
    assert contrib_elastic(groups=2, period=1, rate=0.5, steps=1, start=1.0) == [([1.5, 1.75], 1.75)]


@pytest.mark.parametrize(("latency", "kept"), [(0, 4000), (1, 4000), (4, 3253), (8, 2257), (15, 514)])
def test_singa_as_released_loses_updates_while_a_reply_is_in_flight_and_corrected_it_loses_none(latency, kept):
    assert singa_parameters(latency, as_released=True) == kept
    assert singa_parameters(latency, as_released=False) == 4000


@pytest.mark.parametrize("seed", range(20))
def test_no_update_is_lost_whatever_the_latency_the_speeds_and_the_period(seed):
    chance = random.Random(seed)
    groups, updates, period = chance.randint(1, 8), chance.randint(1, 200), chance.randint(1, 32)
    seconds = [chance.uniform(0.1, 3.0) for _ in range(groups)]
    parameters, members = without_barrier(
        groups, updates, period, lambda *_: chance.choice([0.0, 0.5, 10.0, 300.0]), lambda *_: 1.0, seconds=seconds
    )
    assert parameters == pytest.approx(updates)
    assert sum(member.progress for member in members) / groups == updates
    for member in members:
        assert member.replica == pytest.approx(member.baseline)


def test_one_update_a_round_of_plain_sgd_is_data_parallel_training():
    generator = np.random.default_rng(0)
    truth = generator.normal(size=3)

    def gradient(parameters, inputs):
        return 2 * inputs.T @ (inputs @ (parameters - truth)) / len(inputs)

    batches = [[generator.normal(size=(8, 3)) for _ in range(4)] for _ in range(40)]
    together = data_parallel(gradient, np.zeros(3), batches, rate=0.05)
    by_hand = np.zeros(3)
    for step in batches:  # One batch of 32.
        by_hand -= 0.05 * gradient(by_hand, np.concatenate(step))
    np.testing.assert_allclose(together, by_hand, rtol=1e-12)
    np.testing.assert_allclose(local_sgd(gradient, np.zeros(3), batches, 0.05, period=1), together, rtol=1e-12)
    # One group alone is plain SGD for every period.
    alone = [step[:1] for step in batches]
    expected = data_parallel(gradient, np.zeros(3), alone, 0.05, momentum=0.9)
    np.testing.assert_allclose(local_sgd(gradient, np.zeros(3), alone, 0.05, period=8, momentum=0.9), expected, rtol=1e-12)
    # A longer period gives a different result, also near the truth.
    longer = local_sgd(gradient, np.zeros(3), batches, 0.05, period=8)
    assert 1e-6 < np.max(np.abs(longer - together)) < 0.1


def test_diloco_by_hand():
    # Two rounds of pushes with the mean 1: m = -1 and -1.9; C += 0.7 (1 + 0.9) = 1.33, then 0.7 (1 + 0.9 * 1.9) = 1.897.
    outer = Nesterov(0.0, rate=0.7, beta=0.9)
    outer.take_round([0.5, 1.5], [0.5, 0.5])
    assert outer.parameters == pytest.approx(1.33)
    outer.take_round([2.0, 0.0], [0.5, 0.5])
    assert outer.parameters == pytest.approx(1.33 + 1.897)


def test_as_many_pushes_as_groups_move_delayed_nesterov_as_far_as_a_round_of_diloco():
    chance = random.Random(0)
    by_rounds, delayed = Nesterov(0.0, 0.7, 0.9), DelayedNesterov(0.0, 0.7, 0.9, every=4)
    for _ in range(10):
        pushes = [chance.gauss(0, 1) for _ in range(4)]
        by_rounds.take_round(pushes, [0.25] * 4)
        for progress in pushes:
            delayed.take(progress)
        assert delayed.parameters == pytest.approx(by_rounds.parameters)
