"""Which blocks are synchronized together, and the outer rates of momentum buffers: pure functions."""

import pytest
import tensorflow as tf

from tfdist.strategies.hogwild.control import Control
from tfdist.strategies.hogwild.momentum_buffers import AVERAGE, buffers_of, turns


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
