"""Replicas warn, once per layer, of an added loss that is a sum over the examples of a batch, and of no other."""

import functools

import keras
import pytest
import tensorflow as tf
from keras import ops

from tfdist.strategies.inputs.batches import rows_of
from tfdist.strategies.keras_hooks.replicas import batch_sums, replica_context
from tfdist.strategies.private_api import TensorFlowTrainer, patches

WEIGHTS = tf.Variable([2.0, 3.0, 4.0, 5.0])  # As many as a batch has examples and features.

SUMS = {
    "Keras' example": ops.sum,
    "times a constant": lambda x: 0.1 * ops.sum(x),
    "times a variable": lambda x: WEIGHTS[0] * ops.sum(x),
    "divided by a constant": lambda x: ops.sum(ops.square(x)) / 3,
    "of sums of each example": lambda x: ops.sum(ops.sum(x, axis=-1)),
    "with a regularizer": lambda x: ops.sum(x, axis=0) + 0.01 * ops.sum(ops.square(WEIGHTS)),
    "as a larger dtype": lambda x: ops.cast(-ops.sum(x, axis=(0, 1), keepdims=True), "float64"),
}
OTHERS = {
    "a mean": ops.mean,
    "a sum of means over the examples": lambda x: ops.sum(ops.square(ops.mean(x, axis=0))),
    "a mean of sums": lambda x: 0.5 * ops.mean(ops.sum(x, axis=-1)),
    "a sum divided by the number of examples": lambda x: ops.sum(x) / ops.cast(ops.shape(x)[0], "float32"),
    "a sum divided by the number of values": lambda x: ops.sum(x) / ops.cast(ops.size(x), "float32"),
    "a regularizer": lambda x: ops.sum(ops.square(WEIGHTS)),
    "a loss for each example": lambda x: ops.sum(x, axis=-1),
    "a sum in very many operations": lambda x: functools.reduce(lambda total, _: total + 1.0, range(200), ops.sum(x)),
    "not linear in the sum": lambda x: ops.sqrt(ops.sum(x)),
}


class Adds(keras.layers.Layer):
    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def call(self, x):
        self.add_loss(self.loss(x))
        return x


def traced(layer, share, rows=4):
    @tf.function(input_signature=[tf.TensorSpec([rows, 4])])
    def step(x):
        with replica_context.entered(replica_context.Replica(tf.distribute.get_strategy(), 0, share, rows_of(x))):
            return layer(x)

    step.get_concrete_function()


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(keras.Layer, "add_loss", patches.ADD_LOSS.original)
    monkeypatch.setattr(patches.ADD_LOSS, "_replacements", [])
    batch_sums.install()


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_examples_is_named_once(name, caplog):
    layer = Adds(SUMS[name])
    for rows in (None, 4):
        traced(layer, tf.constant(0.5), rows)
    assert caplog.text.count(f"the layer {layer.name} adds a sum over its batch") == 1


@pytest.mark.parametrize("rows", [None, 4])
@pytest.mark.parametrize("name", OTHERS)
def test_what_may_be_no_sum_over_examples_is_not_named(name, rows, caplog):
    traced(Adds(OTHERS[name]), tf.constant(0.5), rows)
    assert not caplog.text


def test_keras_own_regularizer_of_activities_is_not_named(caplog):
    traced(keras.layers.Dense(3, activity_regularizer="l2"), tf.constant(0.5))
    assert not caplog.text


@pytest.mark.parametrize("rows", [4, 2])
def test_a_loss_for_each_example_counts_in_full_in_a_step_that_runs_eagerly(rows, monkeypatch):
    monkeypatch.setattr(TensorFlowTrainer, "_aggregate_additional_loss", patches.SUM_ADDED_LOSS.original)
    monkeypatch.setattr(patches.SUM_ADDED_LOSS, "_replacements", [])
    batch_sums.install()
    model, x = keras.Model(), tf.ones([4, 3])
    with replica_context.entered(replica_context.Replica(tf.distribute.get_strategy(), 0, tf.constant(0.5), rows)):
        total = model._aggregate_additional_loss(ops.sum(x, axis=-1))
    assert float(total) == (24 if rows == 4 else 12)  # As many numbers as examples, or of something else.


def test_a_replica_that_is_alone_adds_up_everything(caplog):
    traced(Adds(ops.sum), None)
    assert not caplog.text
