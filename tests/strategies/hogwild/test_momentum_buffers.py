"""Which blocks are synchronized together, which momentum buffers are, and their outer rates: pure functions."""

from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from tfdist.strategies.hogwild.replicas import momentum_buffers
from tfdist.strategies.hogwild.replicas.momentum_buffers import AVERAGE, buffers_of, turns, why_none
from tfdist.strategies.hogwild.synchronization.control import Control


@pytest.mark.parametrize(
    ("fragments", "parameters", "averaged", "expected"),
    [
        (1, 1, 0, [(0,)]),
        (1, 2, 2, [(0, 1, 2, 3)]),
        (3, 3, 0, [(0,), (1,), (2,)]),
        (2, 2, 2, [(0, 2), (1, 3)]),
        (3, 3, 2, [(0, 3), (1, 4), (2,)]),
        (2, 2, 3, [(0, 2, 4), (1, 3)]),
        (2, 0, 1, [(0,), ()]),  # All layers are frozen but for their moving averages.
        (2, 5, 1, [(0, 2, 4, 5), (1, 3)]),  # Other models have put some of the weights into blocks.
        (4, 2, 0, [(0,), (1,), (), ()]),  # A small model.
    ],
)
def test_each_block_has_its_turn_once_in_a_period(fragments, parameters, averaged, expected):
    assert turns(fragments, parameters, averaged) == expected


def test_other_outer_rates_leave_the_other_numbers_as_they_are():
    control = Control.of(tf.constant([2, 0.25, -4, 2.0**40, 0.7, 0.5, 3.5, 2, 1], tf.float64))
    averaging = control.with_rates(*AVERAGE)
    assert averaging.numbers.numpy().tolist() == [2, 0.25, -4, 2.0**40, 1, 0, 3.5, 2, 1]
    assert (averaging.rate, averaging.momentum, averaging.live, averaging.step) == (1, 0, -4, 2**40)


def test_an_optimizer_that_is_not_built_has_no_buffers():
    class NotBuilt:
        built = False

    assert buffers_of([NotBuilt()]) == []


@pytest.mark.parametrize(
    ("optimizer", "averaged"),
    [
        (keras.optimizers.SGD(momentum=0.9), 2),
        (keras.optimizers.RMSprop(momentum=0.9), 2),
        (keras.optimizers.Lion(), 2),
        (keras.optimizers.Adam(), 0),
        (keras.optimizers.Adamax(), 0),
        (keras.optimizers.Nadam(), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, keras.optimizers.Optimizer) else "",
)
def test_momentum_that_is_divided_by_a_second_moment_of_the_group_stays_with_it(optimizer, averaged, monkeypatch):
    monkeypatch.setattr(momentum_buffers, "local_variables", lambda value: [SimpleNamespace(name=value.name, block=None)])
    optimizer.build([keras.Variable([1.0, 2.0], name="kernel"), keras.Variable([1.0], name="bias")])
    found = buffers_of([optimizer])
    assert len(found) == averaged and all("momentum" in each.name for each in found)
    if not averaged:
        name = type(optimizer).__name__
        assert why_none([optimizer]) == f"{name} divides its momentum by a second moment, which each group has for itself"
