"""Which optimizers may update parts of a variable. Strategies on real clusters: test_split_training.py, test_worker_groups.py."""

import keras
import pytest

from tfdist.strategies.keras_hooks.optimizer import is_elementwise


class OwnAdam(keras.optimizers.Adam):
    """Has the update of Adam."""


class ByNorm(keras.optimizers.SGD):
    """Has an update of its own."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient / keras.ops.norm(gradient), variable, learning_rate)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (keras.optimizers.AdamW, True),
        (OwnAdam, True),
        (ByNorm, False),
        (keras.optimizers.Lamb, False),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), False),
    ],
)
def test_a_class_is_elementwise_if_its_update_is_that_of_one(optimizer, expected):
    assert is_elementwise(optimizer()) is expected
