"""Tests of the messages about what a program makes before `tfdist.strategy`."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.coordinator.members import made_before
from tfdist.strategies.coordinator.members.recovery import Recovery

UNKNOWN = "/job:localhost/replica:0/task:0/device:CPU:0 unknown device. Additional GRPC error information"


def test_datasets_variables_and_tables_are_counted(caplog):
    dataset, variable = tf.data.Dataset.range(3), tf.Variable(1.0)
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
    assert all(map(made_before.is_lost, (dataset, variable, table)))
    with caplog.at_level(logging.WARNING, logger="tfdist"):
        made_before.warn_of_lost()
    assert "before tfdist.strategy() (" in caplog.text and "call tfdist.strategy() first" in caplog.text
    for kind in ("dataset", "variable", "table"):
        assert f" {kind}" in caplog.text


def test_a_dataset_that_is_lost_is_refused_and_other_data_are_not():
    with pytest.raises(ValueError, match=r"this dataset was made before tfdist\.strategy\(\) and is gone"):
        made_before.check_data(tf.data.Dataset.range(3).batch(2))
    made_before.check_data(np.ones(3))
    made_before.check_data(None)
    assert not made_before.is_lost(np.ones(3))


def test_an_error_of_what_is_lost_is_not_taken_for_the_loss_of_a_worker():
    recovery = Recovery.__new__(Recovery)  # Without its threads.
    error = tf.errors.InvalidArgumentError(None, None, UNKNOWN)
    with pytest.raises(ValueError, match=r"made before tfdist\.strategy\(\)") as raised:
        recovery._validate_preemption_failure(error)
    assert raised.value.__cause__ is error
    made_before.check_error(tf.errors.InvalidArgumentError(None, None, "/job:worker/replica:0/task:1 unknown device."))
