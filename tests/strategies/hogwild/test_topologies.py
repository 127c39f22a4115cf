"""Which server groups average with each other, and what the averages are."""

import random

import numpy as np
import pytest
import tensorflow as tf

from tfdist import synchronization
from tfdist.strategies.hogwild.synchronization.topologies import TOPOLOGIES, average, none, pair, ring
from tfdist.strategies.named_variable import NamedVariable

HERE = "/job:localhost/replica:0/task:0/device:CPU:0"


def test_every_topology_is_a_choice_of_synchronization():
    assert tuple(TOPOLOGIES) == synchronization.TOPOLOGIES


def test_a_server_group_in_a_ring_averages_with_its_neighbors():
    assert ring(0, 5) == [(4, 1)]
    assert ring(4, 5) == [(3, 0)]
    assert ring(0, 2) == [(1,)]


def test_a_server_group_in_pairs_chooses_any_other():
    assert pair(1, 4) == [(0,), (2,), (3,)]
    assert pair(0, 2) == [(1,)]


def test_global_parameters_have_no_partners():
    assert none(0, 1) == [()]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("topology", ["ring", "pair"])
def test_an_average_keeps_the_mean_over_all_server_groups(topology, count):
    parameters = [NamedVariable("parameters", tf.float64, [2], HERE) for _ in range(count)]
    values = np.random.default_rng(1).normal(size=(count, 2))
    for variable, value in zip(parameters, values, strict=True):
        variable.assign(tf.constant(value))

    @tf.function(autograph=False)
    def run():
        average(topology, parameters, 1)

    random.seed(3)
    run()
    numbers = random.random()
    random.seed(3)
    assert numbers == random.random()  # The program's own are as in one process.
    after = np.array([variable.read().numpy() for variable in parameters])
    np.testing.assert_allclose(after.mean(axis=0), values.mean(axis=0), rtol=1e-12)
    partners = [
        partners
        for partners in TOPOLOGIES[topology](1, count)
        if not np.allclose(after[list(partners)], values[list(partners)])
    ]
    assert len(partners) == 1  # One choice was taken.
    np.testing.assert_allclose(after[1], values[[1, *partners[0]]].mean(axis=0), rtol=1e-12)
    untouched = [other for other in range(count) if other not in (1, *partners[0])]
    np.testing.assert_array_equal(after[untouched], values[untouched])
