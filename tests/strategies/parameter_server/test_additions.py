"""Additions to Keras' variables on ps tasks are those of one process, also where Keras broadcasts a number."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from server_variables import ROWS, on_ps

from tfdist.strategies.parameter_server.optimizer import _IN_PLACE


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "value", [2, 0.5, [1.0, 2.0, 3.0, 4.0], [[7.0]] * 6, ROWS], ids=["int", "float", "row", "column", "all"]
)
def test_what_is_added_is_broadcast(shards, traced, value):
    variable = keras.Variable(ROWS)
    variable._value = on_ps(shards)

    def change():
        for method in ("assign_add", "assign_add", "assign_sub"):
            _IN_PLACE[method](None, variable, value)

    tf.function(change, autograph=False)() if traced else change()
    np.testing.assert_array_equal(variable.numpy(), ROWS + np.asarray(value, "float32"))
